"""`redline bench`: its flags, its targets, their requests, and its progress display."""
