"""Defines the structs of a timeline, and merges windows into longer ones.

The state of a run is sampled ten times per second, and each second of samples becomes a Window.
The status, reports, alerts and predictions of a run are computed from windows.

What holds the next call back in a sample (`Window.held` counts the samples for each):

held     meaning
input    no row is ready, and the input has more
writer   no rows are read until more results are durable
memory   no rows are read until large rows are done
taker    workers wait until their results are taken
limit    a call waits for a grant from a rate limit
budget   calls wait for a part of the budget that other calls have reserved
slots    all slots are in use
parked   every endpoint is down or has asked redline to wait, and at least one has asked
down     every endpoint is out of reach or fails
backoff  of the rows that are not on the wire, half or more wait for a retry
batch    rows are with the Batch API, and no call is in flight
rest     no more rows begin: the last calls are in flight
client   a row and a slot are available: only the client's own work holds the call back
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal, get_args

import msgspec

from redline.timeline.sketch import EMPTY, Sketch, merged_sketches

Holder = Literal[
    "input", "writer", "memory", "taker", "limit", "budget", "slots",
    "parked", "down", "backoff", "batch", "rest", "client",
]  # fmt: skip
HOLDERS: tuple[Holder, ...] = get_args(Holder)
WINDOW_S = 1.0
MOST_LIMITS = 12
MOST_ENDPOINTS = 12
_ROUNDED = 4
# The default of numeric fields. A line leaves out the fields that are this very object.
ZERO = 0.0


class Phases(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The seconds that calls spent in each phase, summed over all calls that ended in the window.

    A call passes through the phases in turn. client_s: the client's own work before the first
    attempt (the `before` function, the template, the cache) and after the last one (`after`, until
    the outcome is taken). In each attempt: queue_s, the wait for room in the budget, for one of
    several endpoints or for a function's batch; slot_s, the wait for a slot; connect_s, the wait
    for a connection; grant_s, the wait for the limits' grant, including the wait to become one of
    the few calls that may get ready for one; send_s, from the grant to the write, which comes at
    the end of the event loop's turn, after results are written; first_byte_s, from the write to the
    first byte of the response; first_token_s, from there to the first token of a streamed answer;
    answer_s, until the answer is read and parsed. Between attempts: backoff_s. unattributed_s: the
    time from the call's beginning to its outcome that belongs to no other phase. After the outcome:
    durable_s, until the row's line is on disk.
    """

    client_s: float = ZERO
    queue_s: float = ZERO
    slot_s: float = ZERO
    connect_s: float = ZERO
    grant_s: float = ZERO
    send_s: float = ZERO
    first_byte_s: float = ZERO
    first_token_s: float = ZERO
    answer_s: float = ZERO
    backoff_s: float = ZERO
    unattributed_s: float = ZERO
    durable_s: float = ZERO

    @property
    def total_s(self) -> float:
        return float(sum(msgspec.structs.astuple(self)))

    def times(self, count: int) -> Phases:
        """Returns the phases multiplied by `count`, for `count` times as many calls."""
        if count == 1:
            return self
        return Phases(**{name: s * count for name, s in msgspec.structs.asdict(self).items()})


NO_PHASES = Phases()


class LimitUse(msgspec.Struct, frozen=True, array_like=True):
    """The use of one rate limit of one endpoint.

    name: such as `500 requests/min`, with ` at NAME` if there are several endpoints. held: the
    number of samples in which it held the next call back, alone or with other limits. used: the
    amount that counted against it at the end of the window. count, window_s: the limit's own.
    """

    name: str
    held: int
    used: int
    count: int
    window_s: float


class EndpointState(msgspec.Struct, frozen=True, array_like=True):
    """The state of one of several endpoints.

    state: a `Health`, or `parked`, at the end of the window. in_flight: calls in flight at the end
    of the window; in a merged window, a mean. slots: maximum calls in flight; 0 for no bound.
    """

    name: str
    state: str
    in_flight: float
    slots: int


class ServerUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The use of a model server, as the server reports it to the run.

    batch_rows: the sequences in the batches that it computed. batch_places: the sequences for which
    these batches had room. gpu_reads: the number of readings of its GPU's utilization. gpu_busy:
    the sum of the readings, each 0 to 1.
    """

    batch_rows: int = 0
    batch_places: int = 0
    gpu_busy: float = ZERO
    gpu_reads: int = 0

    def since(self, before: ServerUse) -> ServerUse:
        """Returns the use since `before`, an earlier value."""
        if self == before:
            return NO_USE
        return ServerUse(
            batch_rows=self.batch_rows - before.batch_rows,
            batch_places=self.batch_places - before.batch_places,
            gpu_busy=rounded(self.gpu_busy - before.gpu_busy),
            gpu_reads=self.gpu_reads - before.gpu_reads,
        )


NO_USE = ServerUse()


class Totals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The totals of the whole job, over all runs of its output, at the end of a window.

    rows: the number of rows in the input; if `is_exact` is False, there may be more. done, failed:
    rows with a result or a failure. untried: rows that this run leaves out. done_here: rows that
    succeeded in this run. attempts, input_tokens, output_tokens: of this run alone. spent_usd: of
    all runs if there is a budget in money, otherwise of this run; None while unknown. spent_tokens:
    those that count against a budget in tokens, of all runs; None without such a budget.
    """

    rows: int = 0
    is_exact: bool = True
    done: int = 0
    failed: int = 0
    untried: int = 0
    done_here: int = 0
    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spent_usd: float | None = None
    spent_tokens: int | None = None

    @property
    def left(self) -> int:
        """The number of rows still to be processed."""
        return max(0, self.rows - self.done - self.failed - self.untried)


class Window(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="window",
    tag_field="kind",
):
    """The state of one run over a period of time: a second or more, or the rest at the run's end.

    begin_s, end_s: in seconds since the run began. samples: the number of samples of the state; 0
    for a gap, in which the process could not sample.

    sent: requests written. retries: those of the requests that had been written before and failed.
    failovers: the retries whose request another endpoint may have billed. answered: attempts that
    ended with an answer. errors: failed and cancelled attempts, by kind; error: the last error, in
    words. done, failed: rows that became durable. input_tokens, output_tokens: of the answers.

    Means over the samples: in_flight, requests on the wire; in_hand, rows that have begun and have
    no outcome yet; slots, maximum calls in flight; waiting, calls that wait for a grant; retrying,
    rows that wait for a retry. feed_empty: the share of samples in which workers waited for a row.
    journal_full: the share of samples in which too much was not durable yet.
    held: the number of samples by what held the next call back. limits: the rate limits, at most
    MOST_LIMITS, those that held most often first. endpoints: if there are several, at most
    MOST_ENDPOINTS. parked_s: for how many seconds after the window the endpoint may not be called.

    lag_s: the longest delay of a sample; late_s: seconds in which something other than its own work
    blocked the event loop, estimated from late samples. busy: the share of the time in which the
    event loop's thread ran, or was ready to run while others had the CPU. cpu: CPU seconds of the
    whole process per second. write_s: seconds in which the event loop waited for writes of results;
    sync_s: seconds in which an fsync of results was in progress. stopped_s: seconds in which the
    whole process was stopped, or its event loop was blocked for long.

    latency: of answered attempts, from the write to the end of the answer. first: the same for
    requests that were written before the run had its first answer, when the endpoint had no earlier
    calls of this run to process. first_token: of streamed answers, from the write to the first
    token. calls: the number of calls that ended, which are those in `phases`. server: the use of a
    model in the run's process.
    """

    begin_s: float
    end_s: float
    samples: int = 0
    sent: int = 0
    retries: int = 0
    failovers: int = 0
    answered: int = 0
    errors: dict[str, int] = {}
    error: str = ""
    done: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    in_flight: float = ZERO
    in_hand: float = ZERO
    slots: float = ZERO
    waiting: float = ZERO
    retrying: float = ZERO
    held: dict[str, int] = {}
    limits: tuple[LimitUse, ...] = ()
    endpoints: tuple[EndpointState, ...] = ()
    feed_empty: float = ZERO
    journal_full: float = ZERO
    parked_s: float = ZERO
    lag_s: float = ZERO
    late_s: float = ZERO
    busy: float = ZERO
    cpu: float = ZERO
    write_s: float = ZERO
    sync_s: float = ZERO
    stopped_s: float = ZERO
    calls: int = 0
    latency: Sketch = EMPTY
    first: Sketch = EMPTY
    first_token: Sketch = EMPTY
    phases: Phases = NO_PHASES
    server: ServerUse = NO_USE
    totals: Totals = Totals()

    @property
    def span_s(self) -> float:
        return self.end_s - self.begin_s

    def share(self, held: Holder) -> float:
        """Returns the share of samples in which `held` held the next call back, 0 to 1."""
        return self.held.get(held, 0) / max(1, self.samples)


_SECONDS = ("late_s", "write_s", "sync_s", "stopped_s")
_ADDED = (
    "samples", "sent", "retries", "failovers", "answered", "done", "failed", "input_tokens",
    "output_tokens", "calls", *_SECONDS,
)  # fmt: skip
_PER_SAMPLE = (
    "in_flight", "in_hand", "slots", "waiting", "retrying", "feed_empty", "journal_full",
)  # fmt: skip
_PER_SECOND = ("busy", "cpu")
_SKETCHES = ("latency", "first", "first_token")


def merged(windows: Sequence[Window]) -> Window:
    """Merges consecutive windows, one or more, into one.

    Counts are added, means are weighted, and values at the end are taken from the last window.
    """
    if len(windows) == 1:
        return windows[0]
    last = windows[-1]
    fields: dict[str, Any] = {name: sum(getattr(w, name) for w in windows) for name in _ADDED}
    samples = max(1, fields["samples"])
    span_s = sum(w.span_s for w in windows) or 1.0
    for name in _PER_SAMPLE:
        fields[name] = sum(getattr(w, name) * w.samples for w in windows) / samples
    for name in _PER_SECOND:
        fields[name] = sum(getattr(w, name) * w.span_s for w in windows) / span_s
    for name in _SKETCHES:
        fields[name] = merged_sketches(getattr(w, name) for w in windows)
    fields |= {name: rounded(fields[name]) for name in (*_PER_SAMPLE, *_PER_SECOND, *_SECONDS)}
    return Window(
        begin_s=windows[0].begin_s,
        end_s=last.end_s,
        errors=_sum(w.errors for w in windows),
        error=next((w.error for w in reversed(windows) if w.error), ""),
        held=_sum(w.held for w in windows),
        limits=_merged_limits(windows),
        endpoints=_merged_endpoints(windows),
        parked_s=last.parked_s,
        lag_s=max(w.lag_s for w in windows),
        phases=merged_phases([w.phases for w in windows]),
        server=merged_use(w.server for w in windows),
        totals=last.totals,
        **fields,
    )


def errors_of(windows: Iterable[Window]) -> Counter[str]:
    """Counts the failed attempts by kind, except cancelled ones."""
    errors = Counter(_sum(window.errors for window in windows))
    del errors["cancelled"]
    return errors


def merged_phases(phases: Sequence[Phases]) -> Phases:
    """Returns the sum of each phase."""
    if not phases:
        return NO_PHASES
    columns = zip(*map(msgspec.structs.astuple, phases), strict=True)
    sums = dict(zip(Phases.__struct_fields__, map(rounded, map(sum, columns)), strict=True))
    return Phases(**sums) if any(sums.values()) else NO_PHASES


def merged_use(uses: Iterable[ServerUse]) -> ServerUse:
    """Returns the sum of each field."""
    found = [use for use in uses if use != NO_USE]
    if not found:
        return NO_USE
    columns = zip(*map(msgspec.structs.astuple, found), strict=True)
    return ServerUse(**dict(zip(ServerUse.__struct_fields__, map(sum, columns), strict=True)))


def coarsened(windows: Iterable[Window], now_s: float, share: float) -> list[Window]:
    """Returns the windows of one run, with older windows merged into longer ones.

    now_s: in seconds since the run began. Neighbours are merged if the result lasts at most `share`
    of its age, or at most WINDOW_S. So the number of windows grows with the logarithm of the run's
    duration.
    """
    found: list[list[Window]] = []
    for window in windows:
        age_s = now_s - window.end_s
        if found and window.end_s - found[-1][0].begin_s <= max(WINDOW_S, share * age_s):
            found[-1].append(window)
        else:
            found.append([window])
    return [merged(group) for group in found]


def _merged_limits(windows: Sequence[Window]) -> tuple[LimitUse, ...]:
    """Returns the limits of the last window that has any, each with its `held` over all windows.

    Earlier limits are no longer in force: a search tried them, or headers have reported others
    since.
    """
    latest = next((window.limits for window in reversed(windows) if window.limits), ())
    held = Counter[str]()
    for use in chain.from_iterable(window.limits for window in windows):
        held[use.name] += use.held
    return most_held(msgspec.structs.replace(use, held=held[use.name]) for use in latest)


def most_held(limits: Iterable[LimitUse]) -> tuple[LimitUse, ...]:
    """Returns the MOST_LIMITS limits that held calls back most often, in that order."""
    return tuple(sorted(limits, key=lambda use: -use.held)[:MOST_LIMITS])


def _merged_endpoints(windows: Sequence[Window]) -> tuple[EndpointState, ...]:
    """Returns the endpoints of the last window that has any, with means over all windows."""
    last = next((w.endpoints for w in reversed(windows) if w.endpoints), ())
    means = []
    for use in last:
        found = [(w.samples, one) for w in windows for one in w.endpoints if one.name == use.name]
        samples = sum(count for count, _ in found) or 1
        mean = sum(count * one.in_flight for count, one in found) / samples
        means.append(msgspec.structs.replace(use, in_flight=rounded(mean)))
    return tuple(means)


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def rounded(value: float) -> float:
    """Rounds a number for a line to four decimal places; seconds to a tenth of a millisecond."""
    return round(value, _ROUNDED) or ZERO
