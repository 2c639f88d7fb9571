"""Computes the figures that alert rules watch, each from the last windows of a run.

Most figures cover the last `span_s` seconds. A figure is None while there is too little data, or
while it has no meaning: a run without rows to send is not slow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import msgspec

from redline.timeline import Holder, ServerUse, Window, errors_of, merged_use

# A figure needs windows that cover this share of its span: windows do not end on whole seconds.
_LEAST_OF = 0.9
_QUEUE_S, _COST_S, BEST_S = 30.0, 60.0, 60.0
# With fewer attempts, rows or waiting calls, a ratio has no meaning.
_LEAST = 10
_IDLE: tuple[Holder, ...] = ("rest", "input", "batch")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The input of all figures.

    windows: the windows of one run, at least one, in order; older ones may be longer.
    best_tokens_per_s: the highest rate in any minute of the run; 0 if unknown. budget_usd,
    budget_tokens: None without such a budget.
    """

    windows: Sequence[Window]
    best_tokens_per_s: float = 0.0
    budget_usd: float | None = None
    budget_tokens: int | None = None


def rows_per_s(seen: Seen, span_s: float) -> float | None:
    """Returns the rows per second that became durable, including failures."""
    return _rate(seen, span_s, lambda window: window.done + window.failed)


def tokens_per_s(seen: Seen, span_s: float) -> float | None:
    """Returns the tokens per second of the answers, input and output together."""
    return _rate(seen, span_s, lambda window: window.input_tokens + window.output_tokens)


def tokens_of_best(seen: Seen, span_s: float) -> float | None:
    """Returns the current tokens per second divided by those of the best minute."""
    now = tokens_per_s(seen, span_s)
    return now / seen.best_tokens_per_s if now is not None and seen.best_tokens_per_s else None


def error_rate(seen: Seen, span_s: float) -> float | None:
    """Returns the failed attempts divided by the finished attempts, 0 to 1."""
    failed = sum(errors_lately(seen, span_s).values())
    ended = failed + sum(window.answered for window in _lately(seen.windows, span_s))
    return failed / ended if ended >= _LEAST else None


def errors_lately(seen: Seen, span_s: float) -> dict[str, int]:
    """Counts the failed attempts by kind of error, the most frequent kind first."""
    return dict(errors_of(_lately(seen.windows, span_s)).most_common())


def batch_efficiency(seen: Seen, span_s: float) -> float | None:
    """Returns the share of the slots in a model's batches that were used, 0 to 1."""
    use = _use(seen, span_s)
    return use.batch_rows / use.batch_places if use.batch_places else None


def gpu_utilization(seen: Seen, span_s: float) -> float | None:
    """Returns the share of the time in which a model's GPU was computing, 0 to 1."""
    use = _use(seen, span_s)
    return use.gpu_busy / use.gpu_reads if use.gpu_reads else None


def queue_growth(seen: Seen, span_s: float) -> float | None:
    """Returns the calls waiting for a limit or a retry, divided by their number 30 s earlier.

    Both are means over 30 s, regardless of `span_s`: of the last 30 s, and of the 30 s before them.
    None if fewer than 10 calls wait.
    """
    now = _lately(seen.windows, _QUEUE_S)
    before = _lately(seen.windows, _QUEUE_S, _QUEUE_S)
    # In a window without samples, the process was stopped.
    if not any(one.samples for one in now) or not any(one.samples for one in before):
        return None
    waiting, waited = _waiting(now), _waiting(before)
    return waiting / max(1.0, waited) if waiting >= _LEAST else None


def budget_burn(seen: Seen, span_s: float) -> float | None:
    """Returns the job's expected cost divided by its budget; with two budgets, the larger ratio.

    Assumes that further rows cost as much as the rows of the last minute, regardless of `span_s`.
    """
    last, found = seen.windows[-1].totals, _lately(seen.windows, _COST_S)
    rows = sum(window.done + window.failed for window in found[1:])
    if not last.is_exact or rows < _LEAST:
        return None
    first, shares = found[0].totals, []
    for budget, now, then in (
        (seen.budget_usd, last.spent_usd, first.spent_usd),
        (seen.budget_tokens, last.spent_tokens, first.spent_tokens),
    ):
        if budget and now is not None and then is not None:
            shares.append((now + (now - then) / rows * last.left) / budget)
    return max(shares, default=None)


def _lately(windows: Sequence[Window], span_s: float, before_s: float = 0.0) -> list[Window]:
    """Returns the windows of the span that ended `before_s` ago; none if they cover too little."""
    end_s = windows[-1].end_s - before_s
    begin = bisect_right(windows, end_s - span_s, key=lambda window: window.end_s)
    end = bisect_left(windows, end_s, key=lambda window: window.begin_s)
    found = list(windows[begin:end])
    return found if sum(window.span_s for window in found) >= _LEAST_OF * span_s else []


def _rate(seen: Seen, span_s: float, count: Callable[[Window], int]) -> float | None:
    """Returns counts per second; None without windows, or if most samples had no row to send."""
    found = _at_work(seen, span_s)
    return sum(map(count, found)) / sum(window.span_s for window in found) if found else None


def _use(seen: Seen, span_s: float) -> ServerUse:
    """Returns the use of a model in the run's process; zero if most samples had no row to send."""
    return merged_use(window.server for window in _at_work(seen, span_s))


def _at_work(seen: Seen, span_s: float) -> list[Window]:
    """Returns the windows of the last `span_s`; none if most samples had no row to send."""
    found = _lately(seen.windows, span_s)
    samples = sum(window.samples for window in found)
    idle = sum(window.held.get(one, 0) for window in found for one in _IDLE)
    return found if idle < 0.5 * max(1, samples) else []


def _waiting(windows: Sequence[Window]) -> float:
    """Returns the mean number of waiting calls over the windows' samples."""
    samples = sum(window.samples for window in windows)
    return sum((one.waiting + one.retrying) * one.samples for one in windows) / samples
