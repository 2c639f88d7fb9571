"""Counters of a gateway's calls: plain integers, which its pages read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from itertools import accumulate

import msgspec

from redline.clock import SYSTEM
from redline.job.monitor import BOUNDS_S, Histogram
from redline.serve.dashboard import Event
from redline.serve.http import Refusal, status_of
from redline.serve.keys import Tenant
from redline.waist import Outcome

# Shown on the dashboard.
_KEPT_FAULTS = 50
_LONGEST_FAULT = 500
# The label of models that the settings do not name: clients must not be able to add labels.
OTHER = "other"
# The status of a call whose client has left before its outcome; nginx uses the same number.
LEFT = "499"
# The status of a call that was cut off at a shutdown, when the time for calls in flight was over.
CUT = "cut"
_LATER = ("429", "503")


class Durations:
    """Durations in the buckets of a histogram. counts: by bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, value_s: float) -> None:
        """Adds one value."""
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self._sum_s += value_s

    def histogram(self) -> Histogram:
        """The histogram in Prometheus' form: each bound counts all values up to it."""
        return Histogram(tuple(accumulate(self.counts)), self._sum_s)


class Asking(msgspec.Struct, kw_only=True):
    """One call, as it is counted.

    asked: the model that the client named. model: the same if the settings name it, otherwise
    `other`. is_anew: it bypasses the cache. renews: its answer replaces the stored one. is_over: it
    has been counted.
    """

    tenant: Tenant
    asked: str | None
    model: str
    klass: str
    request_id: str
    began_s: float
    is_anew: bool
    renews: bool
    is_over: bool = False


class TenantCounts(msgspec.Struct):
    """The calls of a tenant. refused: calls that were not passed on."""

    calls: int = 0
    refused: int = 0
    tokens: int = 0


class Totals:
    """Counts since the start, of calls and of lines of batches.

    answers: by model, class and HTTP status, or LEFT or CUT. tokens: by model and `input` or
    `output`. durations: from a call's arrival to the end of its answer, by class, without lines.
    tenants: by name. faults: the last calls that failed, without lines.
    """

    def __init__(self) -> None:
        self.answers = Counter[tuple[str, str, str]]()
        self.tokens = Counter[tuple[str, str]]()
        self.durations = defaultdict[str, Durations](Durations)
        self.tenants = defaultdict[str, TenantCounts](TenantCounts)
        self.faults = deque[Event](maxlen=_KEPT_FAULTS)

    def answered(self, asking: Asking, status: int | str) -> None:
        """Counts a call, once, that ended with this HTTP status, or with LEFT or CUT."""
        if asking.is_over:
            return
        asking.is_over = True
        klass = asking.klass
        self.answers[asking.model, klass, str(status)] += 1
        self.durations[klass].add(SYSTEM.now_s() - asking.began_s)
        self.tenants[asking.tenant.name].calls += 1

    def used(self, asking: Asking, read: int, written: int) -> None:
        """Adds the tokens of an answer. read: input tokens. written: output tokens."""
        self._add_tokens(asking.tenant.name, asking.model, read, written)

    def line(self, tenant: str, model: str, klass: str, outcome: Outcome) -> None:
        """Counts an attempt of a line of a batch."""
        self.answers[model, klass, str(status_of(outcome))] += 1
        self.tenants[tenant].calls += 1
        reply = outcome.reply
        if reply is not None:
            self._add_tokens(tenant, model, reply.input_tokens or 0, reply.output_tokens or 0)

    def refused(self, asking: Asking, refusal: Refusal) -> None:
        """Counts a call that was not passed on."""
        self.answered(asking, refusal.status)
        self.tenants[asking.tenant.name].refused += 1
        self.failed(asking, refusal.status, str(refusal))

    def failed(self, asking: Asking, status: int, what: str, endpoint: str = "") -> None:
        """Keeps the call in the list of the last failed ones."""
        fault = Event(
            at_s=SYSTEM.wall_s(),
            status=status,
            what=what[:_LONGEST_FAULT],
            request_id=asking.request_id,
            model=asking.model,
            tenant=asking.tenant.name,
            endpoint=endpoint,
        )
        self.faults.append(fault)

    @property
    def given(self) -> int:
        """Answers, without those that ask the client to retry later."""
        later = sum(count for (*_, kind), count in self.answers.items() if kind in _LATER)
        return self.answers.total() - later

    @property
    def cut(self) -> int:
        """Calls that were cut off at the end."""
        return sum(count for (*_, kind), count in self.answers.items() if kind == CUT)

    def _add_tokens(self, tenant: str, model: str, read: int, written: int) -> None:
        self.tokens[model, "input"] += read
        self.tokens[model, "output"] += written
        self.tenants[tenant].tokens += read + written

    def buckets(self) -> tuple[int, ...]:
        """The durations of all classes, by the buckets of the histogram."""
        each = [durations.counts for durations in self.durations.values()]
        return tuple(map(sum, zip(*each, strict=True))) or (0,) * (len(BOUNDS_S) + 1)
