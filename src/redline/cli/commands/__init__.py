"""One module per command; `cli.app` imports each when it is called."""
