"""Counts of one run, kept from its events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import msgspec

from redline.events import (
    AttemptEnded,
    AttemptStarted,
    CacheAsked,
    EndpointBack,
    EndpointLost,
    EndpointParked,
    Event,
    RequestRepeated,
    RetryScheduled,
    RetryStarted,
    RowsSaved,
)


class CacheUse(msgspec.Struct):
    """How often the cache was asked for an answer, by what it had; see CacheAsked."""

    hits: int = 0
    shared: int = 0
    misses: int = 0
    passed: int = 0

    def count(self, found: str) -> None:
        """One more of these."""
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
    def share(self) -> float:
        """Of all rows that asked, those that were spared; 0 to 1."""
        return self.spared / max(1, self.spared + self.misses + self.passed)


class BatchUse(msgspec.Struct):
    """What went by the Batch API. made: batches by this run. running: batches now, of so many rows.

    answered: rows with a result by this run. again: rows that went into another batch.
    """

    made: int = 0
    running: int = 0
    rows: int = 0
    answered: int = 0
    again: int = 0


class Outages(msgspec.Struct, frozen=True):
    """Times in which an endpoint took no connections.

    lasted_s: of all of them together. down_s: of the present one, 0 if there is none. reason: why
    no connection came about, the last time.
    """

    endpoint: str
    reason: str
    lasted_s: float
    down_s: float


# Errors of an endpoint that does not work; after any other one, it does.
_OUT_OF_ORDER = frozenset({"server_failed", "disconnected", "timed_out", "bad_reply"})


class Tally:
    """What progress and summary show. A Listener; all counts are of this process's run.

    on_send: called before each request goes out. on_wait: called where a row waits for its retry.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.retries = 0
        self.retrying = 0
        self.repeated = 0
        self.succeeded = 0
        self.failed = 0
        self.flawed: Counter[str] = Counter()  # of those that succeeded
        self.input_tokens = 0
        self.output_tokens = 0
        self.parked_until_s = 0.0
        # The last outage, with the time of those before it, and since when it lasts.
        self._lost: EndpointLost | None = None
        self._lost_s = 0.0
        self._down_since_s: float | None = None
        # Failures of the endpoint since it last answered as it should, and when the first came.
        self.failures_in_a_row = 0
        # When an attempt last ended, and how long the longest took.
        self.ended_s = -math.inf
        self.longest_s = 0.0
        self.failing_since_s = math.inf
        self.cache: CacheUse | None = None  # from the first row on that asks it
        self.batches: BatchUse | None = None  # of a run that has some
        self.errors: Counter[str] = Counter()
        self.on_send: Callable[[], None] | None = None
        self.on_wait: Callable[[], None] | None = None

    @property
    def saved(self) -> int:
        return self.succeeded + self.failed

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def rate_limited(self) -> int:
        """Answers of HTTP 429."""
        return self.errors["rate_limited"]

    def outages(self, now_s: float) -> Outages | None:
        """Those so far; None if there was none."""
        if self._lost is None:
            return None
        down_s = 0.0 if self._down_since_s is None else now_s - self._down_since_s
        return Outages(self._lost.endpoint, self._lost.reason, self._lost_s + down_s, down_s)

    def on_event(self, event: Event) -> None:
        # The most frequent first.
        if type(event) is AttemptStarted:
            self.attempts += 1
            self.retries += event.is_retry
            self.in_flight = in_flight = self.in_flight + 1
            if in_flight > self.most_in_flight:
                self.most_in_flight = in_flight
            if self.on_send is not None:
                self.on_send()
        elif type(event) is AttemptEnded:
            self.in_flight -= 1
            self.input_tokens += event.input_tokens
            self.output_tokens += event.output_tokens
            self.ended_s = event.at_s
            if event.latency_s > self.longest_s:
                self.longest_s = event.latency_s
            if event.error is not None:
                self.errors[event.error] += 1
                self._judge_endpoint(event.error, event.at_s)
            elif self.failures_in_a_row:
                self.failures_in_a_row, self.failing_since_s = 0, math.inf
        elif isinstance(event, RowsSaved):
            self.succeeded += event.succeeded
            self.failed += event.failed
            if event.flawed:
                self.flawed.update(event.flawed)
        elif isinstance(event, RetryScheduled):
            self.retrying += 1
            if self.on_wait is not None:
                self.on_wait()
        elif isinstance(event, RetryStarted):
            self.retrying -= 1
        elif isinstance(event, RequestRepeated):
            self.repeated += 1
        elif isinstance(event, EndpointParked):
            self.parked_until_s = event.at_s + event.for_s
        elif isinstance(event, EndpointLost):
            self._lost, self._down_since_s = event, event.at_s
        elif isinstance(event, EndpointBack):
            if self._down_since_s is not None:
                self._lost_s += event.at_s - self._down_since_s
            self._down_since_s = None
        elif isinstance(event, CacheAsked):
            self.cache = use = self.cache or CacheUse()
            use.count(event.found)

    def _judge_endpoint(self, error: str, at_s: float) -> None:
        if error in _OUT_OF_ORDER:
            self.failures_in_a_row += 1
            self.failing_since_s = min(self.failing_since_s, at_s)
        elif error != "cancelled":
            self.failures_in_a_row, self.failing_since_s = 0, math.inf
