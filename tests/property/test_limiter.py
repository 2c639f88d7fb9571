"""The whole limiter in virtual time, whatever its callers, its timers and its clock do.

What may be sent is judged by what the callers saw: the stamps and amounts of their own writes. The
only thing looked up inside is the order in which amounts were booked.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redline.clock import Clock
from redline.errors import OverLimit
from redline.limits import Cost, Limiter, Limits, Rate
from redline.limits.rule import Booking, Kind
from redline.limits.wait import Grant
from redline.testing import VirtualLoop
from support.catching import assert_caught

GUARD_S = 0.05
SLACK_S = 1e-6
HARD = ("any", "counter", "fixed", "moving")
BURSTS = ("fixed", "moving")
FIRST = {"requests": Rate(4, 1.0), "tokens": Rate(100, 2.0)}
OTHERS = {
    "requests": [Rate(2, 1.0), Rate(9, 1.0), Rate(3, 0.5), Rate(6, 1.5)],
    "tokens": [Rate(60, 2.0), Rate(140, 2.0), Rate(80, 1.0), Rate(120, 3.0)],
}
_NEVER = 1 << 62  # a moment that does not come
# Far beyond every window and every wait of a scenario.
LONG_S = 500.0


@dataclass
class Caller:
    """One caller's plan, and what became of it. Times are the loop's, stamps the limiter's clock's.

    end: what it does with its grant. cancel_after_s: of its arrival, or of its grant where
    is_cancelled_late; None for never. is_cancelled_in_its_tick: when it is booked and has not run
    yet. settles: shares of its estimate, in turn. least: the smallest amount it ever stood for.
    """

    arrive_s: float
    tokens: int
    priority: int
    write_s: float
    end: str
    settles: list[float]
    cancel_after_s: float | None
    is_cancelled_late: bool
    is_cancelled_in_its_tick: bool
    is_replied: bool
    cost: Cost = field(init=False)
    fate: str = "none"
    asked: int = -1
    left: int = -1
    task: asyncio.Task[None] | None = None
    stamp_s: float | None = None
    amount: int = 0
    least: int = 0

    def __post_init__(self) -> None:
        self.cost = Cost(self.tokens)


@dataclass
class Scenario:
    """What happens in one run. changes: (when, what, with which value). kinds: what is limited."""

    kinds: list[str]
    profile: str
    lates_s: list[float]
    callers: list[Caller]
    changes: list[tuple[float, str, Any]]


def caller(chance: random.Random) -> Caller:
    return Caller(
        arrive_s=chance.choice([0.0, 0.0, round(chance.uniform(0, 4), 2)]),
        tokens=chance.choice([1, 5, 30, 60, 100]),
        priority=chance.choice([0, 0, 0, 1, 2]),
        write_s=chance.choice([0.0, 0.0, 0.0, 0.3, 0.9]),
        end=chance.choice(["sent", "sent", "sent", "sent", "released", "sent and released"]),
        settles=chance.choice([[], [0.4], [0.5, 0.2], [0.1, 0.1, 1.3]]),
        cancel_after_s=chance.choice([None, None, None, 0.0, 0.0, 0.3, 1.05, 2.0]),
        is_cancelled_late=chance.random() < 0.3,
        is_cancelled_in_its_tick=chance.random() < 0.1,
        is_replied=chance.random() < 0.5,
    )


def scenario(chance: random.Random, kinds: Sequence[str] = ("requests", "tokens")) -> Scenario:
    callers = [caller(chance) for _ in range(chance.randint(1, 24))]
    changes: list[tuple[float, str, Any]] = []
    for _ in range(chance.randint(0, 4)):
        at_s = round(chance.uniform(0, 5), 2)
        what = chance.choice([*kinds, "share", "park", "suspend"])
        value: Any = round(chance.uniform(0.1, 3), 1)
        if what in OTHERS:
            value = chance.choice(OTHERS[what])
        elif what == "share":
            value = chance.choice([0.5, 0.8, 1.0])
        changes.append((at_s, what, value))
    lates_s = [chance.choice([0.0, 0.001, 0.004, 0.03]) for _ in range(4)]
    profile = chance.choice(HARD)
    return Scenario(
        list(kinds), profile, lates_s, callers, sorted(changes, key=lambda change: change[0])
    )


class LateLoop(VirtualLoop):
    """Timers ring late, by each of `lates_s` in turn."""

    def __init__(self, lates_s: list[float]) -> None:
        self._lates_s = itertools.cycle(lates_s)
        super().__init__(limit_s=10 * LONG_S)

    def call_later(self, delay: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
        return super().call_later(delay + next(self._lates_s), *given, **more)


class SleepyClock:
    """The loop's time and whatever the machine has slept meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.slept_s = 0.0

    def now_s(self) -> float:
        return self._loop.time() + self.slept_s

    def wall_s(self) -> float:
        return self.now_s()


class World:
    """A limiter, its callers and a record of what they did. `moment` numbers all that happens."""

    def __init__(self, kind: Any, plan: Scenario) -> None:
        self.plan = plan
        self.clock = SleepyClock(asyncio.get_running_loop())
        self.limiter = kind(
            Limits(
                profile=plan.profile,
                guard_s=GUARD_S,
                **{kind: FIRST[kind] for kind in plan.kinds},
            ),
            self.clock,
        )
        self.moments = itertools.count()
        # (moment, clock, caller) of each booking, and (moment, clock, kind, rate) of each change.
        self.booked: list[tuple[int, float, Caller]] = []
        self.rates: list[tuple[int, float, str, Rate]] = [
            (next(self.moments), 0.0, name, FIRST[name]) for name in plan.kinds
        ]
        self.share = 1.0
        self.parked: list[tuple[float, float]] = []
        self._stated = {name: FIRST[name] for name in plan.kinds}
        self._spy()

    def _spy(self) -> None:
        by_cost = {id(caller.cost): caller for caller in self.plan.callers}
        book, acquire_now = self.limiter.rules.book, self.limiter.acquire_now

        def note(cost: Cost, now_s: float) -> None:
            caller = by_cost.get(id(cost))
            if caller is not None:
                self.booked.append((next(self.moments), now_s, caller))
                if caller.is_cancelled_in_its_tick and caller.task is not None:
                    asyncio.get_running_loop().call_soon(caller.task.cancel)

        def noted(cost: Cost, now_s: float, *more: Any) -> Any:
            note(cost, now_s)
            return book(cost, now_s, *more)

        def noted_now(cost: Cost) -> Grant | None:
            count = len(self.booked)
            grant: Grant | None = acquire_now(cost)
            if grant is not None and len(self.booked) == count:
                note(cost, self.clock.now_s())
            return grant

        self.limiter.rules.book, self.limiter.acquire_now = noted, noted_now

    async def call(self, caller: Caller) -> None:
        await asyncio.sleep(caller.arrive_s)
        caller.asked = next(self.moments)
        task = caller.task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        if caller.cancel_after_s is not None and not caller.is_cancelled_late:
            loop.call_later(caller.cancel_after_s, task.cancel)
        grant = None
        try:
            grant = await self.limiter.acquire(caller.cost, caller.priority)
            caller.fate = "granted"
            if caller.cancel_after_s is not None and caller.is_cancelled_late:
                loop.call_later(caller.cancel_after_s, task.cancel)
            await asyncio.sleep(caller.write_s)
            if caller.end != "released":
                caller.stamp_s, caller.amount = self.clock.now_s(), caller.tokens
                caller.least = caller.tokens
                caller.fate = "sent"
                grant.sent(caller.stamp_s)
                await self._answered(caller, grant)
        except OverLimit:
            caller.fate = "refused"
        except asyncio.CancelledError:
            caller.fate = "cancelled" if caller.fate == "none" else caller.fate
        finally:
            caller.left = next(self.moments)
            if grant is not None and caller.end != "sent":
                grant.release()
            if grant is not None:
                grant.release()

    async def _answered(self, caller: Caller, grant: Any) -> None:
        for share in caller.settles:
            await asyncio.sleep(0.2)
            if caller.is_replied:
                grant.replied(0.2)
            # More than a whole limit is never owed; the smallest one here is 30.
            caller.amount = min(round(caller.tokens * share), max(30, caller.amount))
            caller.least = min(caller.least, caller.amount)
            grant.settle(caller.amount)

    async def change(self, at_s: float, what: str, value: Any) -> None:
        await asyncio.sleep(at_s)
        now_s = self.clock.now_s()
        if what == "suspend":
            self.clock.slept_s += value
        elif what == "park":
            if self.limiter.park(now_s + value):
                self.parked.append((now_s, now_s + value))
        elif what == "share":
            self.share = value
            for name, rate in self._stated.items():
                self._note(name, rate, now_s)
            self.limiter.rules.set_share(value)
            self.limiter.refresh()
        else:
            self._stated[what] = value
            self._note(what, value, now_s)
            self.limiter.set_rates(what, [value])

    def _note(self, name: str, rate: Rate, now_s: float) -> None:
        used = Rate(max(1, int(rate.count * self.share)), rate.window_s)
        self.rates.append((next(self.moments), now_s, name, used))

    async def run(self) -> None:
        tasks = [asyncio.create_task(self.call(caller)) for caller in self.plan.callers]
        tasks += [asyncio.create_task(self.change(*change)) for change in self.plan.changes]
        # Nobody is lost: every caller comes to its end without another one's help.
        _, lost = await asyncio.wait(tasks, timeout=LONG_S)
        assert not lost, f"{len(lost)} wait for ever"
        for task in tasks:
            assert task.cancelled() or task.exception() is None, task.exception()


def amount_of(caller: Caller, name: str) -> int:
    return 1 if name == "requests" else caller.amount


def check_windows(world: World) -> None:
    """No window and guard ever holds more than the count that stood when its last was booked."""
    booked_at = {id(caller): (moment, at_s) for moment, at_s, caller in world.booked}
    for name in world.plan.kinds:
        rates = [(moment, at_s, rate) for moment, at_s, kind, rate in world.rates if kind == name]
        # What the limiter can know: a longer window begins with what the shorter one still counted.
        known_s = [-LONG_S]
        for (_, _, old), (_, at_s, _) in itertools.pairwise(rates):
            known_s.append(max(known_s[-1], at_s - old.window_s - GUARD_S))
        sends = []
        for caller in world.plan.callers:
            if caller.stamp_s is None:
                continue
            moment, booked_s = booked_at[id(caller)]
            counted_s = caller.stamp_s
            for (_, _, old), (changed, at_s, new) in itertools.pairwise(rates):
                # What is booked when the window's length changes counts from then on.
                if old.window_s != new.window_s and changed > moment and at_s < counted_s:
                    counted_s = max(booked_s, at_s)
            sends.append((counted_s, 1 if name == "requests" else caller.least, moment))
        for end_s, _, _ in sends:
            check_one_window(name, rates, known_s, sends, end_s)


def check_one_window(
    name: str,
    rates: list[tuple[int, float, Rate]],
    known_s: list[float],
    sends: list[tuple[float, int, int]],
    end_s: float,
) -> None:
    for position, (changed, _, rate) in enumerate(rates):
        until = rates[position + 1][0] if position + 1 < len(rates) else _NEVER
        begin_s = max(end_s - rate.window_s - GUARD_S + SLACK_S, known_s[position])
        inside = [send for send in sends if begin_s < send[0] <= end_s]
        # The last that was booked under this rate saw all that was booked before it.
        last = max((moment for _, _, moment in inside if changed < moment < until), default=None)
        if last is not None:
            counted = [amount for _, amount, moment in inside if moment <= last and amount > 0]
            if len(counted) == 1:
                # A share that is lowered for a while refuses no call that the limit allows.
                continue
            total = sum(counted)
            assert total <= rate.count, f"{total} {name} within {rate} and guard up to {end_s}"


def check_order(world: World) -> None:
    """Nobody is booked while one who goes before waits: of a lower priority, or come earlier."""
    booked_at = {id(caller): moment for moment, _, caller in world.booked}
    assert len(booked_at) == len(world.booked), "a caller was booked twice"
    for moment, _, caller in world.booked:
        for other in world.plan.callers:
            goes_first = (other.priority, other.asked) < (caller.priority, caller.asked)
            ended = booked_at.get(id(other), other.left)
            if goes_first and 0 <= other.asked < moment < ended:
                # One who was cancelled in the same tick has left the queue before its task ran.
                assert other.fate in ("cancelled", "refused"), (caller, other)


def check_parking(world: World) -> None:
    for _, at_s, _ in world.booked:
        for from_s, until_s in world.parked:
            assert not from_s < at_s < until_s - SLACK_S, "a grant while parked"


def check_accounts(world: World, now_s: float) -> None:
    """What each window counts is what was sent in it, and nothing else."""
    assert world.limiter.waiting == 0
    kinds = world.plan.kinds
    last = {name: [rate for _, _, kind, rate in world.rates if kind == name][-1] for name in kinds}
    is_same_window = len({(kind, rate.window_s) for _, _, kind, rate in world.rates}) == len(kinds)
    for line in world.limiter.rules.lines if is_same_window else []:
        span_s = last[line.kind].window_s + GUARD_S
        # Sends within 1/4096 of a window count as one.
        grain_s = span_s / 2048 + SLACK_S
        least = most = 0
        for caller in world.plan.callers:
            if caller.stamp_s is not None:
                age_s = now_s - caller.stamp_s
                least += amount_of(caller, line.kind) * (age_s < span_s - SLACK_S)
                most += amount_of(caller, line.kind) * (age_s < span_s + grain_s)
        assert least <= line.window.used(now_s) <= most


async def check_afterwards(world: World) -> None:
    """After a long pause the whole limit is free again, and not more than that."""
    await asyncio.sleep(LONG_S)
    limiter, now_s = world.limiter, world.clock.now_s()
    for line in limiter.rules.lines:
        assert line.window.used(now_s) == 0
        assert line.window.wait_s(line.window.rate.count, now_s) == 0
    counts = [line.window.rate.count for line in limiter.rules.lines if line.kind == "tokens"]
    most = min(counts, default=0)
    assert limiter.room_s(Cost(most), now_s) == 0
    grant = await limiter.acquire(most)
    grant.sent(now_s)
    # A burst of requests has room for the next one.
    assert limiter.room_s(Cost(1), now_s) > 0 or (not counts and world.plan.profile in BURSTS)


def check(kind: Any, plan: Scenario) -> None:
    async def main() -> None:
        world = World(kind, plan)
        await world.run()
        check_accounts(world, world.clock.now_s())
        check_windows(world)
        check_order(world)
        check_parking(world)
        await check_afterwards(world)

    with asyncio.Runner(loop_factory=lambda: LateLoop(plan.lates_s)) as runner:
        runner.run(main())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=True))
def test_whatever_happens_the_limiter_keeps_its_promises(chance: random.Random) -> None:
    check(Limiter, scenario(chance))


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=True))
def test_a_limit_on_requests_alone_is_kept_by_its_shorter_way(chance: random.Random) -> None:
    check(Limiter, scenario(chance, ["requests"]))


# Wrong limiters. A few scenarios are enough to catch each of them.

DRAWN = 60


@functools.cache
def check_drawn(kind: Any) -> None:
    for seed in range(DRAWN):
        check(kind, scenario(random.Random(seed)))


@functools.cache
def check_requests_drawn(kind: Any) -> None:
    for seed in range(DRAWN):
        check(kind, scenario(random.Random(seed), ["requests"]))


class Unguarded(Limiter):
    """Adds no guard to its windows."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        super().__init__(replace(limits, guard_s=0.0), clock)


class OneMore(Limiter):
    """Allows one more in each window."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        super().__init__(replace(limits, requests=more(FIRST["requests"])), clock)


class FromTheGrant(Limiter):
    """Begins a window at the grant and not at the write."""

    async def acquire(self, cost: Cost | int = 0, priority: int = 0) -> Grant:
        grant = await super().acquire(cost, priority)
        grant.sent(grant.taken[0].booked_s)
        return grant


class Leaking(Limiter):
    """Keeps what was granted and not written."""

    def give_back(self, taken: list[Booking]) -> None: ...


class Deaf(Limiter):
    """Does not hear what was used."""

    def settle(self, taken: list[Booking], used: Cost) -> None: ...


class LastFirst(Limiter):
    """Serves the last who came first."""

    asked = 0

    async def acquire(self, cost: Cost | int = 0, priority: int = 0) -> Grant:
        self.asked += 1
        return await super().acquire(cost, -self.asked)


class SmallestFirst(Limiter):
    """Serves by amount."""

    async def acquire(self, cost: Cost | int = 0, priority: int = 0) -> Grant:
        tokens = cost.tokens if isinstance(cost, Cost) else cost
        return await super().acquire(cost, 1000 * priority + tokens)


class Passing(Limiter):
    """Lets a newcomer pass those who wait."""

    def acquire_now(self, cost: Cost) -> Grant | None:
        now_s = self._clock.now_s()
        if self.rules.wait_s(cost, now_s) > 0:
            return None
        return Grant(self, self.rules.book(cost, now_s), cost, 0.0)


class Unparked(Limiter):
    """Is parked for nobody."""

    def park(self, until_s: float) -> bool:
        return True


class Fresh(Limiter):
    """Begins other limits as if nothing had been sent."""

    def set_rates(self, kind: Kind, rates: Sequence[Rate]) -> None:
        self.rules.lines = [line for line in self.rules.lines if line.kind != kind]
        super().set_rates(kind, rates)


def more(rate: Rate) -> Rate:
    return Rate(rate.count + 1, rate.window_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        Unguarded,
        OneMore,
        FromTheGrant,
        Leaking,
        Deaf,
        LastFirst,
        SmallestFirst,
        Passing,
        Unparked,
        Fresh,
    ],
)
def test_wrong_limiters_are_caught(wrong: type[Limiter]) -> None:
    assert_caught(check_drawn, Limiter, wrong)


class NotWritten(Limiter):
    """Begins the window of a call that went at once at its grant, whenever it is written."""

    def acquire_now(self, cost: Cost) -> Grant | None:
        grant = super().acquire_now(cost)
        if grant is not None:
            grant.sent(self._clock.now_s())
        return grant


@pytest.mark.parametrize(
    "wrong", [Unguarded, OneMore, NotWritten, Leaking, LastFirst, Passing, Unparked, Fresh]
)
def test_wrong_limiters_of_requests_alone_are_caught(wrong: type[Limiter]) -> None:
    assert_caught(check_requests_drawn, Limiter, wrong)
