"""Decides which endpoint of a pool gets a call, from the endpoints' figures.

strategy          chooses the endpoint
p2c               of eight drawn at random, the one with the shortest expected time to answer: the
                  known calls at its server plus one, divided by its capacity, times its latency
least_tokens      with the fewest seconds of work: tokens of its calls in flight / tokens per second
room              where the call could start earliest, for endpoints with rate limits
prefix            that has seen the longest prefix of the prompt, unless its load is too high
cheapest          with room and the lowest price per token
round_robin       whose turn it is; turns are in proportion to capacity
weighted_score    with the highest score:
                  0.3 (1 - gpu) + 0.3 / (queue + 1) + 0.2 / (latency + 0.1) + 0.2 availability
normalized_score  at random, in proportion to a score of the same figures, each scaled to 0..1

p2c: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001.
prefix: bounded loads as in Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded
Loads, SODA 2018.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from redline.waist import Request

# A mean covers about this many recent answers, or all since the last review if there are more.
MEMORY = 16
# A latency counts half when the endpoint's latest answer is this many seconds old.
FORGET_S = 60.0
# The same age as a multiple of the fastest endpoint's latency, which applies if it is shorter: the
# first answer of a new server may be slow, and a minute is enough for thousands of short calls.
FORGET_CALLS = 60
# Seconds between two reviews of the figures.
REVIEW_S = 1.0
# Figures that a server reported more than this many seconds ago are ignored.
STALE_S = 10.0
# The number of endpoints remembered for each prefix: the latest ones that got it.
OWNERS = 2


# Several fields are set for each call, which takes twice as long in a Struct.
@dataclass(kw_only=True, eq=False, slots=True)
class Figures:
    """What a strategy knows about one endpoint.

    weight: its capacity relative to the others. in_flight: this pool's calls at the endpoint.
    tokens: expected usage of these calls. tokens_per_s: the rate at which it processes tokens, 0 if
    unknown; see `drained`. coming: calls in flight that are about to reach its backend.
    latency_s: mean of its recent answers, 0 if unknown. availability: share of its recent calls
    that did not fail. price: for a million tokens, in any one currency.
    queued: waiting calls that its server reports. foreign: calls from outside this pool that its
    server has, running or waiting. gpu: the share of its GPU's cache that is in use, 0 to 1; None
    if unknown. seen_s: when these three were requested. room_s: seconds until it could start the
    call.
    answers: number of answers since its speed was last forgotten. answered_s: time of the latest.
    call_s: the time that each of its calls is expected to add before it answers one more call.
    expected_s: the time until it would answer one more call. others: `foreign` if fresh, otherwise
    0. call_s, expected_s and others date from the last `review` or answer; expected_s also counts
    calls that have begun or ended since.
    forgotten_s: its latency when its speed was last forgotten; 0 if it never was.
    fresh_s: latencies of the answers that the means do not include yet.
    credit: by round_robin, the sum of its shares of the calls that it could have got, less the
    number of those that it got.
    steady: with fewer calls in flight than this, it has room for another one; 0 if its backend must
    be asked before each call.
    """

    name: str = ""
    weight: float = 1.0
    in_flight: int = 0
    coming: int = 0
    tokens: float = 0.0
    tokens_per_s: float = 0.0
    latency_s: float = 0.0
    availability: float = 1.0
    price: float = 0.0
    queued: int = 0
    foreign: int = 0
    gpu: float | None = None
    seen_s: float = -math.inf
    room_s: float = 0.0
    answers: int = 0
    answered_s: float = 0.0
    call_s: float = 1.0
    expected_s: float = 1.0
    others: int = 0
    forgotten_s: float = 0.0
    fresh_s: list[float] = field(default_factory=list)
    credit: float = 0.0
    steady: int = 0
    _drained_tokens: float = field(default=0.0, init=False)
    _busy_s: float = field(default=0.0, init=False)

    def began(self) -> None:
        """Counts a call that is sent to the endpoint."""
        self.in_flight += 1
        self.expected_s += self.call_s

    def ended(self) -> None:
        """Counts a call that ended without an answer."""
        self.in_flight -= 1
        self.expected_s -= self.call_s

    def answered(self, latency_s: float, now_s: float) -> None:
        """Counts an answered call."""
        self.in_flight -= 1
        self.fresh_s.append(latency_s)
        self.take_up(now_s)

    def take_up(self, now_s: float) -> None:
        """Includes the answers in `fresh_s`, at least one, in the means."""
        fresh = len(self.fresh_s)
        self.answers = answers = self.answers + fresh
        self.answered_s = now_s
        of = max(fresh, min(answers, MEMORY))
        latency_s = self.latency_s + (sum(self.fresh_s) - fresh * self.latency_s) / of
        self.latency_s = latency_s
        self.call_s = call_s = latency_s / self.weight
        self.expected_s = (self.in_flight + self.others + 1) * call_s
        if self.availability < 1:
            self.availability = 1 - (1 - self.availability) * (1 - 1 / MEMORY) ** fresh
        self.fresh_s.clear()

    def review(self, usual_s: float, forget_s: float, now_s: float) -> None:
        """Updates the figures for the time that has passed.

        usual_s: the latency to assume if the endpoint's own is unknown. forget_s: the age in
        seconds at which a latency counts half.
        """
        # The older the latest answer, the less the latency counts, so that a slow endpoint gets a
        # call again.
        age_s = now_s - self.answered_s
        latency_s = self.latency_s / (1 + age_s / forget_s) if self.latency_s else usual_s
        self.call_s = latency_s / self.weight
        self.others = self.foreign if _is_fresh(self, now_s) else 0
        self.expected_s = (self.in_flight + self.others + 1) * self.call_s

    def forget(self) -> None:
        """Forgets the endpoint's speed, which may be different from now on."""
        self.answers = 0
        self.forgotten_s = self.latency_s or self.forgotten_s
        self.latency_s = 0.0
        self.fresh_s.clear()
        self.tokens_per_s = self._drained_tokens = self._busy_s = 0.0

    def failed(self) -> None:
        """Counts a call that failed because of the endpoint."""
        self.availability -= self.availability / MEMORY

    def drained(self, tokens: float, took_s: float) -> None:
        """Updates the token rate with an answer that took `took_s` seconds for `tokens` tokens.

        The rate is the tokens per second of one call, times the weight. Dividing all tokens by the
        time with calls in flight would make an endpoint with few calls seem slow, so that it would
        stay short of calls.
        """
        keep = 1 - 1 / MEMORY
        self._drained_tokens = self._drained_tokens * keep + tokens
        self._busy_s = self._busy_s * keep + took_s
        if self._busy_s > 0:
            self.tokens_per_s = self.weight * self._drained_tokens / self._busy_s


F = TypeVar("F", bound=Figures)


class Asked(msgspec.Struct, frozen=True):
    """What a strategy needs to know about a call.

    tokens: expected usage, input and output. blocks: hashes of its prompt's prefixes, the shortest
    first. request: the request itself, if the strategy needs "room".
    """

    tokens: float = 0.0
    blocks: tuple[int, ...] = ()
    request: Request | None = None


class Strategy:
    """Chooses among endpoints that could all take the call.

    looks_at: number of endpoints to choose from, drawn at random; 0 for all. needs: the facts that
    it uses and that take time to find: "tokens", "blocks" or "room".
    """

    looks_at = 0
    needs = frozenset[str]()

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        """Returns the endpoint that gets the call; by default, the one with the lowest rank.

        If `looks_at` is not 0, the chosen endpoint may turn out to be full; the pool then calls the
        strategy again without that endpoint. among: one or more.
        """
        return min(among, key=lambda one: (self.rank(one, now_s), _load(one, now_s)))

    def rank(self, one: Figures, now_s: float) -> float:
        """Returns the endpoint's rank; of several with the lowest, the least loaded is chosen."""
        return 0.0


class PowerOfTwo(Strategy):
    """p2c: two draws would spread calls evenly; eight are made to find fast and idle endpoints."""

    looks_at = 8

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        return soonest(among)


class LeastTokens(Strategy):
    """least_tokens: the endpoint with the fewest seconds of work; among equals, the least loaded.

    An endpoint of unknown speed is assumed to be as fast, per unit of weight, as the mean of the
    others. The longer an endpoint has not answered, the faster it is assumed to be, so that a slow
    endpoint gets a call again.
    """

    needs = frozenset({"tokens"})

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        def per_s(one: Figures) -> float:
            return one.tokens_per_s * (1 + (now_s - one.answered_s) / FORGET_S)

        known = [per_s(one) / one.weight for one in among if one.tokens_per_s > 0]
        usual = sum(known) / len(known) if known else 1.0

        def work_s(one: Figures) -> float:
            return (one.tokens + asked.tokens) / (per_s(one) or usual * one.weight)

        return min(among, key=lambda one: (work_s(one), _load(one, now_s)))


class EarliestRoom(Strategy):
    """room: the endpoint where the call could start earliest."""

    needs = frozenset({"room"})

    def rank(self, one: Figures, now_s: float) -> float:
        return one.room_s


class LongestPrefix(Strategy):
    """prefix: the endpoint that has seen the longest prefix of the prompt, within a load bound.

    most: number of prefixes remembered, the latest ones. slack: prefixes do not count for an
    endpoint whose load is above `slack` times the mean load, plus one call (bounded loads). If no
    endpoint is left, the least loaded gets the call. When calls wait, an endpoint with room gets
    the first call whose longest known prefix it has seen; otherwise the first one without a known
    prefix, or with one that OWNERS endpoints have seen; otherwise the first.
    """

    needs = frozenset({"blocks"})

    def __init__(self, *, most: int = 200_000, slack: float = 1.25) -> None:
        # Each value has its latest endpoint first. Keys are in order of use, oldest first, and a
        # prompt's longer prefixes come before its shorter ones: a prefix is always forgotten after
        # the longer prefixes that start with it.
        self._seen: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._most = most
        self._slack = slack

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        chosen = self._of_prefix(among, asked, now_s) or super().choose(among, asked, now_s)
        self._remember(asked, chosen.name)
        return chosen

    def next_for(self, names: Collection[str], waiting: Sequence[Asked]) -> int:
        """Returns the index of the waiting call that one of the endpoints `names` gets next.

        waiting: one or more, in order.
        """
        unseen = None
        for index, asked in enumerate(waiting):
            known = self._known(asked)
            owners = self._seen[asked.blocks[known - 1]] if known else ()
            if any(name in names for name in owners):
                return index
            # A prefix that several endpoints have seen belongs to none of them.
            if unseen is None and (not owners or len(owners) == OWNERS):
                unseen = index
        return unseen or 0

    def _of_prefix(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures | None:
        """Returns the endpoint within the load bound that saw the longest prefix; None if none did.

        If several did, returns the least loaded of them.
        """
        known = self._known(asked)
        if not known:
            return None
        loads = {one.name: _load(one, now_s) for one in among}
        mean = sum(loads.values()) / len(among)
        within = {
            one.name: one for one in among if loads[one.name] <= self._slack * mean + 1 / one.weight
        }
        for block in reversed(asked.blocks[:known]):
            owners = [name for name in self._seen.get(block, ()) if name in within]
            if owners:
                return within[min(owners, key=loads.__getitem__)]
        return None

    def _known(self, asked: Asked) -> int:
        """Returns how many of the prompt's prefixes have been seen, from the shortest on."""
        blocks = asked.blocks
        return bisect_left(range(len(blocks)), True, key=lambda n: blocks[n] not in self._seen)

    def _remember(self, asked: Asked, name: str) -> None:
        seen, alone = self._seen, (name,)
        for block in reversed(asked.blocks):
            owners = seen.get(block)
            if owners is None:
                # Most prefixes belong to one endpoint: this prompt's prefixes share one tuple.
                seen[block] = alone
            elif owners[0] != name:
                others = [one for one in owners if one != name]
                seen[block] = (name, *others[: OWNERS - 1])
            seen.move_to_end(block)
        while len(seen) > self._most:
            seen.popitem(last=False)


class Cheapest(Strategy):
    """cheapest: the lowest price."""

    def rank(self, one: Figures, now_s: float) -> float:
        return one.price


class RoundRobin(Strategy):
    """round_robin, smoothly: with weights 3 and 1, the second endpoint gets every fourth call.

    For each call, every endpoint that could take it is credited with its share of the weights, and
    the one with the most credit gets the call. See Fagin and Williams, A Fair Carpool Scheduling
    Algorithm, IBM J. Res. Dev. 27(2), 1983.
    """

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        total = sum(one.weight for one in among)
        for one in among:
            one.credit += one.weight / total
        # Rounded, because a sum of floats depends on their order.
        chosen = max(among, key=lambda one: round(one.credit, 9))
        chosen.credit -= 1
        return chosen


class WeightedScore(Strategy):
    """weighted_score: a fixed formula, whose result depends on the unit of the latency.

    An unknown GPU figure counts as 0. Of equal scores, the first is chosen. This strategy is only
    for comparison with the others.
    """

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        def score(one: Figures) -> float:
            queue = one.queued if _is_fresh(one, now_s) else one.in_flight
            return (
                0.3 * (1 - (one.gpu or 0.0))
                + 0.3 / (queue + 1)
                + 0.2 / (one.latency_s + 0.1)
                + 0.2 * one.availability
            )

        return max(among, key=score)


class NormalizedScore(Strategy):
    """normalized_score: a score of figures that are each divided by the pool's largest.

    An endpoint whose latency is unknown, or whose GPU figure is unknown or stale, gets the mean of
    the other endpoints for that part of the score. Endpoints are drawn in proportion to their
    scores, so that many processes that decide at the same time do not choose the same endpoint.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        idle = _relative([_idle(one, now_s) for one in among])
        loads = _relative([1 / (1 + _load(one, now_s)) for one in among])
        fastest_s = min((one.latency_s for one in among if one.latency_s > 0), default=0.0)
        speeds = _relative(
            [fastest_s / one.latency_s if one.latency_s > 0 else None for one in among]
        )
        scores = [
            (0.3 * gpu + 0.3 * load + 0.2 * speed + 0.2) * one.availability
            for one, gpu, load, speed in zip(among, idle, loads, speeds, strict=True)
        ]
        if not any(scores):
            return self._draw.choice(among)
        return self._draw.choices(among, scores)[0]


def strategy_of(name: str, draw: random.Random) -> Strategy:
    """Returns a new strategy with this name. Raises KeyError for an unknown name."""
    if name == "normalized_score":
        return NormalizedScore(draw)
    return _STRATEGIES[name]()


_STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "p2c": PowerOfTwo,
    "least_tokens": LeastTokens,
    "room": EarliestRoom,
    "prefix": LongestPrefix,
    "cheapest": Cheapest,
    "round_robin": RoundRobin,
    "weighted_score": WeightedScore,
}
STRATEGIES = (*_STRATEGIES, "normalized_score")


def soonest(among: Sequence[F]) -> F:
    """Returns the endpoint that should answer first; among equals, the first. among: one or more.

    Fast enough for every call of a pool: it compares a single figure, which is kept up to date.
    """
    # `min` takes three times as long, since it calls its key for each element.
    best = among[0]
    least_s = best.expected_s
    for one in among:
        if one.expected_s < least_s:
            best, least_s = one, one.expected_s
    return best


def draws(among: Sequence[F], most: int, draw: Callable[[], float]) -> Iterator[Sequence[F]]:
    """Returns an endless iterator over random draws from these endpoints.

    among: one or more. most: the size of each draw; 0 for all. draw: returns a random number, at
    least 0 and below 1. Each draw begins with a different endpoint until all have been first, so
    that equally good endpoints take turns. The same draws recur: do not change them.
    """
    count = len(among)
    first = int(draw() * count)
    ring = [*among[first:], *among[:first]] * 2
    # Each draw is made when first needed; later, `cycle`, which is in C, repeats it. Every call
    # needs a draw.
    return cycle(part(ring) for part in _parts(count, min(most or count, count)))


@lru_cache(maxsize=64)
def _parts(count: int, size: int) -> list[Callable[[Sequence[Any]], Sequence[Any]]]:
    """Returns getters of `size` of `count` elements of a doubled list, in random order.

    Each element is the first of one draw, and is in `size` of the draws. The steps between the
    elements are random, as neighbouring endpoints of a pool are often alike.
    """
    random_of = random.Random(count)
    firsts = random_of.sample(range(count), count)
    if size in (1, count):
        return [itemgetter(slice(first, first + size)) for first in firsts]
    steps = [0, *random_of.sample(range(1, count), size - 1)]
    return [itemgetter(*(first + step for step in steps)) for first in firsts]


def review(among: Sequence[Figures], now_s: float) -> None:
    """Updates the expected latencies of these endpoints, which must be all endpoints of a pool.

    An endpoint with X calls is expected to answer one more call after X + 1 times its mean latency,
    divided by its weight. An endpoint of unknown latency is assumed to be as fast as the mean of
    the others.
    """
    known = [one.latency_s for one in among if one.latency_s]
    usual_s = sum(known) / len(known) if known else 1.0
    forget_s = min([FORGET_S, *(FORGET_CALLS * latency_s for latency_s in known)])
    for one in among:
        one.review(usual_s, forget_s, now_s)


def _load(one: Figures, now_s: float) -> float:
    """Returns the endpoint's calls, from this pool and from outside, divided by its weight."""
    in_flight = one.in_flight
    if one.foreign and _is_fresh(one, now_s):
        in_flight += one.foreign
    return in_flight / one.weight


def _is_fresh(one: Figures, now_s: float) -> bool:
    return now_s - one.seen_s <= STALE_S


def _idle(one: Figures, now_s: float) -> float | None:
    """Returns the unused share of the GPU's cache, 0 to 1; None if unknown or stale."""
    return 1 - one.gpu if one.gpu is not None and _is_fresh(one, now_s) else None


def _relative(values: Sequence[float | None]) -> list[float]:
    """Divides each value by the largest; unknown values count as the mean of the known ones."""
    known = [value for value in values if value is not None]
    largest = max(known, default=0.0)
    if largest <= 0:
        return [1.0] * len(values)
    mean = sum(known) / len(known)
    return [(mean if value is None else value) / largest for value in values]
