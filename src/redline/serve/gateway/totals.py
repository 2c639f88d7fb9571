"""What a gateway counts of its calls: plain integers, which its pages read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque

import msgspec

from redline.job.monitor import BOUNDS_S, Histogram

# Shown on the dashboard.
_KEPT_FAULTS = 50
# A name that clients make up must not become a label of its own.
OTHER = "other"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A call that failed. at_s: seconds since the epoch. endpoint: empty if none had it."""

    at_s: float
    status: int
    what: str
    request_id: str = ""
    model: str = ""
    tenant: str = ""
    endpoint: str = ""


class Durations:
    """Durations by the bounds of a histogram."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, value_s: float) -> None:
        """One more."""
        self._counts[bisect_left(BOUNDS_S, value_s)] += 1
        self._sum_s += value_s

    @property
    def counts(self) -> list[int]:
        """How many were in each bucket, not to be changed."""
        return self._counts

    def histogram(self) -> Histogram:
        """As Prometheus has it: each bound counts all that are not above it."""
        counts, so_far = [], 0
        for count in self._counts:
            so_far += count
            counts.append(so_far)
        return Histogram(tuple(counts), self._sum_s)


class Totals:
    """Counts since the start.

    answers: by model, class and HTTP status. tokens: by model and `input` or `output`. durations:
    from a call's arrival to the end of its answer, by class. faults: the last calls that failed.
    """

    def __init__(self) -> None:
        self.answers = Counter[tuple[str, str, int]]()
        self.tokens = Counter[tuple[str, str]]()
        self.durations: dict[str, Durations] = {}
        self.faults = deque[Fault](maxlen=_KEPT_FAULTS)

    def answered(self, model: str, klass: str, status: int, took_s: float) -> None:
        """A call of this class is over, with this status."""
        self.answers[model, klass, status] += 1
        durations = self.durations.get(klass)
        if durations is None:
            durations = self.durations[klass] = Durations()
        durations.add(took_s)

    def used(self, model: str, read: int, written: int) -> None:
        """An answer took these tokens."""
        self.tokens[model, "input"] += read
        self.tokens[model, "output"] += written

    def buckets(self) -> tuple[int, ...]:
        """Durations of all classes, by the bounds of a histogram."""
        each = [durations.counts for durations in self.durations.values()]
        return tuple(map(sum, zip(*each, strict=True))) or (0,) * (len(BOUNDS_S) + 1)

    def failed(self, fault: Fault) -> None:
        """Keeps it among the last ones."""
        self.faults.append(fault)
