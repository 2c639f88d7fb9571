"""Reads rows from a Redis stream, and acknowledges them when their outcomes are durable."""

from redline.sources.stream.group import Group
from redline.sources.stream.rows import StreamRows
