"""Measures the rate at which a queue drains while it is not empty."""

from __future__ import annotations

from collections import deque

# The rate is measured over the last starts: those of the last WINDOW_S seconds, but at least LEAST
# and at most MOST starts.
MOST = 512
LEAST = 16
WINDOW_S = 30.0
# With fewer starts, the rate is unknown.
FIRST = 3


class Drain:
    """The rate at which calls leave a queue. Time with an empty queue does not count."""

    def __init__(self) -> None:
        # The time and the tokens of each start. The clock runs only while the queue is not empty.
        self._starts: deque[tuple[float, float]] = deque()
        self._tokens = 0.0
        self._from_s = 0.0  # the beginning of the period that `_starts` covers
        self._waited_s = 0.0
        self._since_s: float | None = None

    def begins(self, now_s: float) -> None:
        """Notes that the queue is no longer empty."""
        self._since_s = now_s

    def ends(self, now_s: float) -> None:
        """Notes that the queue is empty."""
        self._clock_s(now_s)
        self._since_s = None

    def tick(self, now_s: float) -> None:
        """Advances the clock; to be called every second."""
        self._clock_s(now_s)

    def started(self, now_s: float, tokens: float) -> None:
        """Counts a call that left the queue to start."""
        starts, at_s = self._starts, self._clock_s(now_s)
        starts.append((at_s, tokens))
        self._tokens += tokens
        while len(starts) > MOST or (len(starts) > LEAST and starts[0][0] < at_s - WINDOW_S):
            self._from_s, gone = starts.popleft()
            self._tokens -= gone

    def calls_per_s(self, now_s: float) -> float | None:
        """Returns the calls per second; None if too few calls have left the queue."""
        return self._rate(len(self._starts), now_s)

    def tokens_per_s(self, now_s: float) -> float | None:
        """Returns the tokens per second; None if too few calls have left the queue."""
        return self._rate(self._tokens, now_s)

    def _rate(self, amount: float, now_s: float) -> float | None:
        took_s = self._clock_s(now_s) - self._from_s
        return amount / took_s if len(self._starts) >= FIRST and took_s > 0 else None

    def _clock_s(self, now_s: float) -> float:
        if self._since_s is not None:
            # With a tick every second, a longer time means that the process was stopped.
            self._waited_s += min(now_s - self._since_s, WINDOW_S)
            self._since_s = now_s
        return self._waited_s
