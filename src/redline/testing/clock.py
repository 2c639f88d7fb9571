"""Provides clocks for tests: one that is advanced by hand, and one that follows an event loop."""

from __future__ import annotations

import asyncio

from redline.errors import ConfigError

WALL_START_S = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC, so that dates in tests are stable


class ManualClock:
    """A clock that moves only when `advance` is called; monotonic and wall time move together.

    now_s: the monotonic time at the beginning, in seconds. wall_s: the wall time at the beginning,
    in seconds since 1970-01-01 UTC; by default the beginning of 2026.
    """

    def __init__(self, now_s: float = 0.0, wall_s: float = WALL_START_S) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._wall_s

    def advance(self, by_s: float) -> float:
        """Advances both times by `by_s` seconds, 0 or more; returns the new monotonic time.

        Raises ConfigError if `by_s` is below 0.
        """
        if not by_s >= 0:
            raise ConfigError(
                f"a monotonic clock cannot be moved by {by_s:g} s",
                where="ManualClock.advance",
                hint="pass 0 or more; start a new clock for an earlier time",
            )
        self._now_s += by_s
        self._wall_s += by_s
        return self._now_s


class VirtualClock:
    """The clock of an event loop, usually a VirtualLoop.

    wall_start_s: the wall time, in seconds since 1970-01-01 UTC, at the loop's time 0; by default
    the beginning of 2026.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wall_start_s: float = WALL_START_S) -> None:
        self._loop = loop
        self._wall_start_s = wall_start_s

    def now_s(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return self._wall_start_s + self._loop.time()
