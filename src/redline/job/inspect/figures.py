"""Sums up the lines of an output: how the rows ended, and their tokens, cost and latency."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.apis import stated_tokens
from redline.calls.cost import DOLLAR
from redline.job.inspect.cost import Cost
from redline.job.inspect.lines import Line
from redline.job.inspect.names import OTHERS, count_name, known_or_others
from redline.timeline import Spread

_LONGEST_MESSAGE = 1000


class Ending(msgspec.Struct):
    """Counts the rows that ended in one way.

    example: the name of the first such row. message: its error message, empty for a success.
    """

    example: str
    message: str = ""
    rows: int = 0


class Figures:
    """Adds up the figures of lines.

    The first fields count lines. succeeded, failed: results and failures. cut: results cut at the
    token limit. cached, batched: results from the cache and from batches. unreadable: lines of
    which only the row's key is known. reasons: results by finish reason; None for a result without
    one. errors: failures by kind and HTTP status. models: results by the model that answered.
    verdicts: graded rows by verdict.

    The next fields leave out results from the cache, whose usage is that of the original answer.
    endpoints: results by endpoint. stated, unstated: results with and without a usage.
    input_tokens, output_tokens: totals of the usages. cost: of the results. latencies: of the
    results that did not come from batches either.

    dropped: the number of texts that `redline synth` did not keep, by reason. reasks: the
    requests that `redline tag` repeated because of an invalid answer; None if no line records them.
    """

    def __init__(self, cost: Cost) -> None:
        self.succeeded = self.failed = self.cut = self.unreadable = 0
        self.cached = self.batched = self.stated = self.unstated = 0
        self.input_tokens = self.output_tokens = 0
        self.reasons: dict[str | None, Ending] = {}
        self.errors: dict[tuple[str, int | None], Ending] = {}
        self.models: dict[str, int] = {}
        self.endpoints: dict[str, int] = {}
        self.cost = cost
        self.latencies = Spread()
        self.verdicts: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.reasks: int | None = None

    @property
    def rows(self) -> int:
        return self.succeeded + self.failed

    def add_result(self, line: Line | None) -> None:
        """Adds a result; None for a line that cannot be read."""
        self.succeeded += 1
        if line is None:
            self.unreadable += 1
            return
        reason = known_or_others(self.reasons, line.reason)
        self.reasons.setdefault(reason, Ending(line.name)).rows += 1
        self.cut += line.is_cut
        self.cached += line.cached
        self.batched += line.batched
        if line.model:
            count_name(self.models, line.model)
        if not line.cached:
            self._add_asked(line)
        if line.is_of_task:
            self._add_task(line)

    def _add_asked(self, line: Line) -> None:
        """Adds a result that came from an endpoint and not from the cache."""
        if line.endpoint:
            count_name(self.endpoints, line.endpoint)
        if not line.batched:
            self.latencies.add(line.latency_s)
        if line.usage is None:
            self.unstated += 1
        else:
            self.stated += 1
            read, written = stated_tokens(line.usage)
            self.input_tokens += read or 0
            self.output_tokens += written or 0
        self.cost.add(line)

    def add_failure(self, line: Line | None) -> None:
        """Adds a failure; None for a line that cannot be read."""
        self.failed += 1
        if line is None or line.error is None:
            self.unreadable += 1
            return
        kind = (line.error.kind, line.error.status)
        kind = kind if known_or_others(self.errors, kind) == kind else (OTHERS, None)
        ending = Ending(line.name, line.error.message[:_LONGEST_MESSAGE])
        self.errors.setdefault(kind, ending).rows += 1
        if line.is_of_task:
            self._add_task(line)

    def _add_task(self, line: Line) -> None:
        if isinstance(line.verdict, str):
            count_name(self.verdicts, line.verdict)
        if isinstance(line.reasks, int):
            self.reasks = (self.reasks or 0) + line.reasks
        for reason in line.dropped if isinstance(line.dropped, list) else ():
            if isinstance(reason, str):
                count_name(self.dropped, reason)

    def as_fields(self) -> dict[str, Any]:
        """Returns the figures as JSON fields for programs; their names include the units.

        The fields for the cache, batches, tasks and unreadable lines are left out if 0 or empty;
        `reasks` is left out only if no line records it.
        """
        cost, latency = self.cost, self.latencies.quantiles()
        latency_s = None
        if latency is not None:
            latency_s = {"p50": latency.p50_s, "p95": latency.p95_s, "max": latency.max_s}
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
            "latency_s": latency_s,
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
