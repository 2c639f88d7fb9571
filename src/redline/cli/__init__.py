"""Implements the command line: commands, their flags, and their output."""

from redline.cli.app import main, program
