"""Counts attempts and cache lookups, as plain numbers that displays and reports read."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import msgspec

# Errors that show that an endpoint does not work. Any other error, except `cancelled`, shows that
# the endpoint works.
_OUT_OF_ORDER = frozenset({"server_failed", "disconnected", "timed_out", "bad_reply"})


class Attempts:
    """Counts the attempts whose requests were written.

    An attempt counts again if its request is written again, on a new connection.
    attempts: all of them. in_flight, most_in_flight: those that have not ended, now and at most.
    input_tokens, output_tokens: of the replies, according to their usage. retries: attempts of a
    request that was written before and failed. failovers: those retries whose request another
    endpoint may have billed. errors: the number of failed attempts by the error's kind, including
    `cancelled`. ended_s: the monotonic time when an attempt last ended; -inf if none has.
    longest_s: the duration of the longest attempt in seconds. failures_in_a_row: the number of
    failures of the endpoint since it last worked; failing_since_s: the monotonic time when the
    first of these failures occurred, inf if there is none.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.retries = 0
        self.failovers = 0
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
        """Counts the next request as a retry: it was written before and failed."""
        self.retries += 1

    def failed_over(self) -> None:
        """Counts the next request as a failover: another endpoint may have billed it."""
        self.failovers += 1

    def started(self) -> None:
        """Counts a request that was written."""
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
        """Counts the end of an attempt.

        now_s: monotonic time. latency_s: the attempt's duration in seconds. error: the kind of its
        error; None if it succeeded.
        """
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
    """Counts cache lookups by their result.

    hits: the answer was in the cache. shared: the answer comes from an identical call in flight.
    misses: the request is sent. passed: the request is sent without a lookup, for example since its
    answer may differ each time or is streamed.
    """

    hits: int = 0
    shared: int = 0
    misses: int = 0
    passed: int = 0

    def count(self, found: Found) -> None:
        """Counts one lookup with this result."""
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
        """The number of calls that the cache answered, without a request of their own."""
        return self.hits + self.shared

    @property
    def asked(self) -> int:
        """The number of calls that reached the cache, whatever the result."""
        return self.spared + self.misses + self.passed

    @property
    def share(self) -> float:
        """The share of `asked` calls that the cache answered, 0 to 1."""
        return self.spared / max(1, self.asked)
