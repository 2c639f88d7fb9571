"""Continuous batching: chooses the tokens that the next step computes."""

from redline.engine.schedule.figures import Figures
from redline.engine.schedule.scheduler import (
    Bounds,
    Copied,
    Plan,
    QueueFull,
    Row,
    Scheduler,
    common,
)
from redline.engine.schedule.sequence import Sequence
