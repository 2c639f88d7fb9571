"""`python -m redline`."""

from redline.cli import main

main()
