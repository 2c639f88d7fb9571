"""Monotonic time for waiting, wall time for people and for HTTP dates."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What every part asks for the time; tests pass one they turn by hand."""

    def now_s(self) -> float:
        """Seconds that never go back; the zero is arbitrary."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump."""


class SystemClock:
    """The machine's clocks. The monotonic one is the event loop's own (PEP 418)."""

    # Asked several times for each call, so there is no function of our own in between.
    now_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)


SYSTEM = SystemClock()
