"""What backends count as they go: plain integers, which displays and reports read."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import msgspec

# Errors of an endpoint that does not work; after any other one, it does.
_OUT_OF_ORDER = frozenset({"server_failed", "disconnected", "timed_out", "bad_reply"})


class Attempts:
    """Counts of the attempts that were written.

    retries: those of a request that was written before and failed. errors: failed attempts by the
    error's kind, `cancelled` among them. ended_s: when an attempt last ended, by the monotonic
    clock. longest_s: the longest that one took. failures_in_a_row: of the endpoint, since it last
    answered as it should; failing_since_s: when the first of them came.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.retries = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.errors: Counter[str] = Counter()
        self.ended_s = -math.inf
        self.longest_s = 0.0
        self.failures_in_a_row = 0
        self.failing_since_s = math.inf

    def retried(self) -> None:
        """The request that is to be counted next was written before, and failed."""
        self.retries += 1

    def started(self) -> None:
        """A request was written."""
        self.attempts += 1
        self.in_flight = in_flight = self.in_flight + 1
        if in_flight > self.most_in_flight:
            self.most_in_flight = in_flight

    def ended(
        self,
        now_s: float,
        latency_s: float,
        error: str | None,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """An attempt that was started has its answer, with these tokens, or an error's kind."""
        self.in_flight -= 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.ended_s = now_s
        if latency_s > self.longest_s:
            self.longest_s = latency_s
        if error is not None:
            self.errors[error] += 1
            if error in _OUT_OF_ORDER:
                self.failures_in_a_row += 1
                self.failing_since_s = min(self.failing_since_s, now_s)
                return
            if error == "cancelled":
                return
        if self.failures_in_a_row:
            self.failures_in_a_row, self.failing_since_s = 0, math.inf


Found = Literal["hit", "shared", "miss", "passed"]


class CacheUse(msgspec.Struct):
    """How often the cache was asked for an answer, by what it had.

    hits: it was stored. shared: a call in flight brings it. misses: it is asked for. passed: the
    request may have another answer each time, so it is asked for, too.
    """

    hits: int = 0
    shared: int = 0
    misses: int = 0
    passed: int = 0

    def count(self, found: Found) -> None:
        """Counts one lookup of this kind."""
        if found == "hit":
            self.hits += 1
        elif found == "miss":
            self.misses += 1
        elif found == "shared":
            self.shared += 1
        else:
            self.passed += 1

    @property
    def spared(self) -> int:
        """Rows that were answered without a request."""
        return self.hits + self.shared

    @property
    def asked(self) -> int:
        """Rows that asked."""
        return self.spared + self.misses + self.passed

    @property
    def share(self) -> float:
        """The share of looked-up rows that the cache answered, 0 to 1."""
        return self.spared / max(1, self.asked)
