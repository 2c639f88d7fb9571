"""Models how long a server takes for a call, fitted to recorded calls.

The work of a call, in seconds, is a base plus an amount for each token that is read, read from the
cache, or written. One of these forms turns work into time: the one whose predictions are nearest to
the recorded latencies, but the first one unless another form is clearly nearer.

form      a call takes
parallel  its work, regardless of the number of other calls
slots     its work, after it has waited in order of arrival until fewer than `at_once` are at work
shared    its work times 1 + slowdown (n - 1) while n calls are in flight

No server is assumed to work on more calls at once than were recorded: further calls wait, as in the
form `slots`.

The variation of the work that tokens do not explain is drawn from that of the recorded calls.

The weights are a least-squares fit with none below 0 (Lawson and Hanson, Solving Least Squares
Problems, 1974), of relative errors, because long calls vary by more seconds than short ones.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from operator import mul
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

# With fewer answers, a server's service is guessed, see `guessed`.
LEAST_CALLS = 30
# Only this many of a server's latest calls are fitted: more do not change a fit of four weights.
_MOST_CALLS = 2000
# A form other than the first must fit better by this share; a further weight must reduce the
# squared error by half of this share.
_CLEARLY = 0.05
_ROUNDS = 3
_SLOWDOWNS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
_LEAST_S = 1e-6
_QUANTILES = 200
_TERMS = 4

Form = Literal["parallel", "slots", "shared"]


class Served(NamedTuple):
    """One attempt at a server. new, cached: input tokens that were not, or were, in its cache."""

    sent_s: float
    done_s: float
    new: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    is_answer: bool = True

    @property
    def latency_s(self) -> float:
        return max(_LEAST_S, self.done_s - self.sent_s)


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The service model of one server.

    base_s: seconds of work for each call. input_s, cached_s, output_s: seconds for each token.
    at_once: for the form `slots`, otherwise 0. slowdown: for the form `shared`, otherwise 0. seen:
    the most calls that were in flight at once in the record.
    off: the median relative difference between predicted and recorded latencies. spread: quantiles
    of the work of calls divided by the work that the weights predict. calls: number of answers that
    were fitted. is_own: whether there were enough answers; otherwise the service is guessed.
    failures: the share of the attempts that failed. failed_s: quantiles of the seconds that failed
    attempts took.
    """

    form: Form = "parallel"
    base_s: float = 0.0
    input_s: float = 0.0
    cached_s: float = 0.0
    output_s: float = 0.0
    at_once: int = 0
    slowdown: float = 0.0
    seen: int = 1
    off: float = 0.0
    spread: tuple[float, ...] = (1.0,)
    calls: int = 0
    is_own: bool = True
    failures: float = 0.0
    failed_s: tuple[float, ...] = (0.0,)

    def work_s(self, new: float, cached: float, output: float, draw: float) -> float:
        """Returns the seconds of work of a call with these tokens. draw: 0 to 1, random."""
        usual_s = self.base_s + self.input_s * new + self.cached_s * cached + self.output_s * output
        return max(_LEAST_S, usual_s * quantile(self.spread, draw))

    def __str__(self) -> str:
        """Returns a text like `210 ms + 10 ms per output token, 4 at once`."""
        weights = (self.input_s, "input"), (self.cached_s, "cached"), (self.output_s, "output")
        parts = [_seconds(self.base_s)] if self.base_s or not any(w for w, _ in weights) else []
        parts += [f"{_seconds(weight)} per {name} token" for weight, name in weights if weight]
        text = " + ".join(parts)
        if self.form == "slots":
            return f"{text}, {self.at_once} at once"
        if self.form == "shared":
            text += f", {self.slowdown:.0%} more for each other call in flight"
        return f"{text}, up to {self.seen} at once"


def fitted(attempts: Sequence[Served]) -> Service | None:
    """Returns the service that fits best; None for too few answers. attempts: in any order."""
    by_time = sorted(attempts, key=lambda one: one[:2])[-_MOST_CALLS:]
    answers = [one for one in by_time if one.is_answer]
    failed_s = sorted(one.latency_s for one in by_time if not one.is_answer)
    if len(answers) < LEAST_CALLS:
        return None
    best = _best(by_time)
    return replace(
        best,
        seen=most_at_once(by_time),
        calls=len(answers),
        failures=len(failed_s) / len(by_time),
        failed_s=_quantiles(failed_s) or (0.0,),
    )


def guessed(attempts: Sequence[Served], usual: Service) -> Service:
    """Returns a service for a server with too few answers, fitted as if tokens did not matter.

    usual: another service, whose `spread` and `off` are used; if there is no answer at all, all of
    its values.
    """
    if not any(one.is_answer for one in attempts):
        return replace(usual, calls=0, is_own=False)
    # With so few answers, weights of tokens would be random.
    by_time = sorted(one._replace(new=0.0, cached=0.0, output=0.0) for one in attempts)
    return replace(
        _best(by_time),
        seen=most_at_once(by_time),
        off=usual.off,
        spread=usual.spread,
        calls=sum(one.is_answer for one in attempts),
        is_own=False,
    )


def mean_s(attempts: Sequence[Served]) -> float:
    """Returns the mean latency of the answers; there must be at least one."""
    return statistics.fmean(one.latency_s for one in attempts if one.is_answer)


def _best(by_time: Sequence[Served]) -> Service:
    """Returns the form and setting that fit best. At least one attempt must be an answer."""
    simplest, *others = [_fit(*shape, by_time) for shape in _shapes(by_time)]
    best = min(others, key=lambda one: one.off, default=simplest)
    return simplest if best.off > simplest.off * (1 - _CLEARLY) else best


class _Part(NamedTuple):
    """An attempt according to a form: a wait, followed by work.

    stretch: seconds that one second of work takes.
    """

    wait_s: float
    work_s: float
    stretch: float = 1.0


def _shapes(by_time: Sequence[Served]) -> Iterator[tuple[Service, list[_Part]]]:
    """Yields every form with each setting to try, and the attempts according to that form."""
    latencies_s = [one.latency_s for one in by_time]
    yield Service(), [_Part(0.0, latency_s) for latency_s in latencies_s]
    most, at_once = most_at_once(by_time), 1
    while at_once < most:
        pairs = zip(latencies_s, _waits_s(by_time, at_once), strict=True)
        yield (
            Service(form="slots", at_once=at_once),
            [_Part(wait_s, max(_LEAST_S, latency_s - wait_s)) for latency_s, wait_s in pairs],
        )
        at_once = max(at_once + 1, math.floor(at_once * 1.15))
    for slowdown in _SLOWDOWNS if most > 1 else ():
        pairs = zip(latencies_s, _shared_s(by_time, slowdown), strict=True)
        yield (
            Service(form="shared", slowdown=slowdown),
            [_Part(0.0, work_s, latency_s / work_s) for latency_s, work_s in pairs],
        )


def most_at_once(spans_s: Iterable[Sequence[float]]) -> int:
    """Returns the highest number of spans that overlap at any time.

    spans_s: sorted by start; the first two items of each are its start and its end. A span that
    starts when another ends does not overlap it.
    """
    ends_s, most = list[float](), 0
    for begin_s, end_s, *_ in spans_s:
        while ends_s and ends_s[0] <= begin_s:
            heapq.heappop(ends_s)
        heapq.heappush(ends_s, end_s)
        most = max(most, len(ends_s))
    return most


def _waits_s(by_time: Sequence[Served], at_once: int) -> list[float]:
    """Returns how long each attempt has waited for one of `at_once` slots."""
    latest_s, waits_s = list[float](), list[float]()
    for one in by_time:
        # The earliest of the `at_once` latest ends: from then on, a slot is free.
        is_full = len(latest_s) == at_once
        waits_s.append(max(0.0, latest_s[0] - one.sent_s) if is_full else 0.0)
        if is_full:
            heapq.heappushpop(latest_s, one.done_s)
        else:
            heapq.heappush(latest_s, one.done_s)
    return waits_s


def _shared_s(by_time: Sequence[Served], slowdown: float) -> list[float]:
    """Returns the work of each attempt in seconds, if calls slow each other down."""
    events = sorted(
        [(one.sent_s, 1, number) for number, one in enumerate(by_time)]
        + [(one.done_s, -1, number) for number, one in enumerate(by_time)]
    )
    works_s = [0.0] * len(by_time)
    done_s, at_s, in_flight = 0.0, events[0][0], 0
    for next_s, change, number in events:
        done_s += (next_s - at_s) / (1 + slowdown * max(0, in_flight - 1))
        at_s, in_flight = next_s, in_flight + change
        works_s[number] = done_s - works_s[number] if change < 0 else done_s
    return [max(_LEAST_S, work_s) for work_s in works_s]


def _fit(form: Service, parts: Sequence[_Part], by_time: Sequence[Served]) -> Service:
    """Fits the weights of a form; returns the form with them and the error of its predictions.

    At least one attempt must be an answer.
    """
    answers = [(part, one) for part, one in zip(parts, by_time, strict=True) if one.is_answer]
    terms = [(1.0, one.new, one.cached, one.output) for _, one in answers]
    weights = _weights(terms, [part.work_s for part, _ in answers])
    off, ratios = list[float](), list[float]()
    for (part, one), term in zip(answers, terms, strict=True):
        usual_s = max(_LEAST_S, _sum(weights, term))
        off.append(abs(math.log((part.wait_s + part.stretch * usual_s) / one.latency_s)))
        ratios.append(part.work_s / usual_s)
    base_s, input_s, cached_s, output_s = weights
    return replace(
        form,
        base_s=base_s,
        input_s=input_s,
        cached_s=cached_s,
        output_s=output_s,
        off=math.expm1(statistics.median(off)),
        spread=_quantiles(sorted(ratios)),
    )


def _weights(terms: Sequence[tuple[float, ...]], works_s: Sequence[float]) -> list[float]:
    """Returns the weight of each term, 0 or more; as few are above 0 as explain the work well."""
    mean_s = statistics.fmean(works_s)
    found = [mean_s, 0.0, 0.0, 0.0]
    for _ in range(_ROUNDS):
        # Errors are relative to the predicted work, with a lower bound: otherwise a call with a
        # prediction near 0 would dominate the fit.
        rows = list[list[float]]()
        for term, work_s in zip(terms, works_s, strict=True):
            scale = 1 / max(_sum(found, term), mean_s / 100)
            rows.append([value * scale for value in (*term, work_s)])
        columns = [*zip(*rows, strict=True)]
        found = _sparse([[_sum(one, other) for other in columns] for one in columns])
    return found


def _sparse(sums: Sequence[Sequence[float]]) -> list[float]:
    """Returns the fewest weights whose squared error is at most a few per cent above the least.

    sums: sums[i][j] is the sum of products of columns i and j; the columns are the terms, then the
    work, each divided by the predicted work.
    """
    *with_work, all_work = sums[_TERMS]
    best, least = [0.0] * _TERMS, math.inf
    for count in range(1, _TERMS + 1):
        for chosen in combinations(range(_TERMS), count):
            weights = _solved(sums, chosen)
            if weights is None or min(weights) < 0:
                continue
            found = [0.0] * _TERMS
            for i, weight in zip(chosen, weights, strict=True):
                found[i] = weight
            error = max(0.0, all_work - _sum(found, with_work))
            if error < least * (1 - _CLEARLY / 2):
                best, least = found, error
    return best


def _solved(sums: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[float] | None:
    """Returns the weights of the chosen terms alone; None if the terms are linearly dependent.

    Gauss-Jordan elimination needs no pivoting here: sums of products are symmetric and positive
    semidefinite.
    """
    rows = [[sums[i][j] for j in chosen] + [sums[i][_TERMS]] for i in chosen]
    for at, i in enumerate(chosen):
        pivot = rows[at]
        if pivot[at] <= 1e-9 * sums[i][i]:
            return None
        for other, row in enumerate(rows):
            if other != at:
                share = row[at] / pivot[at]
                rows[other] = [mine - share * its for mine, its in zip(row, pivot, strict=True)]
    return [row[-1] / row[at] for at, row in enumerate(rows)]


def _sum(weights: Sequence[float], term: Sequence[float]) -> float:
    return float(sum(map(mul, weights, term)))


def _quantiles(ordered: Sequence[float]) -> tuple[float, ...]:
    """Returns at most _QUANTILES means of consecutive values; the overall mean hardly changes."""
    if len(ordered) <= _QUANTILES:
        return tuple(ordered)
    edges = [round(n * len(ordered) / _QUANTILES) for n in range(_QUANTILES + 1)]
    return tuple(statistics.fmean(ordered[begin:end]) for begin, end in pairwise(edges))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value with at least this share of the sorted values at or below it."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _seconds(value_s: float) -> str:
    """Returns a text like `1.2 s`, `34 ms` or `56 us`."""
    if value_s >= 1:
        return f"{value_s:.3g} s"
    return f"{value_s * 1e3:.3g} ms" if value_s >= 1e-3 else f"{value_s * 1e6:.3g} us"
