"""`redline bench`: its flags, its targets, what they are asked, and what is shown."""
