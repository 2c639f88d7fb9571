"""`redline bench`: its flags, its targets, their requests, and what is shown."""
