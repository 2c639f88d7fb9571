"""Which endpoint of a pool gets a call: plain functions of what is known of each endpoint.

p2c               of eight drawn at random, the one that should answer first: calls in flight, with
                  those that the server says it has queued, over capacity, times its latency
least_tokens      the fewest seconds of work: tokens of the calls in flight, over tokens per second
room              where the call could start earliest, for endpoints with rate limits
prefix            where the longest prefix of the prompt has been before, within a bound of load
cheapest          the lowest price per token, while it has room
round_robin       in turn, in proportion to capacity
weighted_score    0.3 (1 - gpu) + 0.3 / (queue + 1) + 0.2 / (latency + 0.1) + 0.2 availability
normalized_score  the same four figures relative to the others', drawn in proportion

p2c: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001.
prefix: bounded loads as in Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded
Loads, SODA 2018.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

# Answers that a mean counts.
MEMORY = 16
# A latency counts for half when the latest answer is so long ago.
FORGET_S = 60.0
# Figures that a server reported longer ago are not used.
STALE_S = 10.0


class Figures(msgspec.Struct, kw_only=True):
    """What a strategy knows of one endpoint.

    weight: its capacity in proportion to the others'. in_flight: calls on their way to it, of this
    pool. tokens: they are expected to use. tokens_per_s: it has been observed to produce, 0 if
    unknown. latency_s: mean of its answers of late, 0 if unknown. availability: share of its calls
    of late that did not fail. price: for a million tokens, in any one currency.
    queued: calls that its server says are waiting. gpu: 0 to 1, None if unknown. seen_s: when the
    server said so. room_s: seconds until it could start a call. answers: how many it has given.
    answered_s: when it gave the latest.
    """

    name: str = ""
    weight: float = 1.0
    in_flight: int = 0
    tokens: float = 0.0
    tokens_per_s: float = 0.0
    latency_s: float = 0.0
    availability: float = 1.0
    price: float = 0.0
    queued: int = 0
    gpu: float | None = None
    seen_s: float = -math.inf
    room_s: float = 0.0
    answers: int = 0
    answered_s: float = 0.0

    def answered(self, latency_s: float, now_s: float) -> None:
        """A call has been answered."""
        self.answers = answers = self.answers + 1
        self.answered_s = now_s
        self.latency_s += (latency_s - self.latency_s) / (answers if answers < MEMORY else MEMORY)
        if self.availability < 1:
            self.availability += (1 - self.availability) / MEMORY

    def failed(self) -> None:
        """A call has failed because of the endpoint."""
        self.availability -= self.availability / MEMORY


class Asked(msgspec.Struct, frozen=True):
    """What a strategy knows of a call.

    tokens: it is expected to use. blocks: hashes of its prompt's prefixes, the shortest first.
    """

    tokens: float = 0.0
    blocks: tuple[int, ...] = ()


class Strategy(Protocol):
    """Chooses among endpoints that could all take the call.

    looks_at: how many of them it wants to see, drawn at random; 0 for all. needs: which of the
    costlier things to know it uses: "tokens", "blocks", "room".
    """

    looks_at: int
    needs: frozenset[str]

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        """The index of the one that gets the call. among: one or more."""


class PowerOfTwo:
    """p2c. Two are enough to spread calls evenly; a few more find an idle endpoint that is fast."""

    looks_at = 8
    needs = frozenset[str]()

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        return _soonest(among, now_s)


class LeastTokens:
    """least_tokens. Of those with equal work, the least loaded.

    An endpoint of unknown speed is taken to be as fast as the mean of the others, by weight.
    """

    looks_at = 0
    needs = frozenset({"tokens"})

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        known = [one for one in among if one.tokens_per_s > 0]
        usual = sum(one.tokens_per_s / one.weight for one in known) / len(known) if known else 1.0

        def work_s(one: Figures) -> float:
            return (one.tokens + asked.tokens) / (one.tokens_per_s or usual * one.weight)

        return _least(among, lambda one: (work_s(one), _load(one, now_s)))


class EarliestRoom:
    """room. Of those that are equally early, the least loaded."""

    looks_at = 0
    needs = frozenset({"room"})

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        return _least(among, lambda one: (one.room_s, _load(one, now_s)))


class LongestPrefix:
    """prefix. Remembers for the `most` latest prefixes which endpoint has seen them.

    slack: an endpoint gets no call for its prefix when that gives it more than `slack` times the
    mean load, and a call; the least loaded gets it instead.
    """

    looks_at = 0
    needs = frozenset({"blocks"})

    def __init__(self, *, most: int = 200_000, slack: float = 1.25) -> None:
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._most = most
        self._slack = slack

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        chosen = self._of_prefix(among, asked, now_s)
        if chosen is None:
            chosen = _least(among, lambda one: _load(one, now_s))
        name = among[chosen].name
        for block in asked.blocks:
            self._seen[block] = name
            self._seen.move_to_end(block)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return chosen

    def _of_prefix(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int | None:
        places = {one.name: index for index, one in enumerate(among)}
        mean = sum(_load(one, now_s) for one in among) / len(among)
        for block in reversed(asked.blocks):
            index = places.get(self._seen.get(block, ""))
            if index is not None:
                one = among[index]
                if _load(one, now_s) <= self._slack * mean + 1 / one.weight:
                    return index
        return None


class Cheapest:
    """cheapest. Of equal prices, the least loaded."""

    looks_at = 0
    needs = frozenset[str]()

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        return _least(among, lambda one: (one.price, _load(one, now_s)))


class RoundRobin:
    """round_robin, smoothly: of weights 3 and 1, every fourth call goes to the second one."""

    looks_at = 0
    needs = frozenset[str]()

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        # Those that have left the pool are forgotten.
        credit = {one.name: self._credit.get(one.name, 0.0) + one.weight for one in among}
        chosen = _least(among, lambda one: -credit[one.name])
        credit[among[chosen].name] -= sum(one.weight for one in among)
        self._credit = credit
        return chosen


class WeightedScore:
    """weighted_score: the fixed formula, whose result depends on the unit of the latency.

    An unknown GPU figure counts as 0. For comparison with other strategies.
    """

    looks_at = 0
    needs = frozenset[str]()

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
        def score(one: Figures) -> float:
            queue = one.queued if _is_fresh(one, now_s) else one.in_flight
            return (
                0.3 * (1 - (one.gpu or 0.0))
                + 0.3 / (queue + 1)
                + 0.2 / (one.latency_s + 0.1)
                + 0.2 * one.availability
            )

        return _least(among, lambda one: -score(one))


class NormalizedScore:
    """normalized_score: each figure counts relative to the mean of the endpoints, 0 to 1.

    A GPU figure that is unknown or stale counts as the mean. Drawn in proportion to the scores, so
    that many who decide at once do not choose the same endpoint.
    """

    looks_at = 0
    needs = frozenset[str]()

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> int:
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
            return self._draw.randrange(len(among))
        return self._draw.choices(range(len(among)), scores)[0]


def strategy_of(name: str, draw: random.Random) -> Strategy:
    """The strategy of this name. Raises KeyError for any other."""
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


def _least(among: Sequence[Figures], cost: Callable[[Figures], object]) -> int:
    """The index of the one that costs least, of equals the first."""
    return min(range(len(among)), key=lambda index: cost(among[index]))  # type: ignore[arg-type,return-value]


def _soonest(among: Sequence[Figures], now_s: float) -> int:
    """The index of the one that should answer first, of equals the first.

    It is expected to take its mean latency for each call that it has, and for this one. An endpoint
    of unknown latency is taken to be as fast as the mean of the others.
    """
    known = [one.latency_s for one in among if one.latency_s]
    usual_s = sum(known) / len(known) if known else 1.0
    soonest, least = 0, math.inf
    for index, one in enumerate(among):
        # A latency that no answer has confirmed for a while counts less, so that an endpoint that
        # was slow gets a call again.
        age_s = now_s - one.answered_s
        latency_s = one.latency_s / (1 + age_s / FORGET_S) if one.latency_s else usual_s
        cost = (_load(one, now_s) + 1 / one.weight) * latency_s
        if cost < least:
            soonest, least = index, cost
    return soonest


def _load(one: Figures, now_s: float) -> float:
    """Calls that it has, or that wait for it, over its capacity."""
    in_flight = one.in_flight
    if one.queued and _is_fresh(one, now_s):
        in_flight += one.queued
    return in_flight / one.weight


def _is_fresh(one: Figures, now_s: float) -> bool:
    return now_s - one.seen_s <= STALE_S


def _idle(one: Figures, now_s: float) -> float | None:
    """The share of its GPU that is not used; None if that is not known."""
    return 1 - one.gpu if one.gpu is not None and _is_fresh(one, now_s) else None


def _relative(values: Sequence[float | None]) -> list[float]:
    """Each value over the largest, 0 to 1; the mean of the known ones for an unknown one."""
    known = [value for value in values if value is not None]
    largest = max(known, default=0.0)
    if largest <= 0:
        return [1.0] * len(values)
    mean = sum(known) / len(known)
    return [(mean if value is None else value) / largest for value in values]
