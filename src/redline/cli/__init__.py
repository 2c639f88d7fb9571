"""The command line."""

from redline.cli.app import main

__all__ = ["main"]
