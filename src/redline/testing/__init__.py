"""Provides fakes for tests: virtual time, clocks, and a backend with scripted answers."""

from redline.testing.backends import ScriptedBackend, Send, Step
from redline.testing.clock import WALL_START_S, ManualClock, VirtualClock
from redline.testing.loop import Deadlock, VirtualLoop, virtual_run

__all__ = [
    "Deadlock",
    "ManualClock",
    "ScriptedBackend",
    "Send",
    "VirtualClock",
    "VirtualLoop",
    "virtual_run",
]
