"""Counts the attempts, rows and endpoint outages of one run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from redline.calls import Reply
from redline.events import (
    EndpointBack,
    EndpointDegraded,
    EndpointLost,
    EndpointOut,
    EndpointParked,
    EndpointRecovered,
    Event,
    RequestRepeated,
    RetryScheduled,
    RetryStarted,
)
from redline.journal import Brief
from redline.waist import Attempts, CacheUse

# The most endpoints that are counted separately, and the name under which the rest are counted.
MOST_PARTS = 100
OTHER = "other"


class BatchUse(msgspec.Struct):
    """Counts a run's use of the Batch API.

    made: batches created in this run. running: batches that are at the provider now. rows: rows in
    the running batches. finished: how many of these rows have an answer or an error, according to
    the provider. states: the number of running batches in each state; "refused" counts the parts
    for which the provider accepts no batch. answered: rows that got their outcome from a batch in
    this run. again: rows that went into another batch.
    """

    made: int = 0
    running: int = 0
    rows: int = 0
    answered: int = 0
    again: int = 0
    states: dict[str, int] = {}
    finished: int = 0


class Outages(msgspec.Struct, frozen=True):
    """Sums up the times when an endpoint accepted no connections, or failed and got few calls.

    lasted_s: seconds of all outages together. down_s: seconds of the current outage, 0 if there is
    none. reason: the error of the latest outage.
    """

    endpoint: str
    reason: str
    lasted_s: float
    down_s: float


class EndpointUse(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the use of one of several endpoints.

    answered: rows that the endpoint answered, not counting cached answers. out: why the endpoint
    was taken out of the run; None if it was not. outages: when it accepted no connections; None if
    that never happened. failing: when it failed and got few calls; None if it never did.
    """

    name: str
    answered: int = 0
    out: str | None = None
    outages: Outages | None = None
    failing: Outages | None = None


@dataclass(eq=False, repr=False)
class _Outage:
    """Adds up one endpoint's outages. since_s: when the current one began; inf if there is none."""

    _lost: EndpointLost | EndpointDegraded | None = None
    _lost_s: float = 0.0
    since_s: float = math.inf

    @property
    def is_down(self) -> bool:
        return self.since_s < math.inf

    def begin(self, lost: EndpointLost | EndpointDegraded) -> None:
        self._lost = lost
        self.since_s = min(self.since_s, lost.at_s)

    def end(self, now_s: float) -> None:
        self._lost_s += max(0.0, now_s - self.since_s)
        self.since_s = math.inf

    def read(self, now_s: float) -> Outages | None:
        """Returns the outages up to now; None if there was none."""
        if self._lost is None:
            return None
        down_s = max(0.0, now_s - self.since_s)
        return Outages(self._lost.endpoint, self._lost.reason, self._lost_s + down_s, down_s)


class _Part(Attempts):
    """Counts the attempts at one endpoint, and passes them on to the counter of the whole run."""

    def __init__(self, whole: Attempts) -> None:
        super().__init__()
        self._whole = whole

    def retried(self) -> None:
        super().retried()
        self._whole.retried()

    def failed_over(self) -> None:
        super().failed_over()
        self._whole.failed_over()

    def started(self) -> None:
        super().started()
        self._whole.started()

    def ended(
        self,
        now_s: float,
        latency_s: float,
        error: str | None,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        super().ended(now_s, latency_s, error, input_tokens, output_tokens)
        self._whole.ended(now_s, latency_s, error, input_tokens, output_tokens)


class Tally(Attempts):
    """Keeps the counts of one run in this process, for progress and summary. A Listener.

    parts: counters of attempts by endpoint name; empty if the run does not count them separately.
    """

    def __init__(self) -> None:
        super().__init__()
        self.retrying = 0
        self.repeated = 0
        self._new_error = ""  # the message of the latest error that is retried
        self.succeeded = 0
        self.failed = 0
        self.flawed: Counter[str] = Counter()  # flawed successes, by flaw
        self.out: dict[str, EndpointOut] = {}  # endpoints that get no more calls
        self._names: list[str] = []  # of the endpoints, if there are several
        self._answered: Counter[str] = Counter()  # rows, by endpoint
        self._parked: dict[str, float] = {}  # the monotonic time when the wait ends, by endpoint
        self._outages: dict[str, _Outage] = defaultdict(_Outage)
        self._failing: dict[str, _Outage] = defaultdict(_Outage)  # when endpoints were degraded
        self.cache_use = CacheUse()
        self.batches: BatchUse | None = None  # None for a run without batches
        self.batch_look_s: float | None = None  # when a batch is checked next; see `look_at`
        self.parts: dict[str, Attempts] = {}

    @property
    def saved(self) -> int:
        return self.succeeded + self.failed

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def rate_limited(self) -> int:
        """The number of attempts that ended with RateLimited, such as HTTP 429."""
        return self.errors["rate_limited"]

    @property
    def failures(self) -> dict[str, int]:
        """The number of failed attempts by error kind, most frequent first; without `cancelled`."""
        return {kind: count for kind, count in self.errors.most_common() if kind != "cancelled"}

    @property
    def cache(self) -> CacheUse | None:
        """The use of the cache; None until the first lookup."""
        return self.cache_use if self.cache_use.asked else None

    @property
    def parked_until_s(self) -> float:
        """The monotonic time when the first wait ends, if all endpoints asked for one; otherwise 0.

        The time may have passed. Endpoints that were taken out of the run do not count.
        """
        left = self._left()
        if any(name not in self._parked for name in left):
            return 0.0
        return min((self._parked[name] for name in left or self._parked), default=0.0)

    @property
    def down(self) -> list[str]:
        """The endpoints that currently accept no connections."""
        return [name for name, outage in self._outages.items() if outage.is_down]

    @property
    def degraded(self) -> list[str]:
        """The endpoints that are currently failing, except those taken out of the run."""
        return [name for name in self._left() if self._failing[name].is_down]

    @property
    def is_all_down(self) -> bool:
        """Whether none of the endpoints that are left in the run accepts connections."""
        down = self.down
        return bool(down) and all(name in down for name in self._left())

    def expect(self, names: Iterable[str]) -> None:
        """Sets the names of the run's endpoints, if there are several."""
        self._names = list(names)

    def part(self, name: str) -> Attempts:
        """Returns the counter of one endpoint's attempts, which this tally counts as well.

        Beyond MOST_PARTS endpoints, all others share the counter OTHER.
        """
        if name not in self.parts and len(self.parts) >= MOST_PARTS:
            name = OTHER
        return self.parts.setdefault(name, _Part(self))

    def outages(self, now_s: float) -> Outages | None:
        """Returns the outages of the endpoint that has been down longest; None if there were none.

        If no endpoint is down now, returns the outages of the endpoint that was down for the most
        seconds in total.
        """
        found = [outage.read(now_s) for outage in self._outages.values()]
        happened = [one for one in found if one is not None]
        return max(happened, key=lambda one: (one.down_s, one.lasted_s), default=None)

    def failing(self, now_s: float) -> Outages | None:
        """Returns the outages of the endpoint that has been degraded longest; None if none is."""
        longest = min(self.degraded, key=lambda name: self._failing[name].since_s, default=None)
        return None if longest is None else self._failing[longest].read(now_s)

    def endpoints(self, now_s: float) -> list[EndpointUse]:
        """Returns the use of each of several endpoints; empty for a run with a single endpoint."""
        return [
            EndpointUse(
                name=name,
                answered=self._answered[name],
                out=self.out[name].reason if name in self.out else None,
                outages=self._outages[name].read(now_s),
                failing=self._failing[name].read(now_s),
            )
            for name in self._names
        ]

    def rows_saved(self, succeeded: int, failed: int, flawed: Mapping[str, int]) -> None:
        """Counts rows that are on disk, or were passed on to the caller.

        flawed: the number of flawed successes, by flaw.
        """
        self.succeeded += succeeded
        self.failed += failed
        if flawed:
            self.flawed.update(flawed)

    def rows_answered(self, rows: Iterable[Brief]) -> None:
        """Counts rows by the endpoint that answered them, if there are several endpoints."""
        if self._names:
            self._answered.update(
                [row.endpoint for row in rows if row.status == "succeeded" and not row.is_cached]
            )

    def begin_batches(self) -> BatchUse:
        """Starts counting the batches of a run; returns their counter."""
        self.batches = BatchUse()
        return self.batches

    def look_at(self, due_s: float | None) -> None:
        """Sets the monotonic time when a batch is checked next; None if no batch is running."""
        self.batch_look_s = due_s

    def batch_answered(self, reply: Reply | None) -> None:
        """Counts a row that got its outcome from a batch. reply: None for an error."""
        if self.batches is not None:
            self.batches.answered += 1
        if reply is not None:
            self.input_tokens += reply.input_tokens or 0
            self.output_tokens += reply.output_tokens or 0

    def batch_failed(self, error: str) -> None:
        """Counts the error of a row in a batch; the row may be sent again. error: its kind."""
        self.errors[error] += 1

    def on_event(self, event: Event) -> None:
        match event:
            case RetryScheduled():
                self.retrying += 1
                self._new_error = event.what
            case RetryStarted():
                self.retrying -= 1
            case RequestRepeated():
                self.repeated += 1
            case EndpointParked():
                self._parked[event.endpoint] = event.at_s + event.for_s
            case EndpointLost():
                self._outages[event.endpoint].begin(event)
            case EndpointDegraded():
                self._failing[event.endpoint].begin(event)
            case EndpointBack():
                self._outages[event.endpoint].end(event.at_s)
            case EndpointRecovered():
                self._failing[event.endpoint].end(event.at_s)
            case EndpointOut():
                self.out[event.endpoint] = event

    def take_error(self) -> str:
        """Returns the message of the latest error retried since the last call, or ""."""
        error, self._new_error = self._new_error, ""
        return error

    def _left(self) -> list[str]:
        """Returns the names of the endpoints that still get calls; empty for a single endpoint."""
        return [name for name in self._names if name not in self.out]
