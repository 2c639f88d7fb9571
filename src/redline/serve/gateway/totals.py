"""What a gateway counts of its calls: plain integers, which its pages read."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

# Shown on the dashboard.
_KEPT_FAULTS = 50
# A name that clients make up must not become a label of its own.
OTHER = "other"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A call that failed. at_s: seconds since the epoch. endpoint: empty if none had it."""

    at_s: float
    status: int
    what: str
    model: str = ""
    tenant: str = ""
    endpoint: str = ""


class Totals:
    """Counts since the start.

    answers: by model, class and HTTP status. tokens: by model and `input` or `output`. faults: the
    last calls that failed.
    """

    def __init__(self) -> None:
        self.answers = Counter[tuple[str, str, int]]()
        self.tokens = Counter[tuple[str, str]]()
        self.faults = deque[Fault](maxlen=_KEPT_FAULTS)

    def answered(self, model: str, klass: str, status: int) -> None:
        """A call of this class has its answer."""
        self.answers[model, klass, status] += 1

    def used(self, model: str, read: int, written: int) -> None:
        """An answer took these tokens."""
        self.tokens[model, "input"] += read
        self.tokens[model, "output"] += written

    def failed(self, fault: Fault) -> None:
        """Keeps it among the last ones."""
        self.faults.append(fault)
