"""Rows from a Redis stream, acknowledged when their outcomes are durable."""

from redline.sources.stream.group import Group
from redline.sources.stream.rows import StreamRows
