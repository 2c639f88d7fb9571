"""Counts of one run: of its attempts, its rows and its endpoint's troubles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter

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

# By what rows are counted: quicker than to look which of them count.
_ANSWER = attrgetter("status", "is_cached", "endpoint")
# Endpoints that are counted apart, and the name under which further ones count together.
MOST_PARTS = 100
OTHER = "other"


class BatchUse(msgspec.Struct):
    """What went by the Batch API. made: batches by this run. running: batches now, with their rows.

    states: how many of these are in each, by the provider's words. finished: rows of them that it
    says have an answer or an error. answered: rows with a result by this run. again: rows that went
    into another batch.
    """

    made: int = 0
    running: int = 0
    rows: int = 0
    answered: int = 0
    again: int = 0
    states: dict[str, int] = {}
    finished: int = 0


class Outages(msgspec.Struct, frozen=True):
    """Times in which an endpoint took no connections, or failed and got few calls.

    lasted_s: of all of them together. down_s: of the present one, 0 if there is none. reason: why
    no connection came about, or with what it failed, the last time.
    """

    endpoint: str
    reason: str
    lasted_s: float
    down_s: float


class EndpointUse(msgspec.Struct, frozen=True, kw_only=True):
    """One of several endpoints. answered: rows with a result of it, without the cache's.

    out: why it was taken out of the run, None if it was not. outages: times without connections,
    failing: times in which it failed and got few calls; None if there was none.
    """

    name: str
    answered: int = 0
    out: str | None = None
    outages: Outages | None = None
    failing: Outages | None = None


class _Outage:
    """One endpoint's outages: the last one, since when it lasts, the time of earlier ones."""

    def __init__(self, lost: EndpointLost | EndpointDegraded) -> None:
        self._lost = lost
        self._lost_s = 0.0
        self._since_s: float | None = lost.at_s

    @property
    def is_down(self) -> bool:
        return self._since_s is not None

    def again(self, lost: EndpointLost | EndpointDegraded) -> None:
        self._lost = lost
        if self._since_s is None:
            self._since_s = lost.at_s

    def over(self, now_s: float) -> None:
        if self._since_s is not None:
            self._lost_s += now_s - self._since_s
        self._since_s = None

    def read(self, now_s: float) -> Outages:
        down_s = 0.0 if self._since_s is None else now_s - self._since_s
        return Outages(self._lost.endpoint, self._lost.reason, self._lost_s + down_s, down_s)


class _Part(Attempts):
    """Attempts at one endpoint, which count in the whole as well."""

    def __init__(self, whole: Attempts) -> None:
        super().__init__()
        self._whole = whole

    def retried(self) -> None:
        super().retried()
        self._whole.retried()

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
    """What progress and summary show; all counts are of this process's run. A Listener.

    parts: attempts by endpoint, of a run that counts them apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.retrying = 0
        self.repeated = 0
        self.last_error = ""  # in words, of an attempt that failed
        self._new_error = ""
        self.succeeded = 0
        self.failed = 0
        self.flawed: Counter[str] = Counter()  # of those that succeeded
        self.out: dict[str, EndpointOut] = {}  # endpoints that take no more calls
        self._names: list[str] = []  # of several endpoints
        self._answered: Counter[tuple[str, bool, str]] = Counter()  # rows, see _ANSWER
        self._parked: dict[str, float] = {}  # until when, by endpoint
        self._outages: dict[str, _Outage] = {}
        self._failing: dict[str, _Outage] = {}  # degraded, by their breakers
        self.cache_use = CacheUse()
        self.batches: BatchUse | None = None  # of a run that has some
        self.batch_look_s: float | None = None  # when one of them is looked at next
        self.parts: dict[str, Attempts] = {}

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

    @property
    def parked_until_s(self) -> float:
        """When an endpoint may be asked again, if all of those that are left asked to wait."""
        left = self._left()
        if any(name not in self._parked for name in left):
            return 0.0
        return min((self._parked[name] for name in left or self._parked), default=0.0)

    @property
    def down(self) -> list[str]:
        """Endpoints that take no connections at the moment."""
        return [name for name, outage in self._outages.items() if outage.is_down]

    @property
    def degraded(self) -> list[str]:
        """Endpoints that fail at the moment, of those that are left."""
        return [name for name in self._left() if (one := self._failing.get(name)) and one.is_down]

    @property
    def is_all_down(self) -> bool:
        """Whether no endpoint that is left takes connections."""
        down = self.down
        return bool(down) and all(name in down for name in self._left())

    def expect(self, names: Iterable[str]) -> None:
        """The run has these endpoints, several of them."""
        self._names = list(names)

    def part(self, name: str) -> Attempts:
        """Counts attempts at the endpoint of this name apart, and here.

        Beyond MOST_PARTS, endpoints count together as OTHER.
        """
        if name not in self.parts and len(self.parts) >= MOST_PARTS:
            name = OTHER
        return self.parts.setdefault(name, _Part(self))

    def outages(self, now_s: float) -> Outages | None:
        """The outages so far of the endpoint with the longest; None if there was none."""
        found = [outage.read(now_s) for outage in self._outages.values()]
        return max(found, key=lambda one: (one.down_s, one.lasted_s), default=None)

    def failing(self, now_s: float) -> Outages | None:
        """The endpoint that has failed for longest of those that do now; None if none does."""
        found = [self._failing[name].read(now_s) for name in self.degraded]
        return max(found, key=lambda one: one.down_s, default=None)

    def endpoints(self, now_s: float) -> list[EndpointUse]:
        """The state and counts of each of several endpoints; empty for a run with one."""
        return [
            EndpointUse(
                name=name,
                answered=self._answered["succeeded", False, name],
                out=self.out[name].reason if name in self.out else None,
                outages=self._outages[name].read(now_s) if name in self._outages else None,
                failing=self._failing[name].read(now_s) if name in self._failing else None,
            )
            for name in self._names
        ]

    def rows_saved(self, succeeded: int, failed: int, flawed: Mapping[str, int]) -> None:
        """Rows are on disk, or passed on. flawed: successes with such an answer, by flaw."""
        self.succeeded += succeeded
        self.failed += failed
        if flawed:
            self.flawed.update(flawed)

    def rows_answered(self, rows: Iterable[Brief]) -> None:
        """Counts them by endpoint, if there are several."""
        if self._names:
            self._answered.update(map(_ANSWER, rows))

    def begin_batches(self) -> BatchUse:
        """The run goes by batches, which are counted there."""
        self.batches = BatchUse()
        return self.batches

    def look_at(self, due_s: float | None) -> None:
        """A batch is looked at then, by the monotonic clock; None if none is running."""
        self.batch_look_s = due_s

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
            self.last_error = self._new_error = event.what
        elif isinstance(event, RetryStarted):
            self.retrying -= 1
        elif isinstance(event, RequestRepeated):
            self.repeated += 1
        elif isinstance(event, EndpointParked):
            self._parked[event.endpoint] = event.at_s + event.for_s
        elif isinstance(event, EndpointLost):
            if event.endpoint in self._outages:
                self._outages[event.endpoint].again(event)
            else:
                self._outages[event.endpoint] = _Outage(event)
        elif isinstance(event, EndpointBack):
            if event.endpoint in self._outages:
                self._outages[event.endpoint].over(event.at_s)
        elif isinstance(event, EndpointDegraded):
            if event.endpoint in self._failing:
                self._failing[event.endpoint].again(event)
            else:
                self._failing[event.endpoint] = _Outage(event)
        elif isinstance(event, EndpointRecovered):
            if event.endpoint in self._failing:
                self._failing[event.endpoint].over(event.at_s)
        elif isinstance(event, EndpointOut):
            self.out[event.endpoint] = event

    def take_error(self) -> str:
        """The last error in words since this was asked last; empty if there was none."""
        error, self._new_error = self._new_error, ""
        return error

    def _left(self) -> list[str]:
        """The names of the endpoints that still take calls, if there are several."""
        return [name for name in self._names if name not in self.out]
