"""Collects single requests and sends them as lists to backends and functions that take lists."""

from redline.calls.batching.batcher import DynamicBatcher
from redline.calls.batching.figures import BatchFigures
from redline.calls.batching.functions import Item, is_async
from redline.calls.batching.rule import BatchBounds
