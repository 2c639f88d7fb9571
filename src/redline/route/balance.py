"""Which endpoint of a pool gets a call: plain functions of what is known of each endpoint.

p2c               of eight drawn at random, the one that should answer first: calls in flight, with
                  those that its server has of others, over capacity, times its latency
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
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from typing import TypeVar

import msgspec

from redline.waist import Request

# Answers that a mean counts, or all since the last review if those are more.
MEMORY = 16
# A latency counts for half when the latest answer is this old, in seconds.
FORGET_S = 60.0
# The same in calls of the fastest endpoint, if that is shorter: the first answer of a server that
# has just started may be slow, and there are thousands of short calls in a minute.
FORGET_CALLS = 60
# Seconds between two reviews of the figures.
REVIEW_S = 1.0
# Figures that a server reported longer ago are ignored.
STALE_S = 10.0
# Endpoints remembered for a prefix, the latest ones.
OWNERS = 2


# Several fields are set for each call, which takes twice as long in a Struct.
@dataclass(kw_only=True, eq=False, slots=True)
class Figures:
    """What a strategy knows of one endpoint.

    weight: its capacity relative to the others. in_flight: calls of this pool that it has. tokens:
    those that these calls are expected to use. tokens_per_s: the rate at which it drains tokens, 0
    if unknown; see `drained`. coming: calls in flight that are about to reach its backend.
    latency_s: mean of its recent answers, 0 if unknown. availability: share of its recent calls
    that did not fail. price: for a million tokens, in any one currency.
    queued: calls that wait, as its server reports. foreign: calls from outside this pool that it
    has, running or waiting. gpu: the share of the cache on its GPU that is in use, 0 to 1, None if
    unknown. seen_s: when the server reported this. room_s: seconds until it could start the call.
    answers: how many it has given. answered_s: when it gave the latest.
    call_s: what each of its calls is expected to add to the time until it answers another one, and
    expected_s: that time; others: `foreign` if that is fresh. All three are as of the last
    `review`, and of the calls that have begun and ended since.
    forgotten_s: its latency when its speed was forgotten last, 0 if it never was.
    fresh_s: latencies of the answers that the means above have not taken up.
    steady: calls in flight below which it has room for another one, 0 if it is to be asked.
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
    steady: int = 0
    _drained_tokens: float = field(default=0.0, init=False)
    _busy_s: float = field(default=0.0, init=False)

    def began(self) -> None:
        """Counts a call that is sent to it."""
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
        """Adds new answers to the means. There must be at least one."""
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

        usual_s: the latency assumed for an endpoint whose own is unknown. forget_s: the age at
        which a latency counts half.
        """
        # A latency that no answer has confirmed for a while counts less, so that a slow endpoint
        # gets a call again.
        age_s = now_s - self.answered_s
        latency_s = self.latency_s / (1 + age_s / forget_s) if self.latency_s else usual_s
        self.call_s = latency_s / self.weight
        self.others = self.foreign if _is_fresh(self, now_s) else 0
        self.expected_s = (self.in_flight + self.others + 1) * self.call_s

    def forget(self) -> None:
        """Forgets the speed, which may be different from now on."""
        self.answers = 0
        self.forgotten_s = self.latency_s or self.forgotten_s
        self.latency_s = 0.0
        self.fresh_s.clear()
        self.tokens_per_s = self._drained_tokens = self._busy_s = 0.0

    def failed(self) -> None:
        """Counts a call that failed because of the endpoint."""
        self.availability -= self.availability / MEMORY

    def drained(self, tokens: float, took_s: float) -> None:
        """Updates the token rate with an answer of this many tokens in took_s.

        The rate is that of one call, times the weight. Dividing tokens by the time in which it had
        any calls would make an endpoint with few calls seem slow, and so keep calls away from it.
        """
        keep = 1 - 1 / MEMORY
        self._drained_tokens = self._drained_tokens * keep + tokens
        self._busy_s = self._busy_s * keep + took_s
        if self._busy_s > 0:
            self.tokens_per_s = self.weight * self._drained_tokens / self._busy_s


F = TypeVar("F", bound=Figures)


class Asked(msgspec.Struct, frozen=True):
    """The facts of a call for a strategy.

    tokens: expected usage, input and output. blocks: hashes of its prompt's prefixes, the shortest
    first. request: the call itself, if the strategy needs room.
    """

    tokens: float = 0.0
    blocks: tuple[int, ...] = ()
    request: Request | None = None


class Strategy:
    """Chooses among endpoints that could all take the call.

    looks_at: number of endpoints to choose from, drawn at random; 0 for all. needs: which of the
    costlier facts it uses: "tokens", "blocks", "room".
    """

    looks_at = 0
    needs = frozenset[str]()

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        """The endpoint that gets the call: of the lowest rank, unless it is overridden.

        If only some are considered, endpoints that turn out not to take the call are left out, and
        the strategy is called again. among: one or more.
        """
        return min(among, key=lambda one: (self.rank(one, now_s), _load(one, now_s)))

    def rank(self, one: Figures, now_s: float) -> float:
        """The rank of an endpoint; among equal ones, the least loaded gets the call."""
        return 0.0


class PowerOfTwo(Strategy):
    """p2c. Two drawn endpoints spread calls evenly; a few more find one that is idle and fast."""

    looks_at = 8

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        return soonest(among)


class LeastTokens(Strategy):
    """least_tokens. Among endpoints with equal work, the least loaded.

    An endpoint of unknown speed is assumed to be as fast as the mean of the others, by weight. A
    speed that no answer has confirmed for a while counts more, as such a latency counts less.
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
    """room: where the call could start earliest."""

    needs = frozenset({"room"})

    def rank(self, one: Figures, now_s: float) -> float:
        return one.room_s


class LongestPrefix(Strategy):
    """prefix. Remembers which endpoints have seen each of the `most` latest prefixes.

    slack: an endpoint does not get a call for its prefix if its load would then exceed `slack`
    times the mean load plus one call (bounded loads); the least loaded one gets the call instead.
    If calls wait, an endpoint with room gets the first call whose prefix it has seen; otherwise the
    first whose prefix no endpoint has seen; otherwise the first.
    """

    needs = frozenset({"blocks"})

    def __init__(self, *, most: int = 200_000, slack: float = 1.25) -> None:
        # The latest endpoint first. The latest prefixes are last, the shorter ones of a prompt
        # behind the longer ones, so that no prefix is forgotten before those that continue it.
        self._seen: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._most = most
        self._slack = slack

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        chosen = self._of_prefix(among, asked, now_s) or super().choose(among, asked, now_s)
        self._remember(asked, chosen.name)
        return chosen

    def next_for(self, names: Collection[str], waiting: Sequence[Asked]) -> int:
        """The index of the call that goes next to one of these endpoints.

        waiting: one or more, in order.
        """
        unseen = None
        for index, asked in enumerate(waiting):
            known = self._known(asked)
            owners = self._seen[asked.blocks[known - 1]] if known else ()
            if any(name in names for name in owners):
                return index
            # A prefix that most endpoints have seen belongs to none of them.
            if unseen is None and (not owners or len(owners) == OWNERS):
                unseen = index
        return unseen or 0

    def _of_prefix(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures | None:
        """The least loaded of the endpoints within the bound that have seen the longest prefix."""
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
        """The number of the prompt's prefixes that have been seen, from the shortest on."""
        blocks = asked.blocks
        return bisect_left(range(len(blocks)), True, key=lambda n: blocks[n] not in self._seen)

    def _remember(self, asked: Asked, name: str) -> None:
        seen, alone = self._seen, (name,)
        for block in reversed(asked.blocks):
            owners = seen.get(block)
            if owners is None:
                # One tuple for all of them: most prefixes belong to one endpoint.
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
    """round_robin, smoothly: of weights 3 and 1, every fourth call goes to the second one."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        # Forgets endpoints that have left the pool.
        credit = {one.name: self._credit.get(one.name, 0.0) + one.weight for one in among}
        chosen = min(among, key=lambda one: -credit[one.name])
        credit[chosen.name] -= sum(one.weight for one in among)
        self._credit = credit
        return chosen


class WeightedScore(Strategy):
    """weighted_score: the fixed formula, whose result depends on the unit of the latency.

    An unknown GPU figure counts as 0, and the first of equal scores is chosen. For comparison with
    other strategies.
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
    """normalized_score: each figure counts relative to the mean of the endpoints, 0 to 1.

    A GPU figure that is unknown or stale counts as the mean. Drawn in proportion to the scores, so
    that many who decide at once do not choose the same endpoint.
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
    """The strategy with this name. Raises KeyError if it does not exist."""
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
    """The endpoint that should answer first; among equals, the first. among: one or more.

    It compares a single figure, which is kept up to date, so that a pool may call it for each call.
    """
    # `min` takes three times as long, since it calls its key for each element.
    best = among[0]
    least_s = best.expected_s
    for one in among:
        if one.expected_s < least_s:
            best, least_s = one, one.expected_s
    return best


def draws(among: Sequence[F], most: int, draw: Callable[[], float]) -> Iterator[list[F]]:
    """Endless draws of these endpoints, each with `most` of them, or with all for 0.

    Each draw begins with another endpoint, so that equally good ones take turns. The draws recur,
    as the same lists, which are only to be read. among: one or more. draw: returns a random number
    from 0 to 1.
    """
    count = len(among)
    first = int(draw() * count)
    ring = [*among[first:], *among[:first]] * 2
    # Each is made when it is first drawn, and drawn again by a function in C: every call needs one.
    return cycle(map(ring.__getitem__, _parts(count, min(most or count, count))))


@lru_cache(maxsize=64)
def _parts(count: int, size: int) -> list[slice]:
    """Slices of a doubled list of `count` elements, one from each place on, in random order."""
    return random.Random(count).sample([slice(at, at + size) for at in range(count)], count)


def review(among: Sequence[Figures], now_s: float) -> None:
    """Updates the expected latencies of these endpoints, which must be all endpoints of a pool.

    An endpoint with X calls is expected to answer another one after X + 1 times its mean latency,
    divided by its weight. An endpoint of unknown latency is assumed to be as fast as the mean of
    the others.
    """
    known = [one.latency_s for one in among if one.latency_s]
    usual_s = sum(known) / len(known) if known else 1.0
    forget_s = min([FORGET_S, *(FORGET_CALLS * latency_s for latency_s in known)])
    for one in among:
        one.review(usual_s, forget_s, now_s)


def _load(one: Figures, now_s: float) -> float:
    """The calls that it has, of this pool and of others, divided by its capacity."""
    in_flight = one.in_flight
    if one.foreign and _is_fresh(one, now_s):
        in_flight += one.foreign
    return in_flight / one.weight


def _is_fresh(one: Figures, now_s: float) -> bool:
    return now_s - one.seen_s <= STALE_S


def _idle(one: Figures, now_s: float) -> float | None:
    """The unused share of its GPU's cache; None if unknown."""
    return 1 - one.gpu if one.gpu is not None and _is_fresh(one, now_s) else None


def _relative(values: Sequence[float | None]) -> list[float]:
    """Each value divided by the largest, 0 to 1; unknown values get the mean of the known ones."""
    known = [value for value in values if value is not None]
    largest = max(known, default=0.0)
    if largest <= 0:
        return [1.0] * len(values)
    mean = sum(known) / len(known)
    return [(mean if value is None else value) / largest for value in values]
