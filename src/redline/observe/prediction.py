"""Predicts the effect of other settings, and checks whether a run's prediction came true.

The rate of answers is the minimum of what each constraint allows:

limits        what each rate limit allows; for a limit that binds, the observed rate
endpoint      its rate with all slots in use, from the curve fitted to all observed levels
client        the rate at which its event loop would be busy for 95 % of the time; if it binds, the
              observed rate
input, disk   the observed rate, if one of them binds

A different setting moves one constraint, and then the next one binds. Nothing is predicted for more
than twice the observed number of calls in flight. The curve needs three levels, the highest at
least 1.5 times the lowest; levels of earlier runs of the job with the same endpoints and model
count as well, and `-c auto` tries several in one run. If limits bind at only some of several
endpoints, nothing is predicted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import mul
from statistics import fmean

import msgspec
from msgspec.structs import replace

from redline.observe.binding import bindings
from redline.observe.causes import Cause
from redline.observe.curve import Curve, Draws, around, combined, quantile
from redline.observe.shares import summary_of
from redline.observe.steady import Level, is_alike, level_of, levels_of, steady
from redline.process import counted
from redline.timeline import (
    MOST_ENDPOINTS,
    MOST_LIMITS,
    LimitUse,
    Prediction,
    RunFacts,
    RunHistory,
    Window,
    merged,
)

_LEAST_LEVELS, _LEAST_FACTOR = 3, 1.5
_FURTHEST = 2.0
# A few slots are free now and then, so a level is a little lower than the slots: with this factor,
# twice as many slots still count as twice the level.
_ROUNDING = 1.1
# Predictions start from a run's last steady minute. A measurement needs this many steady seconds.
_LATELY_S, _LEAST_S = 60.0, 3.0
# Quantiles of a prediction: the interval should contain the rate in 19 of 20 cases.
_LOW, _MIDDLE, _HIGH = 0.025, 0.5, 0.975
# Standard errors of the logarithms of rates: of the rate that a binding cause allows, of that which
# another limit allows, of that which the client allows if it does not bind, and of the rate that is
# measured in the later run.
_BINDING_ERROR, _SPARE_ERROR, _CLIENT_ERROR, _LATER_ERROR = 0.015, 0.03, 0.1, 0.02
# The event loop binds once it is busy for this share of the time. Below the second share, the
# client is assumed to allow any rate.
_BUSY_AT_MOST, _LEAST_BUSY = 0.95, 0.05
# A likely gain below _NO_GAIN counts as no gain, unless the gain may reach _UNSURE_GAIN.
_NO_GAIN = 0.05
_UNSURE_GAIN = 0.15
# A limit is used up from this share on. An endpoint that has used less of its limits than the
# second share, relative to another endpoint, is not held back by them.
_USED_UP, _SPARE = 0.9, 0.8
_FIXED = (Cause.INPUT, Cause.CLIENT, Cause.WRITER)

_FEW_LEVELS = (
    "the job has run at too few different numbers of calls in flight; -c auto tries several"
)
_NOT_STEADY = "the run was not steady for long enough"
_NOTHING_BINDS = "no setting is known to hold it back"
_NEW_LIMIT = "a limit is new"
_MIXED = "limits bind at only some of the endpoints"
_TOO_FAR = "it needs more than twice the calls in flight seen so far"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a run.

    slots: the maximum number of calls in flight; 0 for no bound. limits: the amount over all
    endpoints, by kind and window, such as `requests/min`. endpoints: the number of endpoints.
    """

    slots: float
    limits: dict[str, int]
    endpoints: int = 1


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The observations of a job.

    setting, level, cause: the setting, the recent level and the binding cause of the latest run.
    most_slots: a search's maximum number of calls in flight; 0 if unknown. caps: for each limit, by
    its key in Setting, the answers per second that it allows, and the standard error of their
    logarithm; None if limits bind at only some of the endpoints. others: the answers per second
    that the client, the input and the disk allow. curve: None if there are too few levels.
    """

    setting: Setting
    most_slots: int
    level: Level
    cause: Cause
    caps: dict[str, tuple[float, float]] | None
    others: list[Draws]
    curve: Curve | None


def setting_of(slots: float, limits: Sequence[LimitUse], endpoints: int) -> Setting:
    """Returns the setting of a run with these limits, slots and number of endpoints."""
    counts = Counter[str]()
    for use in limits:
        counts[_key(use.name)] += use.count
    return Setting(slots=slots, limits=dict(counts), endpoints=max(1, endpoints))


def _known_of(runs: Sequence[RunHistory]) -> _Known | str:
    """Returns the observations from a job's runs, or the reason why nothing can be predicted."""
    runs = [run for run in runs if run.windows]
    lately = _lately(runs[-1].windows) if runs else []
    level = level_of(lately)
    if level is None:
        return _NOT_STEADY
    last = runs[-1]
    begins = {window.begin_s for window in lately}
    bound = summary_of([one for one in bindings(last.windows) if one.begin_s in begins]).shares[0]
    cause = bound.cause
    if cause in (Cause.UNDETERMINED, Cause.NOTHING, Cause.DOWN):
        return _NOTHING_BINDS
    facts = last.facts.endpoints, last.facts.model
    levels = levels_of(
        run.windows for run in runs if (run.facts.endpoints, run.facts.model) == facts
    )
    is_enough = (
        len(levels) >= _LEAST_LEVELS and levels[-1].in_flight >= _LEAST_FACTOR * levels[0].in_flight
    )
    whole = merged(lately)
    return _Known(
        setting=setting_of(lately[-1].slots, whole.limits, len(last.facts.endpoints)),
        most_slots=last.facts.slots,
        level=level,
        cause=cause,
        caps=None
        if _is_mixed(lately, cause)
        else _caps(lately, level, bound.what if cause is Cause.LIMIT else ""),
        others=_others(whole, level, cause),
        curve=Curve(levels) if is_enough else None,
    )


def _predicted(known: _Known, to: Setting, change: str) -> Prediction:
    """Predicts the rate of answers with the setting `to`. change: describes it in words."""
    limits, before_per_s = known.setting.limits, known.level.per_s
    if known.caps is None:
        return Prediction(change=change, before_per_s=before_per_s, unknown=_MIXED)
    rates = known.others + [
        around(per_s * to.limits[name] / limits[name], error)
        for name, (per_s, error) in known.caps.items()
        if name in to.limits
    ]
    most = min((quantile(rate, _HIGH) for rate in rates), default=math.inf)
    found = _of_endpoint(known, to, most)
    if to.limits.keys() - limits.keys():
        found = _NEW_LIMIT
    if isinstance(found, str):
        high_per_s = 0.0 if most == math.inf else most
        return Prediction(
            change=change, before_per_s=before_per_s, high_per_s=high_per_s, unknown=found
        )
    for rate in rates:
        found = combined(min, found, rate)
    found = combined(mul, found, around(1.0, _LATER_ERROR))
    return Prediction(
        change=change,
        before_per_s=before_per_s,
        low_per_s=quantile(found, _LOW),
        likely_per_s=quantile(found, _MIDDLE),
        high_per_s=quantile(found, _HIGH),
    )


def _usual_changes(known: _Known) -> Iterator[tuple[Setting, str]]:
    """Yields the usual changes: twice the calls in flight, twice the limits, another endpoint."""
    now = known.setting
    if now.slots:
        yield replace(now, slots=2 * now.slots), f"{2 * now.slots:,.0f} calls in flight"
    if now.limits:
        raised = {name: 2 * count for name, count in now.limits.items()}
        yield replace(now, limits=raised), "twice the limits"
    if now.endpoints >= MOST_ENDPOINTS:
        return  # There may be more than those that are recorded.
    grown = 1 + 1 / now.endpoints
    limits = {name: round(count * grown) for name, count in now.limits.items()}
    # A search for the number of calls in flight would find more, up to its maximum.
    slots = max(now.slots, min(known.most_slots, grown * now.slots))
    more = replace(now, endpoints=now.endpoints + 1, limits=limits, slots=slots)
    yield more, "another endpoint or key" if known.cause is Cause.LIMIT else "another endpoint"


def predictions(runs: Sequence[RunHistory]) -> list[Prediction] | str:
    """Returns a prediction for each of the usual changes, or the reason why none is possible."""
    known = _known_of(runs)
    if isinstance(known, str):
        return known
    return [_predicted(known, to, change) for to, change in _usual_changes(known)]


def expected(earlier: Sequence[RunHistory], to: Setting, facts: RunFacts) -> Prediction | None:
    """Returns the prediction for a new run whose settings differ from the previous run's.

    to, facts: the setting and the facts of the new run. None if there is no earlier run, if nothing
    has changed, if the new run uses another model, or if its limits or endpoints differ and one of
    the two runs may have more endpoints than are recorded.
    """
    seen = [run for run in earlier if run.windows]
    # Compare the facts too: the slots and limits at the end of a run are not always its settings,
    # as when its endpoint was down or when response headers had lowered a limit.
    if not seen or _stated(seen[-1].facts) == _stated(facts):
        return None
    before, last = seen[-1], seen[-1].windows[-1]
    was = setting_of(last.slots, last.limits, len(before.facts.endpoints))
    if (before.facts.limits, before.facts.endpoints) == (facts.limits, facts.endpoints):
        # Headers may have lowered these limits, and if there are many, a window records only some.
        to = replace(to, limits=was.limits)
    elif MOST_ENDPOINTS in (was.endpoints, to.endpoints):
        return None
    change = ", ".join(_changes(was, to))
    if not change or before.facts.model != facts.model:
        return None
    known = _known_of(seen)
    if isinstance(known, str):
        return Prediction(change=change, before_per_s=0.0, unknown=known)
    return _predicted(known, to, change)


def _stated(facts: RunFacts) -> tuple[object, ...]:
    return facts.slots, facts.limits, facts.endpoints


def _changes(was: Setting, to: Setting) -> Iterator[str]:
    """Yields the changes in words, such as `8 -> 16 calls in flight`."""
    if round(was.slots) != round(to.slots):
        one = f"{was.slots:,.0f}" if was.slots else "any number of"
        other = counted(round(to.slots), "call") if to.slots else "any number of calls"
        yield f"{one} -> {other} in flight"
    for name in sorted({*was.limits, *to.limits}):
        amounts = was.limits.get(name), to.limits.get(name)
        if amounts[0] != amounts[1]:
            one, other = ("no limit of" if n is None else f"{n:,}" for n in amounts)
            yield f"{one} -> {other} {name}"
    if was.endpoints != to.endpoints:
        yield f"{was.endpoints} -> {counted(to.endpoints, 'endpoint')}"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for a run and its measured rate.

    holds: whether the rate was within the predicted interval.
    """

    prediction: Prediction
    measured_per_s: float

    @property
    def holds(self) -> bool:
        return self.prediction.holds(self.measured_per_s)


def scores_of(runs: Sequence[RunHistory]) -> list[Score]:
    """Returns the scores of those runs that had a prediction and were steady for long enough."""
    return [
        Score(prediction=run.prediction, measured_per_s=per_s)
        for run in runs
        if run.prediction is not None and (per_s := measured_per_s(run)) is not None
    ]


def measured_per_s(run: RunHistory) -> float | None:
    """Returns a run's answers per second while it was steady.

    None if it was steady for less than 3 s, or had too few answers in that time.
    """
    found = steady(run.windows)
    level = level_of(found)
    if level is None or sum(one.span_s for one in found) < _LEAST_S:
        return None
    return level.per_s


def gain_text(prediction: Prediction) -> str:
    """Returns `+62 % (40 to 71 %)`, `no gain (-2 to 3 %)`, or `unknown: ...`."""
    before = prediction.before_per_s
    if prediction.unknown:
        text = f"unknown: {prediction.unknown}"
        if before and prediction.high_per_s > before:
            text += f"; at most {_percent(prediction.high_per_s / before)}"
        return text
    rates = prediction.low_per_s, prediction.likely_per_s, prediction.high_per_s
    low, likely, high = (rate / before for rate in rates)
    interval = f"({100 * (low - 1):.0f} to {100 * (high - 1):.0f} %)"
    if abs(likely - 1) < _NO_GAIN and high - 1 < _UNSURE_GAIN:
        return f"no gain {interval}"
    return f"{_percent(likely)} {interval}"


def advice(found: Sequence[Prediction]) -> list[tuple[str, str]]:
    """Returns pairs (changes, effect) in words; `or` joins changes that have the same effect."""
    changes = defaultdict[str, list[str]](list)
    for prediction in found:
        changes[gain_text(prediction)].append(prediction.change)
    return [(" or ".join(alike), gain) for gain, alike in changes.items()]


def best_of(found: Sequence[Prediction]) -> Prediction | None:
    """Returns the change with the largest gain; None unless its lower bound is a gain above 5 %."""
    known = [one for one in found if not one.unknown]
    best = max(known, key=lambda one: one.likely_per_s, default=None)
    is_gain = best is not None and best.low_per_s > best.before_per_s * (1 + _NO_GAIN)
    return best if is_gain else None


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _lately(windows: Sequence[Window]) -> list[Window]:
    """Returns the windows of the last steady minute that have about the same calls in flight.

    The number of calls in flight is compared with that of the minute's last window.
    """
    found = steady(windows)
    since_s = found[-1].end_s - _LATELY_S if found else 0.0
    return [one for one in found if one.end_s > since_s and is_alike(one, found[-1])]


def _is_mixed(lately: Sequence[Window], cause: Cause) -> bool:
    """Returns whether limits bind at only some of the endpoints that have calls in flight.

    cause: what binds. False if something other than limits and endpoints binds, or if a window has
    as many limits as it can record.
    """
    whole = merged(lately)
    if cause in _FIXED or len(whole.limits) == MOST_LIMITS:
        return False
    used = defaultdict[str, list[float]](list)
    for window in lately:
        for use in window.limits:
            age = min(1.0, window.end_s / use.window_s)
            # In a run shorter than its window, a limit allows bursts, unless it holds calls back.
            if use.held or age == 1.0:
                used[use.name].append(min(1.0, use.used / (use.count * age)))
    shares = {one.name: 0.0 for one in whole.endpoints if one.in_flight}
    for name, found in used.items():
        at = name.partition(" at ")[2]
        if at in shares:
            shares[at] = max(shares[at], fmean(found))
    most = max(shares.values(), default=0.0)
    is_used_up = cause is Cause.LIMIT or most >= _USED_UP
    return is_used_up and min(shares.values(), default=0.0) < _SPARE * most


def _caps(lately: Sequence[Window], level: Level, binding: str) -> dict[str, tuple[float, float]]:
    """Returns the answers per second that each limit allows, and the error of their logarithm.

    binding: the names of the binding limits, joined with `and`; "" if no limit binds.
    """
    keys = {_key(use.name) for use in merged(lately).limits}
    bind = {_key(name) for name in binding.split(" and ")} & keys
    found = dict.fromkeys(bind, (level.per_s, _BINDING_ERROR))
    used, counts = Counter[str](), Counter[str]()
    for window in lately:
        for use in window.limits:
            # In a run shorter than the limit's window, the count does not cover a window yet.
            if window.end_s >= use.window_s:
                used[_key(use.name)] += use.used
                counts[_key(use.name)] += use.count
    for key in keys - bind:
        if used[key]:
            found[key] = (level.per_s / min(1.0, used[key] / counts[key]), _SPARE_ERROR)
    return found


def _others(whole: Window, level: Level, cause: Cause) -> list[Draws]:
    """Returns the answers per second that the client, the input and the disk allow."""
    if cause in _FIXED:
        return [around(level.per_s, _BINDING_ERROR)]
    if whole.busy < _LEAST_BUSY:
        return []
    return [around(level.per_s * max(1.0, _BUSY_AT_MOST / whole.busy), _CLIENT_ERROR)]


def _of_endpoint(known: _Known, to: Setting, most: float) -> Draws | str:
    """Returns the rate that the endpoint would reach with `to`, or the reason why it is unknown.

    most: the answers per second that all other constraints allow.
    """
    now, level = known.setting, known.level
    grown = to.endpoints / now.endpoints
    is_full = known.cause in (Cause.CONCURRENCY, Cause.ENDPOINT)
    slots = to.slots or math.inf
    is_same = is_full and grown == 1 and math.isclose(slots, now.slots or math.inf)
    # Another constraint binds, and still binds with the new setting.
    is_bound = most <= level.per_s * (1 + _NO_GAIN) and slots >= level.in_flight
    if is_same or (is_bound and grown >= 1):
        return around(level.per_s, _BINDING_ERROR)
    if known.curve is None:
        return _FEW_LEVELS
    # To reach the rate that the other constraints allow, the calls in flight need not grow by more
    # than the rate does.
    needed = min(slots, level.in_flight * max(1.0, most / level.per_s)) / grown
    furthest = _FURTHEST * known.curve.most
    if needed > furthest * _ROUNDING:
        return _TOO_FAR
    at = min(slots / grown, furthest)
    return [(grown * rate, weight) for rate, weight in known.curve.at(at)]


def _key(name: str) -> str:
    """Returns the kind and window of a limit without amount and endpoint: `requests/min`."""
    return name.partition(" ")[2].partition(" at ")[0]
