"""Counts a gateway's calls and tokens, for its dashboard and metrics."""

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

# The number of failed calls on the dashboard, and the characters shown of each error.
_KEPT_FAULTS = 50
_LONGEST_FAULT = 500
# The label of models that are not in the settings, so that clients cannot add labels.
OTHER = "other"
# The status of a call whose client disconnected before its outcome; nginx uses the same number.
LEFT = "499"
# The status of a call cut off at shutdown because the time for calls in flight was over.
CUT = "cut"
_LATER = ("429", "503")


class Durations:
    """Counts durations in the buckets of a histogram. counts: one per bucket, not cumulative."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, value_s: float) -> None:
        """Adds one value."""
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self._sum_s += value_s

    def histogram(self) -> Histogram:
        """Returns the histogram in Prometheus' form: each count includes the buckets below it."""
        return Histogram(tuple(accumulate(self.counts)), self._sum_s)


class Asking(msgspec.Struct, kw_only=True):
    """The labels under which a call is counted, and its use of the cache.

    asked: the model in the request. model: the same if it is in the settings, otherwise `other`.
    began_s: its arrival, in monotonic seconds. is_anew: it bypasses the cache. renews: its answer
    replaces the stored one. is_over: the call has been counted.
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
    """The calls and tokens of a tenant.

    refused: calls refused before admission, for example because of a limit of the tenant.
    """

    calls: int = 0
    refused: int = 0
    tokens: int = 0


class Totals:
    """Counts of calls and of lines of batches since the start.

    answers: by model, class and status (of HTTP, or LEFT or CUT). tokens: by model and `input` or
    `output`. durations: from a call's arrival to the end of its answer, by class. tenants: by name.
    faults: the last failed calls. Durations and faults do not include lines.
    """

    def __init__(self) -> None:
        self.answers = Counter[tuple[str, str, str]]()
        self.tokens = Counter[tuple[str, str]]()
        self.durations = defaultdict[str, Durations](Durations)
        self.tenants = defaultdict[str, TenantCounts](TenantCounts)
        self.faults = deque[Event](maxlen=_KEPT_FAULTS)

    def answered(self, asking: Asking, status: int | str) -> None:
        """Counts a call that ended with this HTTP status, LEFT or CUT; only once per call."""
        if asking.is_over:
            return
        asking.is_over = True
        klass = asking.klass
        self.answers[asking.model, klass, str(status)] += 1
        self.durations[klass].add(SYSTEM.now_s() - asking.began_s)
        self.tenants[asking.tenant.name].calls += 1

    def used(self, asking: Asking, read: int, written: int) -> None:
        """Adds the tokens of an answer. read: its input tokens; written: its output tokens."""
        self._add_tokens(asking.tenant.name, asking.model, read, written)

    def line(self, tenant: str, model: str, klass: str, outcome: Outcome) -> None:
        """Counts one attempt at a line of a batch."""
        self.answers[model, klass, str(status_of(outcome))] += 1
        self.tenants[tenant].calls += 1
        reply = outcome.reply
        if reply is not None:
            self._add_tokens(tenant, model, reply.input_tokens or 0, reply.output_tokens or 0)

    def refused(self, asking: Asking, refusal: Refusal) -> None:
        """Counts a call refused before admission, and adds it to the list of failed calls."""
        self.answered(asking, refusal.status)
        self.tenants[asking.tenant.name].refused += 1
        self.failed(asking, refusal.status, str(refusal))

    def failed(self, asking: Asking, status: int, what: str, endpoint: str = "") -> None:
        """Adds the call to the list of the last failed calls."""
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
        """The number of finished calls, except those with 429 or 503, which should be retried."""
        later = sum(count for (*_, kind), count in self.answers.items() if kind in _LATER)
        return self.answers.total() - later

    @property
    def cut(self) -> int:
        """The number of calls that were cut off at shutdown."""
        return sum(count for (*_, kind), count in self.answers.items() if kind == CUT)

    def _add_tokens(self, tenant: str, model: str, read: int, written: int) -> None:
        self.tokens[model, "input"] += read
        self.tokens[model, "output"] += written
        self.tenants[tenant].tokens += read + written

    def buckets(self) -> tuple[int, ...]:
        """Returns the number of durations in each bucket of the histogram, over all classes."""
        each = [durations.counts for durations in self.durations.values()]
        return tuple(map(sum, zip(*each, strict=True))) or (0,) * (len(BOUNDS_S) + 1)
