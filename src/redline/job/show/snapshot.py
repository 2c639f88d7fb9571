"""Takes snapshots of a run's state, for its displays and for programs."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

import msgspec

from redline.calls.cost import DOLLAR, dollars_text
from redline.clock import SYSTEM, Clock
from redline.job.show.notices import STANDSTILL, notices
from redline.job.show.row_count import InputCounts
from redline.job.show.view import View
from redline.job.work import BatchUse
from redline.limits.rule import AUTO
from redline.observe import Cause, Estimate, current, estimate, recent
from redline.timeline import LimitUse, Window, merged_sketches
from redline.waist import CacheUse

# Rates are means over the last 10 s, costs and latencies over the last minute.
_RATE_S, _LONG_S = 10.0, 60.0
# If another constraint binds for less time than this, the interruption does not count.
_BRIDGED_S = 5.0


def usd_text(usd: float) -> str:
    """Returns dollars as a text like `$0.42`."""
    return dollars_text(round(usd * DOLLAR))


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The constraint that binds now.

    cause: its kind, the value of a Cause. what: the constraint, in a few words. evidence: the
    figures that show it, in words. for_s: how long it has been binding, in seconds.
    """

    cause: str
    what: str
    evidence: str
    for_s: float


class Snapshot(msgspec.Struct, kw_only=True):
    """The state of a run at one moment. `eta_s` and `left` are None while they are unknown.

    elapsed_s: seconds since this run began. done, failed: rows that succeeded and that failed in
    this run. skipped: rows that this run has read and need not send. input: the counts of the whole
    input. fraction: 1 - left / rows of the input, but never less than before; None while the number
    of rows is unknown. eta_s: seconds to the end; is_on_hold: the run is at a standstill, so
    `eta_s` is frozen.

    rows_per_s, tokens_per_s: means over the last 10 s. latency_p50_s, latency_p95_s: of the answers
    of the last minute. tokens_per_row: the mean of this run. slots: maximum calls in flight, 0 if
    there is no bound; is_adaptive: the maximum is being searched for. limits: the rate limits,
    those that held calls back most often first; are_found: the rate is `auto`; a limit that is
    being searched for has the value that is being tried. found_limits: the limits already found, in
    words. bound: the constraint that binds; None if none does, or while it is unknown.

    errors: failed attempts of this run by kind, including those that were retried; last_error: the
    message of the latest one. flawed: rows done by all runs whose answer is cut, empty, filtered or
    refused, by finish reason. notices: the current problems by kind, each in one sentence.

    spent: the spending in words, empty while it is unknown; is_spent_here: the spending of earlier
    runs is not included. spent_usd, expected_usd: dollars spent so far, and expected at the end.
    usd_per_min: the mean over the last minute. spent_tokens: tokens that count against a budget in
    tokens. parked_s: seconds until calls may be sent again if the endpoint, or each of several,
    asked redline to wait; otherwise 0. look_in_s: seconds until a batch is checked next.
    """

    elapsed_s: float
    done: int
    failed: int
    skipped: int
    in_flight: int
    retrying: int
    left: int | None
    input: InputCounts
    rows_per_s: float
    tokens_per_s: float
    rate_limited: int
    parked_s: float
    eta_s: float | None
    fraction: float | None
    is_draining: bool
    is_on_hold: bool = False
    slots: int = 0
    is_adaptive: bool = False
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    tokens_per_row: float | None = None
    limits: tuple[LimitUse, ...] = ()
    are_found: bool = False
    found_limits: tuple[str, ...] = ()
    bound: Bound | None = None
    errors: dict[str, int] = {}
    last_error: str = ""
    flawed: dict[str, int] = {}
    notices: dict[str, str] = {}
    spent: str = ""
    is_spent_here: bool = False
    spent_usd: float | None = None
    usd_per_min: float | None = None
    expected_usd: float | None = None
    spent_tokens: int | None = None
    cache: CacheUse | None = None
    batches: BatchUse | None = None
    look_in_s: float | None = None

    @property
    def expected(self) -> str:
        """The dollars expected at the end, in words; empty while they are unknown."""
        if self.expected_usd is None:
            return ""
        whole = "with the rows left" if self.is_spent_here else "in all"
        return f"about {usd_text(self.expected_usd)} {whole}"


class _Lately(msgspec.Struct):
    """Figures from the latest windows, computed again after each new window.

    end_s: the end of the last window, in seconds since the run began; -1 before the first. seen_s:
    the monotonic time when the figures were computed.
    """

    end_s: float = -1.0
    seen_s: float = 0.0
    estimate: Estimate = Estimate(None, False)
    bound: Bound | None = None
    error: str = ""
    limits: tuple[LimitUse, ...] = ()
    p50_s: float | None = None
    p95_s: float | None = None


class _Reading(msgspec.Struct, frozen=True):
    """The counters of this run at one moment. at_s: the monotonic time."""

    at_s: float
    rows: int
    tokens: int
    picodollars: int | None


class _Bounds:
    """Finds the constraint that binds now, and for how long."""

    def __init__(self) -> None:
        self._key = self._key_before = ("", "")
        self._since_s = self._since_before_s = 0.0

    def read(self, windows: list[Window]) -> Bound | None:
        """Returns the constraint that binds in these windows; None if unknown or if none does."""
        found = current(recent(windows))
        if found is None or found.cause in (Cause.UNDETERMINED, Cause.NOTHING):
            return None
        # `what` distinguishes only limits. For other causes, it may change all the time, as the
        # number of calls in flight does while it is searched for.
        key = (found.cause.value, found.what if found.cause is Cause.LIMIT else "")
        if key != self._key:
            since_s = found.begin_s
            if key == self._key_before and since_s - self._since_s < _BRIDGED_S:
                since_s = self._since_before_s
            self._key_before, self._since_before_s = self._key, self._since_s
            self._key, self._since_s = key, since_s
        return Bound(
            cause=found.cause.value,
            what=found.what,
            evidence=found.evidence,
            for_s=max(0.0, found.end_s - self._since_s),
        )


class Meter:
    """Takes snapshots of a run; keeps earlier readings of its counters, to compute rates."""

    def __init__(self, view: View, clock: Clock = SYSTEM) -> None:
        self._view = view
        self._clock = clock
        self._begun_s = clock.now_s()
        self._readings = deque([_Reading(self._begun_s, 0, 0, 0)])
        self._lately = _Lately()
        self._bounds = _Bounds()
        self._fraction: float | None = None
        limits = view.job.call_limits
        self._is_adaptive = any(one.is_adaptive for one in limits)
        self._are_found = any(one.rate == AUTO for one in limits)

    def read(self) -> Snapshot:
        """Returns the current state of the run."""
        view, now_s = self._view, self._clock.now_s()
        tally, runner = view.tally, view.runner
        counts, look_s = view.counts(), tally.batch_look_s
        left = counts.left if counts.is_exact else None
        if left is not None and counts.rows:
            # Rows that are added to the input while it is read must not move the bar back.
            self._fraction = max(self._fraction or 0.0, (counts.rows - left) / counts.rows)
        found = notices(view, now_s)
        spent = view.bill.read()
        # The cost of answers is known before their rows are on disk.
        ended = max(tally.saved, runner.ended - runner.unsaved)
        to_pay = None if left is None else max(0, left - (ended - tally.saved))
        expected = spent.expected(ended, to_pay)
        self._readings.append(_Reading(now_s, tally.saved, tally.tokens, spent.here))
        while len(self._readings) > 2 and self._readings[1].at_s <= now_s - _LONG_S:
            self._readings.popleft()
        lately = self._look(view.sampler.windows, now_s)
        eta_s, is_on_hold = self._eta(left, now_s, is_held=bool(found.keys() & STANDSTILL))
        return Snapshot(
            elapsed_s=now_s - self._begun_s,
            done=tally.succeeded,
            failed=tally.failed,
            skipped=view.rows_skipped,
            in_flight=tally.in_flight,
            retrying=tally.retrying,
            left=left,
            input=counts,
            rows_per_s=self._rate("rows", _RATE_S),
            tokens_per_s=self._rate("tokens", _RATE_S),
            rate_limited=tally.rate_limited,
            parked_s=max(0.0, tally.parked_until_s - now_s),
            eta_s=eta_s,
            fraction=self._fraction,
            is_draining=runner.is_draining,
            is_on_hold=is_on_hold,
            slots=view.sampler.slots,
            is_adaptive=self._is_adaptive,
            latency_p50_s=lately.p50_s,
            latency_p95_s=lately.p95_s,
            tokens_per_row=tally.tokens / ended if tally.tokens and ended else None,
            limits=lately.limits,
            are_found=self._are_found,
            found_limits=tuple(view.found_limits()) if self._are_found else (),
            bound=lately.bound,
            errors=tally.failures,
            last_error=lately.error,
            flawed=view.flawed(),
            notices=found,
            spent=spent.text,
            is_spent_here=bool(view.rows_skipped) and not spent.is_of_all_runs,
            spent_usd=spent.usd,
            usd_per_min=None if spent.here is None else self._usd_per_min(),
            expected_usd=None if expected is None else expected / DOLLAR,
            spent_tokens=spent.tokens,
            cache=tally.cache,
            batches=tally.batches,
            look_in_s=None if look_s is None else max(0.0, look_s - now_s),
        )

    def _rate(self, name: str, over_s: float) -> float:
        """Returns a counter's mean growth per second over the last `over_s` seconds.

        If the first reading is more recent, the mean covers the time since then. Between two
        readings, the growth is assumed to be even. name: a field of `_Reading`.
        """
        readings, last = self._readings, self._readings[-1]
        begin_s = max(last.at_s - over_s, readings[0].at_s)
        if last.at_s <= begin_s:
            return 0.0
        place = bisect_right(readings, begin_s, key=lambda one: one.at_s)
        before, after = readings[place - 1], readings[place]
        share = (begin_s - before.at_s) / (after.at_s - before.at_s)
        first = getattr(before, name) or 0
        first += share * ((getattr(after, name) or 0) - first)
        return float(((getattr(last, name) or 0) - first) / (last.at_s - begin_s))

    def _usd_per_min(self) -> float:
        return self._rate("picodollars", _LONG_S) * 60 / DOLLAR

    def _look(self, windows: list[Window], now_s: float) -> _Lately:
        """Returns the figures from the latest windows; computes them once for each new window."""
        before = self._lately
        if not windows or windows[-1].end_s == before.end_s:
            return before
        last = windows[-1]
        latency = merged_sketches(
            one.latency for one in windows[-int(_LONG_S) :] if one.end_s > last.end_s - _LONG_S
        )
        self._lately = _Lately(
            end_s=last.end_s,
            seen_s=now_s,
            estimate=estimate(windows),
            bound=self._bounds.read(windows),
            error=next((one.error for one in reversed(windows) if one.error), ""),
            limits=last.limits,
            p50_s=latency.quantile_s(0.5),
            p95_s=latency.quantile_s(0.95),
        )
        return self._lately

    def _eta(self, left: int | None, now_s: float, *, is_held: bool) -> tuple[float | None, bool]:
        """Returns the seconds until the end, None if unknown, and whether they are frozen."""
        found = self._lately.estimate
        if not left or found.eta_s is None:
            return None, False
        is_on_hold = found.is_on_hold or is_held
        if is_on_hold:
            return found.eta_s, True
        return max(0.0, found.eta_s - (now_s - self._lately.seen_s)), False
