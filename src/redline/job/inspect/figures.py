"""Some lines of an output in numbers: how they ended, their tokens, cost and latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from redline.calls.cost import DOLLAR
from redline.job.inspect.calls import Calls, CallsBySource
from redline.job.inspect.cost import Billing, Cost
from redline.job.inspect.latencies import Latencies
from redline.job.inspect.lines import Line
from redline.job.inspect.names import OTHERS, count_name, known_or_others

_LONGEST_MESSAGE = 1000


class Ending(msgspec.Struct):
    """Rows that ended in one way. example: the first of them; message: its error, if any."""

    example: str
    message: str = ""
    rows: int = 0


class Figures:
    """Adds up lines.

    reasons: results by finish reason, None for one without. errors: failures by kind and HTTP
    status. calls: results by their source. latencies: of results that were answered live. verdicts:
    graded answers, by verdict. dropped: texts that were not kept, by the reason. reasks: None if no
    line states them. unreadable: lines of which only the row is known.
    """

    def __init__(self, billing: Billing) -> None:
        self._billing = billing
        self.succeeded = self.failed = self.cut = self.unreadable = 0
        self.reasons: dict[str | None, Ending] = {}
        self.errors: dict[tuple[str, int | None], Ending] = {}
        self.calls = CallsBySource()
        self.latencies = Latencies()
        self.verdicts: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.reasks: int | None = None

    @property
    def rows(self) -> int:
        return self.succeeded + self.failed

    @property
    def cached(self) -> int:
        """Results from the cache."""
        return sum(each.answers for each in self.calls.values() if each.is_cached)

    @property
    def batched(self) -> int:
        """Results from batches."""
        return sum(each.answers for each in self.calls.values() if each.is_batched)

    @property
    def models(self) -> dict[str, int]:
        """Results by the model that has answered."""
        return _summed((each.model, each.answers) for each in self.calls.values())

    @property
    def endpoints(self) -> dict[str, int]:
        """Results by endpoint, without those from the cache."""
        return _summed((each.endpoint, each.answers) for each in self._asked())

    @property
    def input_tokens(self) -> int:
        """Input tokens of results, as their usage states them.

        Cached answers are left out: their usage is what they cost when they were given.
        """
        return sum(each.input_tokens for each in self._asked())

    @property
    def output_tokens(self) -> int:
        """Output tokens of results, as their usage states them; cached answers are left out."""
        return sum(each.output_tokens for each in self._asked())

    @property
    def stated(self) -> int:
        """Results that state their tokens, without those from the cache."""
        return sum(each.answers - each.unstated for each in self._asked())

    @property
    def unstated(self) -> int:
        """Results that do not state their tokens, without those from the cache."""
        return sum(each.unstated for each in self._asked())

    @property
    def cost(self) -> Cost:
        """The cost of the results."""
        return self._billing.cost(self.calls.values())

    def add_result(self, line: Line | None) -> None:
        """Adds a result; None for one that cannot be read, of which only the row is known."""
        self.succeeded += 1
        if line is None:
            self.unreadable += 1
            return
        reason = known_or_others(self.reasons, line.reason)
        ending = self.reasons.get(reason)
        if ending is None:
            ending = self.reasons[reason] = Ending(example=line.name)
        ending.rows += 1
        self.cut += line.is_cut
        self.calls[line.endpoint, line.model, line.cached, line.batched].add(line)
        if not (line.cached or line.batched):
            self.latencies.add(line.latency_s)
        if line.is_of_task:
            self._add_task(line)

    def add_failure(self, line: Line | None) -> None:
        """Adds a failure; None for one that cannot be read."""
        self.failed += 1
        if line is None or line.error is None:
            self.unreadable += 1
            return
        kind = (line.error.kind, line.error.status)
        kind = kind if known_or_others(self.errors, kind) == kind else (OTHERS, None)
        ending = self.errors.get(kind)
        if ending is None:
            message = line.error.message[:_LONGEST_MESSAGE]
            ending = self.errors[kind] = Ending(example=line.name, message=message)
        ending.rows += 1
        if line.is_of_task:
            self._add_task(line)

    def _asked(self) -> list[Calls]:
        return [each for each in self.calls.values() if not each.is_cached]

    def _add_task(self, line: Line) -> None:
        if isinstance(line.verdict, str):
            count_name(self.verdicts, line.verdict)
        if isinstance(line.reasks, int):
            self.reasks = (self.reasks or 0) + line.reasks
        for reason in line.dropped if isinstance(line.dropped, list) else ():
            if isinstance(reason, str):
                count_name(self.dropped, reason)

    def as_fields(self) -> dict[str, Any]:
        """Returns the figures as JSON fields, for programs: units are in the names.

        Fields of the cache, batches, tasks and unreadable lines are left out if they are empty.
        """
        latencies, cost = self.latencies, self.cost
        latency_s = {
            "p50": latencies.at_s(0.5),
            "p95": latencies.at_s(0.95),
            "max": latencies.most_s,
        }
        fields: dict[str, Any] = {
            "rows": self.rows,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "cut": self.cut,
            "finish_reasons": {str(name or ""): kind.rows for name, kind in self.reasons.items()},
            "errors": [
                {"kind": kind, "status": status, **msgspec.to_builtins(found)}
                for (kind, status), found in self.errors.items()
            ],
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": cost.picodollars / DOLLAR if cost.priced else None,
            "priced": cost.priced,
            "unpriced": cost.unpriced,
            "latency_s": latency_s if latencies.count else None,
            "endpoints": self.endpoints,
            "models": self.models,
        }
        others = {
            "cached": self.cached,
            "batched": self.batched,
            "verdicts": self.verdicts,
            "dropped": self.dropped,
            "unreadable": self.unreadable,
        }
        fields.update((name, value) for name, value in others.items() if value)
        return fields if self.reasks is None else {**fields, "reasks": self.reasks}


def _summed(pairs: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    """Returns the sums by name, without those of no name."""
    sums: Counter[str] = Counter()
    for name, number in pairs:
        if name:
            sums[name] += number
    return dict(sums)
