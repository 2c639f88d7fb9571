"""Counts of one run: of its attempts, its rows and its endpoint's troubles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from redline.calls import Reply
from redline.events import (
    EndpointBack,
    EndpointLost,
    EndpointParked,
    Event,
    RequestRepeated,
    RetryScheduled,
    RetryStarted,
)
from redline.waist import Attempts, CacheUse


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


class Tally(Attempts):
    """What progress and summary show; all counts are of this process's run. A Listener."""

    def __init__(self) -> None:
        super().__init__()
        self.retrying = 0
        self.repeated = 0
        self.succeeded = 0
        self.failed = 0
        self.flawed: Counter[str] = Counter()  # of those that succeeded
        self.parked_until_s = 0.0
        # The last outage, with the time of those before it, and since when it lasts.
        self._lost: EndpointLost | None = None
        self._lost_s = 0.0
        self._down_since_s: float | None = None
        self.cache_use = CacheUse()
        self.batches: BatchUse | None = None  # of a run that has some

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

    @property
    def cache(self) -> CacheUse | None:
        """None until the first row asks it."""
        return self.cache_use if self.cache_use.asked else None

    def outages(self, now_s: float) -> Outages | None:
        """Those so far; None if there was none."""
        if self._lost is None:
            return None
        down_s = 0.0 if self._down_since_s is None else now_s - self._down_since_s
        return Outages(self._lost.endpoint, self._lost.reason, self._lost_s + down_s, down_s)

    def rows_saved(self, succeeded: int, failed: int, flawed: Mapping[str, int]) -> None:
        """Rows are on disk, or handed on. flawed: successes with such an answer, by flaw."""
        self.succeeded += succeeded
        self.failed += failed
        if flawed:
            self.flawed.update(flawed)

    def begin_batches(self) -> BatchUse:
        """The run goes by batches, which are counted there."""
        self.batches = BatchUse()
        return self.batches

    def batch_answered(self, reply: Reply | None) -> None:
        """A row has its outcome from a batch, maybe with a reply."""
        if self.batches is not None:
            self.batches.answered += 1
        if reply is not None:
            self.input_tokens += reply.input_tokens or 0
            self.output_tokens += reply.output_tokens or 0

    def batch_failed(self, error: str) -> None:
        """A row in a batch ended with an error of this kind; it may be sent again."""
        self.errors[error] += 1

    def on_event(self, event: Event) -> None:
        if isinstance(event, RetryScheduled):
            self.retrying += 1
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
