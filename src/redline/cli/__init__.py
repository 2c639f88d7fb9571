"""The command line: commands, their flags, and what they print."""

from redline.cli.app import main, program
