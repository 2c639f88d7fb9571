"""Implements the commands that show, compare, verify and repair the results of runs."""
