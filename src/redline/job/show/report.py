"""Reports the results of a run, in numbers that add up."""

from __future__ import annotations

import msgspec

from redline.calls import Outcome
from redline.calls.cost import DOLLAR, Allowance
from redline.errors import RedlineError
from redline.job.show.row_count import InputCounts
from redline.job.work import BatchUse, EndpointUse, Outages, Spent
from redline.journal import Output
from redline.waist import CacheUse


class Report(msgspec.Struct, kw_only=True):
    """The result of a run.

    offered: the rows that this run set out to process; always succeeded + failed + unfinished.
    skipped: rows that an earlier run has done; failed_before: those of them that failed. untried:
    rows without an outcome that `retry_failed` leaves out. results: the number of successes of all
    runs of the output; flawed: how many of these answers are cut, empty, filtered or refused, by
    finish reason, a key of FAIL_ON. input: the counts of the whole input, or of its rows up to
    the option `limit`, over all runs. is_input_done: whether the input was read to its end, or to
    `limit`. is_of_stream: whether the input is a stream, which delivers no failed row again.
    outcomes: in input order; empty for a run with an output, whose file has the results.

    stopped: the error that ended the run early, None if none did; interrupted: whether the user
    ended the run. abandoned: work that had not ended when the run did, one line per row.

    attempts: the number of requests written; retries: how many of them were written again after a
    failure. rate_limited: attempts that ended with RateLimited. most_in_flight: the most calls in
    flight at once. input_tokens, output_tokens: according to the usage in the replies. failovers:
    retries at a different endpoint from the failed attempt, which may have been billed too.
    repeated: requests written again on a new connection because a reused connection failed; the
    server may have processed both copies, which count as two requests, but not as a retry.
    errors_by_kind: failed attempts by kind of error, including those that were retried. outages:
    when the endpoint accepted no connections; with several endpoints, those of the one that has
    been down longest at the end or, if none is down then, of the one that was down for the most
    seconds in total. endpoints: the use of each of several endpoints; empty for a run with one.
    found_limits: the limits that were searched for and found, such as `20/1s requests` or
    `45 in flight`. spent: the amounts that count against the budget, or the cost of the replies if
    prices are known. elapsed_s: the duration of the run in seconds.

    cache: cache lookups by result, None if there were none; cache_notes: problems with the cache.
    batches: the use of the Batch API, None for a run without it.

    not_uploaded: why an object in a store differs from the file on this machine; None if it does
    not, and for local outputs. not_traced, not_recorded: why the trace or the timeline ends early;
    None if it is complete. not_notified, not_exported: what did not reach the webhook or
    OpenTelemetry, and why; None if everything did.
    """

    offered: int = 0
    succeeded: int = 0
    failed: int = 0
    results: int = 0
    flawed: dict[str, int] = {}
    skipped: int = 0
    failed_before: int = 0
    untried: int = 0
    input: InputCounts | None = None
    retries: int = 0
    failovers: int = 0
    repeated: int = 0
    rate_limited: int = 0
    attempts: int = 0
    most_in_flight: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    elapsed_s: float = 0.0
    is_input_done: bool = False
    is_of_stream: bool = False
    interrupted: bool = False
    stopped: RedlineError | None = None
    errors_by_kind: dict[str, int] = {}
    spent: Spent = Spent(allowance=Allowance())
    found_limits: list[str] = []
    outages: Outages | None = None
    endpoints: list[EndpointUse] = []
    cache: CacheUse | None = None
    batches: BatchUse | None = None
    cache_notes: list[str] = []
    output: Output | None = None
    not_uploaded: RedlineError | None = None
    abandoned: list[str] = []
    not_traced: str | None = None
    not_recorded: str | None = None
    not_notified: str | None = None
    not_exported: str | None = None
    outcomes: list[Outcome] = []

    def __repr__(self) -> str:
        """Returns one line, however many outcomes there are, because notebooks print it."""
        return f"Report({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns the names and values to show when the report is printed, such as the counts."""
        counts = ("offered", "succeeded", "failed", "unfinished", "skipped")
        shown: list[tuple[str, object]] = [(name, getattr(self, name)) for name in counts]
        if self.interrupted:
            shown.append(("interrupted", True))
        if self.stopped is not None:
            shown.append(("stopped", str(self.stopped)))
        return shown if self.output is None else [*shown, ("output", self.output.name)]

    @property
    def unfinished(self) -> int:
        return self.offered - self.succeeded - self.failed

    @property
    def spent_usd(self) -> float | None:
        """Dollars spent by this run, or by all runs with a budget in dollars; None if unknown."""
        return self.spent.usd

    @property
    def expected_usd(self) -> float | None:
        """Dollars expected at the end, from this run's mean cost per row; None if unknown."""
        left = self.unfinished if self.is_input_done else None
        if self.input is not None and self.input.is_exact:
            left = self.input.left
        expected = self.spent.expected(self.succeeded + self.failed, left)
        return None if expected is None else expected / DOLLAR

    @property
    def spent_tokens(self) -> int | None:
        """Tokens that count against a budget in tokens; None without such a budget."""
        return self.spent.tokens

    @property
    def is_complete(self) -> bool:
        """Whether every row of the input, up to `limit`, has an outcome, even if it is a failure.

        False if an error ended the run early, or if `retry_failed` left rows untried.
        """
        is_all_tried = self.is_input_done and not self.untried
        return is_all_tried and not self.unfinished and self.stopped is None
