"""`redline keys`: one module per command; `cli.app` imports each when it is called."""
