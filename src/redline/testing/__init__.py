"""What a test needs in place of the world: virtual time, clocks, and a backend with a script."""

from redline.testing.backends import ScriptedBackend, Send
from redline.testing.clock import ManualClock, VirtualClock
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
