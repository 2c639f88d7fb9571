"""`redline keys`: one module per command, imported when it is called."""
