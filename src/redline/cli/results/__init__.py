"""Implements the commands that show, compare, verify and repair the results of runs."""

from redline.cli.results.reading import open_results
