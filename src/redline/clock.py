"""Provides monotonic time for waiting, and wall time for people and for HTTP dates."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time for all of redline; tests pass a clock that they set by hand."""

    def now_s(self) -> float:
        """Returns monotonic seconds from an arbitrary zero."""

    def wall_s(self) -> float:
        """Returns the seconds since 1970-01-01 UTC, which jump when the clock is set."""


class SystemClock:
    """The machine's clocks. The monotonic clock is the one that the event loop uses (PEP 418)."""

    # The clocks are read several times for each call, so no Python function wraps them.
    now_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)


SYSTEM = SystemClock()
