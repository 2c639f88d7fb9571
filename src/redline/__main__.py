"""Runs the command line for `python -m redline`."""

from redline.cli import main

main()
