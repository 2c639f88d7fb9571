"""The state of a run at one moment, as its displays and programs see it."""

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
# An interruption by another constraint counts only if it lasts this long.
_BRIDGED_S = 5.0


def usd_text(usd: float) -> str:
    """Returns dollars as a text like `$0.42`."""
    return dollars_text(round(usd * DOLLAR))


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The constraint that binds. cause: its name. what: in a few words.

    evidence: in words. for_s: the seconds for which it has bound.
    """

    cause: str
    what: str
    evidence: str
    for_s: float


class Snapshot(msgspec.Struct, kw_only=True):
    """The state of a run at one moment. `eta_s` and `left` are None while they are unknown.

    elapsed_s: of this run. done, failed: rows that this run has ended. skipped: rows that were done
    before, among those it has read. input: counts of the whole input. fraction: the share of its
    rows that have an outcome, 0 to 1; None while their number is unknown. eta_s: seconds to the
    end; frozen while is_on_hold, since the run is at a standstill.

    rows_per_s, tokens_per_s: over the last 10 s. latency_p50_s, latency_p95_s: of the answers of
    the last minute. tokens_per_row: of this run. slots: maximum calls in flight, 0 if unknown;
    is_adaptive: the maximum is being searched for. limits: the rate limits, those that held calls
    back most often first; are_found: they are not configured but being searched for, and have the
    values that are tried now. found_limits: those already found, in words. bound: what binds, None
    while it is unknown.

    errors: failed attempts of this run by kind, including those that were retried; last_error: the
    message of the last one. flawed: rows done whose answer is cut, empty or refused, by finish
    reason. notices: the present problems by kind, each in one sentence.

    spent: in words, empty while nothing is known; is_spent_here: it excludes the spending of
    earlier runs. spent_usd, expected_usd: dollars so far, and at the end. usd_per_min: over the
    last minute. spent_tokens: against a budget in tokens. parked_s: seconds until the endpoint may
    be asked again. look_in_s: seconds until a batch is checked.
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
        """The dollars at the end in words, empty while they are unknown."""
        if self.expected_usd is None:
            return ""
        whole = "with the rows left" if self.is_spent_here else "in all"
        return f"about {usd_text(self.expected_usd)} {whole}"


class _Lately(msgspec.Struct):
    """Figures from the last windows, recomputed when there is a new one."""

    end_s: float = -1.0
    seen_s: float = 0.0
    estimate: Estimate = Estimate(None, False)
    bound: Bound | None = None
    error: str = ""
    limits: tuple[LimitUse, ...] = ()
    p50_s: float | None = None
    p95_s: float | None = None


class _Reading(msgspec.Struct, frozen=True):
    """Counters of this run at one time."""

    at_s: float
    rows: int
    tokens: int
    picodollars: int | None


class _Bounds:
    """Finds what binds now, and for how long."""

    def __init__(self) -> None:
        self._key = self._key_before = ("", "")
        self._since_s = self._since_before_s = 0.0

    def read(self, windows: list[Window]) -> Bound | None:
        """Returns what binds, from the windows so far; None if it is unknown, or nothing binds."""
        found = current(recent(windows))
        if found is None or found.cause in (Cause.UNDETERMINED, Cause.NOTHING):
            return None
        # The number of calls in flight may change all the time while it is searched for.
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
    """Takes snapshots of a run, and keeps the readings for rates between them."""

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
        ended = max(tally.saved, runner.ended)
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
        """Returns the growth per second over that time, or over the part that exists.

        Between two readings the growth is assumed to be even.
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
        """Returns the figures of the windows, computed once for each new window."""
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
        """Returns the seconds until the end, and whether they are frozen."""
        found = self._lately.estimate
        if not left or found.eta_s is None:
            return None, False
        is_on_hold = found.is_on_hold or is_held
        if is_on_hold:
            return found.eta_s, True
        return max(0.0, found.eta_s - (now_s - self._lately.seen_s)), False
