"""Implements `redline bench`: its flags, targets, requests and progress display."""
