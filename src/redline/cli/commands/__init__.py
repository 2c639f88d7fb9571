"""Implements the commands, each in a module that is imported when the command is called."""
