"""Forecasts a run: rows, tokens, and the time that its limits alone require."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import closing
from typing import Any

import msgspec

from redline.calls import Request, TokenEstimator
from redline.errors import BadRow, ConfigError, OverLimit, Rejected
from redline.job.outputs import fetched, manifest_of
from redline.job.settings import BATCHING, Following, Job, first_request
from redline.job.work import fate, renderer_of
from redline.journal import KeySet, Output, keyed_rows, mark_of, read_keys
from redline.journal import manifest as manifests
from redline.limits import Cost, Limits
from redline.limits.rule import KINDS, Rules, last_send_s
from redline.sources import AsyncRows, Source, opened_source, sampled

# The number of bisections: together they leave a millionth of the interval.
_STEPS = 20


class Plan(msgspec.Struct, kw_only=True):
    """The forecast of a run: rows = done_rows + untried_rows + sent_rows + bad_rows.

    done_rows: rows that have an outcome in the output. untried_rows: rows without an outcome that
    `retry_failed` leaves out. bad_rows: rows that would fail before anything is sent;
    first_problem: the problem of the first of them. following: the number of requests with which a
    task follows up its rows' first answers. most_reasks: the most further requests for a row whose
    answers are not accepted; no other field counts these. input_tokens, output_tokens: estimates,
    summed over the requests; output_tokens counts the maximum that each request sets, or 256 per
    answer without one. quoted_tokens: the part of input_tokens that quotes answers, of the maximum
    length, in following requests. input_error: the relative error to expect in input_tokens; 0.2 is
    20 %. limit_s: seconds from the start until the limits allow the last row to be sent; 0 if no
    limit delays it. bound: the limit that determines limit_s; None without limits. least_s: what
    limit_s would be if answers had no tokens. is_batched: the run uses batches, for which limit_s
    is not computed. first_request: the method, URL and body of the first row's first request; None
    without a row to send.
    """

    rows: int = 0
    done_rows: int = 0
    untried_rows: int = 0
    bad_rows: int = 0
    first_problem: str | None = None
    following: int = 0
    most_reasks: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    quoted_tokens: int = 0
    input_error: float = 0.0
    limit_s: float = 0.0
    bound: str | None = None
    least_s: float = 0.0
    is_batched: bool = False
    first_request: dict[str, Any] | None = None

    @property
    def sent_rows(self) -> int:
        return self.rows - self.done_rows - self.untried_rows - self.bad_rows

    @property
    def requests(self) -> int:
        return self.sent_rows + self.following

    def add(self, request: Request, following: Request | None, estimator: TokenEstimator) -> None:
        """Adds the first request of a row, and the one that follows its answer."""
        self.first_request = self.first_request or {
            "method": request.method,
            "url": request.url,
            "body": request.body,
        }
        cost = estimator.estimate(request)
        self._add_cost(request, cost, estimator)
        if following is not None:
            self.following += 1
            self.quoted_tokens += cost.output_tokens
            self.input_tokens += cost.output_tokens
            self._add_cost(following, estimator.estimate(following), estimator)

    def _add_cost(self, request: Request, cost: Cost, estimator: TokenEstimator) -> None:
        self.input_error = max(self.input_error, estimator.first_error(request))
        self.input_tokens += cost.input_tokens
        self.output_tokens += cost.output_tokens


def plan(job: Job) -> Plan:
    """Forecasts a run from the whole input and the existing results. Blocks.

    Sends and writes nothing. Raises ConfigError if the input or a ledger of shared limits cannot be
    used, for an async iterable, and for an output of other settings, or not of redline;
    JournalError if its files cannot be read. Does not check what a run checks besides, such as the
    output's lock.
    """
    if isinstance(job.rows, AsyncIterable):
        raise ConfigError("a dry run cannot read an async iterable", hint="pass a file")
    for limits in job.call_limits:
        if limits.share and job.via != "batch":
            # Imported here, so that runs that share no limits do not load it.
            from redline.limits.shared import check_ledger

            check_ledger(limits)
    made = Plan(is_batched=job.via in BATCHING, most_reasks=getattr(job.task, "most_reasks", 0))
    # If the run would follow a file, only its present content is read.
    with opened_source(job.rows) as source, closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(_survey(job, source, made))
    if not made.is_batched:
        made.limit_s, made.bound = _time(made, job.call_limits)
        without_output = msgspec.structs.replace(
            made, output_tokens=0, input_tokens=made.input_tokens - made.quoted_tokens
        )
        made.least_s, _ = _time(without_output, job.call_limits)
    return made


async def _survey(job: Job, source: Source, made: Plan) -> None:
    """Counts each row in `made`, by what the run would do with it, and adds up the tokens."""
    renderer, estimator = renderer_of(job.prompting, source), TokenEstimator(may_block=True)
    rules = [] if job.via == "batch" else [Rules(limits) for limits in job.call_limits]
    succeeded, failed = _done(job)
    repeated = sampled(source, job.samples)
    assert not isinstance(repeated, AsyncRows)
    for row, key, is_duplicate in keyed_rows(repeated, job.limit):
        made.rows += 1
        mark = 0 if is_duplicate else mark_of(row)
        found = "done" if succeeded.matches(key, mark) else fate(job, failed, key, mark)
        made.done_rows += found == "done"
        made.untried_rows += found == "untried"
        if found != "to do":
            continue
        try:
            if row.data is None:
                raise BadRow(f"the row cannot be read: {row.problem}")
            if is_duplicate:
                raise BadRow("an earlier row has the same custom_id")
            request, following = renderer.request(row.data), None
            if job.task is not None:
                request = await first_request(job.task, row.data, request)
            # As in a run: an estimate may be too high, so a row is refused only if even its least
            # possible cost exceeds a limit.
            _check_any(rules, Cost(estimator.least(request)))
            if isinstance(job.task, Following):
                following = job.task.following(row.data, request)
        except (Rejected, OverLimit) as error:
            made.bad_rows += 1
            made.first_problem = made.first_problem or f"{source.name}:{row.line}: {error.what}"
            continue
        made.add(request, following, estimator)


def _done(job: Job) -> tuple[KeySet, KeySet]:
    """Returns the keys of the rows that succeeded and of those that failed in earlier runs.

    Raises ConfigError if the results were made with other settings, or not by redline, and
    JournalError if their manifest is damaged, all unless `force` is set; also JournalError if a
    file cannot be read.
    """
    output = job.output
    if output is None or job.restart:
        return KeySet(), KeySet()
    if output.url is None or output.path.exists():
        return _done_in(job, output)
    with fetched(output.url) as copy:
        return _done_in(job, copy)


def _done_in(job: Job, output: Output) -> tuple[KeySet, KeySet]:
    old = manifest_of(job, output)
    succeeded, new = read_keys(output.path), job.manifest()
    if old is not None and len(succeeded) and not job.force:
        manifests.check(old, new, output)
    is_changed = old is not None and old.settings != new.settings and not job.retry_failed
    # As in a run: if no row has succeeded, rows that failed under other settings are sent again.
    return succeeded, KeySet() if is_changed and not len(succeeded) else read_keys(
        output.failed_path
    )


def _check_any(rules: Sequence[Rules], cost: Cost) -> None:
    """Raises OverLimit if no endpoint could ever take a call of this cost."""
    for at, each in enumerate(rules, start=1):
        try:
            each.check(cost)
            return
        except OverLimit:
            if at == len(rules):
                raise


def _time(made: Plan, each: Sequence[Limits]) -> tuple[float, str | None]:
    """Returns the seconds that the limits require, and the limit that determines them, in words.

    each: the limits of each endpoint. Several endpoints are assumed to share the rows so that all
    finish at the same time.
    """
    if len(each) == 1:
        return _time_of(made, each[0], 1.0)
    if not all(any(limits.rates(kind) for kind in KINDS) for limits in each):
        # An endpoint without limits takes every row that would have to wait at the others.
        return 0.0, None
    longest_s = max(_time_of(made, limits, 1.0)[0] for limits in each)

    def is_enough(time_s: float) -> bool:
        return sum(_share_in(time_s, made, limits) for limits in each) >= 1

    return _least(longest_s, is_enough), f"the limits of {len(each)} endpoints together"


def _share_in(time_s: float, made: Plan, limits: Limits) -> float:
    """Returns the share of the rows, 0 to 1, that these limits allow to be sent in `time_s`."""
    return _least(1.0, lambda share: _time_of(made, limits, share)[0] > time_s)


def _least(most: float, is_enough: Callable[[float], bool]) -> float:
    """Returns the least number from 0 to `most` for which `is_enough` is true, by bisection."""
    least = 0.0
    for _ in range(_STEPS):
        middle = (least + most) / 2
        least, most = (least, middle) if is_enough(middle) else (middle, most)
    return most


def _time_of(made: Plan, limits: Limits, share: float) -> tuple[float, str | None]:
    """Returns the longest time that a single limit requires, in seconds, and that limit in words.

    Returns 0 and None without limits. share: the share of the rows that are sent within these
    limits, 0 to 1. The times come from `last_send_s`.
    """
    sent = max(1, made.requests)
    total = made.input_tokens + made.output_tokens
    tokens = {"tokens": total, "input_tokens": made.input_tokens}
    tokens["output_tokens"] = made.output_tokens
    # The amounts sent before the last request, whose own amounts delay nothing.
    before = {kind: max(0.0, amount * share - amount / sent) for kind, amount in tokens.items()}
    before["requests"] = max(0.0, sent * share - 1)
    times = [
        (last_send_s(before[kind], rate, limits), f"{rate} {kind.replace('_', ' ')}")
        for kind in KINDS
        for rate in limits.rates(kind)
    ]
    return max(times, key=lambda pair: pair[0], default=(0.0, None))
