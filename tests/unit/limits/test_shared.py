"""The limiter before a ledger: order, cancellation, lateness, loss, and nothing kept back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redline.errors import NoEndpoint, OverLimit
from redline.limits import Cost, Limits
from redline.limits.shared import GIVE_UP_S, SharedLimiter, Slot
from redline.testing import virtual_run
from support.catching import assert_caught
from support.sharing import Memory, MemoryLedger, OffsetClock, late_run, ring_late

Granted = list[str]


def limiter_of(memory: Memory, kind: Any = SharedLimiter, way_s: float = 0.0, **limits: Any) -> Any:
    limits.setdefault("guard_s", 0.05)
    ledger = MemoryLedger(memory, way_s)
    return kind(Limits(**limits), ledger, ledger.clock)


def futures() -> int:
    gc.collect()
    # Not isinstance, which asks the objects, some of which warn then.
    return sum(issubclass(type(each), asyncio.Future) for each in gc.get_objects())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def take(
    limiter: Any, name: str, granted: Granted, tokens: int = 0, priority: int = 0
) -> Any:
    grant = await limiter.acquire(Cost(tokens), priority)
    granted.append(name)
    grant.sent(now_s())
    return grant


def in_virtual_time(main: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            await main()

        virtual_run(run(), start_s=1000.0)

    test.__doc__ = main.__doc__
    return test


@in_virtual_time
async def test_callers_go_by_priority_and_arrival_whatever_is_booked_already() -> None:
    limiter = limiter_of(Memory(), requests="100/1s")
    granted: Granted = []
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(take(limiter, f"low {number}", granted, priority=1))
        await asyncio.sleep(0.03)
        before = len(granted)
        # Slots of the ones before are booked for up to 0.1 s; these go first all the same.
        for number in range(3):
            group.create_task(take(limiter, f"high {number}", granted))
    high = [name for name in granted if name.startswith("high")]
    assert granted[before : before + 3] == high == [f"high {number}" for number in range(3)]
    low = [name for name in granted if name.startswith("low")]
    assert low == [f"low {number}" for number in range(20)]
    await limiter.aclose()


async def check_a_cancelled_ones_slot_goes_to_the_next_in_line(kind: Any) -> None:
    limiter = limiter_of(Memory(), kind, requests="10/1s", profile="moving")
    first = [asyncio.create_task(limiter.acquire()) for _ in range(10)]
    grants = await asyncio.gather(*first)
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0.01)
    # One of the ten is not written: its slot is for the first who waits, and not for a window.
    grants[0].release()
    grants[0].release()
    await asyncio.sleep(0.001)
    assert [task.done() for task in waiting] == [True, False, False]
    waiting[1].cancel()
    waiting[0].result().release()
    await asyncio.sleep(0.001)
    assert [task.done() for task in waiting] == [True, True, True]
    await limiter.aclose()


class StoppedClock(OffsetClock):
    """The process is stopped for 30 s at one of its readings."""

    readings = 0
    stops_at = 0

    def now_s(self) -> float:
        self.readings += 1
        if self.readings == self.stops_at:
            self.ahead_s += 30.0
        return super().now_s()


@in_virtual_time
async def test_a_slot_that_has_passed_is_not_used() -> None:
    async def acquired(stops_at: int) -> tuple[int, int]:
        memory = Memory()
        ledger = MemoryLedger(memory)
        ledger.clock = clock = StoppedClock(0.0)
        limiter = SharedLimiter(Limits(requests="10/1s", guard_s=0.05), ledger, clock)
        clock.stops_at = stops_at
        await limiter.acquire()
        found = clock.readings, memory.turns
        await limiter.aclose()
        return found

    last_reading, turns = await acquired(0)
    assert turns == 1
    # Between its timer and its caller.
    _, turns = await acquired(last_reading)
    assert turns == 2, "the slot was used 30 s late"


async def check_a_pause_holds_for_all_within_a_lease(kind: Any) -> None:
    memory = Memory()
    one, other = (limiter_of(memory, kind, requests="100/10s") for _ in range(2))
    granted: Granted = []
    calls = [asyncio.create_task(take(other, "x", granted)) for _ in range(40)]
    await asyncio.sleep(1.2)
    assert one.park(now_s() + 5)
    assert not one.park(now_s() + 4)
    # A lease is 1 s; the other one hears of it when it asks again, and leaves out what is booked.
    await asyncio.sleep(0.6)
    before = len(granted)
    await asyncio.sleep(4.2)
    assert len(granted) == before
    assert other.room_s(Cost(), now_s()) > 0
    await asyncio.gather(*calls)
    await one.aclose()
    await other.aclose()


async def check_a_429_pauses_once_a_window(kind: Any) -> None:
    limiter = limiter_of(Memory(), kind, requests="20/10s")
    limiter.answered(now_s(), is_limited=True)
    first_s = limiter.room_s(Cost(), now_s())
    assert 0 < first_s <= 1
    await asyncio.sleep(0.5)
    limiter.answered(now_s(), is_limited=True)
    assert limiter.room_s(Cost(), now_s()) == pytest.approx(first_s - 0.5)
    await limiter.aclose()


async def check_few_429s_that_recur_double_the_guard_once(kind: Any) -> None:
    limiter = limiter_of(Memory(), kind, requests="20/1s", guard_s=None)
    first_s = limiter.jitter.guard_s

    async def answers(number: int, limited: int) -> float:
        """Of so many answers within ten windows."""
        for at in range(number):
            await asyncio.sleep(10 / number)
            is_limited = at % (number // limited) == 0
            if is_limited or not limiter.accepted(now_s()):
                limiter.answered(now_s(), is_limited=is_limited)
        return float(limiter.jitter.guard_s)

    assert await answers(1000, 5) == first_s
    doubled_s = await answers(1000, 50)
    assert first_s < doubled_s <= 2 * first_s
    assert await answers(1000, 50) == doubled_s
    await limiter.aclose()


async def check_a_caller_in_line_knows_when_it_may_go(kind: Any) -> None:
    limiter = limiter_of(Memory(), kind, requests="2/3600s", profile="moving")
    for _ in range(2):
        (await limiter.acquire()).sent(now_s())
    assert limiter.next_s <= now_s()
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(3)
    assert limiter.next_s - now_s() == pytest.approx(3597, abs=1)
    assert limiter.room_s(Cost(), now_s()) >= 3596
    waiting.cancel()
    await asyncio.wait([waiting])
    await limiter.aclose()


async def check_a_lost_ledger_ends_in_an_error(kind: Any) -> None:
    memory = Memory()
    limiter = limiter_of(memory, kind, requests="20/1s")
    await limiter.acquire()
    memory.is_lost = True
    began_s = now_s()
    try:
        async with asyncio.timeout(100):
            await limiter.acquire()
    except NoEndpoint:
        assert now_s() - began_s == pytest.approx(GIVE_UP_S, rel=0.2)
    except TimeoutError:
        raise AssertionError("a caller waits for a lost ledger without end") from None
    memory.is_lost = False
    await asyncio.sleep(3)
    (await limiter.acquire()).release()
    await limiter.aclose()


async def check_closing_gives_back_what_is_booked(kind: Any) -> None:
    memory = Memory()
    limiter = limiter_of(memory, kind, requests="50/1s")
    calls = [asyncio.create_task(limiter.acquire()) for _ in range(5)]
    (await calls[0]).sent(now_s())
    assert memory.state is not None
    assert [book.total for book in memory.state.books.values()] == [5]
    for call in calls[1:]:
        call.cancel()
    await asyncio.wait(calls)
    await limiter.aclose()
    assert [book.total for book in memory.state.books.values()] == [1]


async def check_what_calls_really_used_is_told(kind: Any) -> None:
    memory = Memory()
    limiter = limiter_of(memory, kind, tokens="1000/1s", input_tokens="5000/1s", profile="moving")
    for number, used in enumerate([Cost(100, 20), 60, Cost(5000, 5000)]):
        grant = await limiter.acquire(Cost(200, 100))
        grant.sent(now_s())
        grant.settle(Cost())
        grant.settle(used)
        # Within a quarter of the window the ledger is told.
        await asyncio.sleep(0.26)
        assert memory.state is not None
        totals = [book.total for book in memory.state.books.values()]
        assert totals == [[120, 100], [180, 140], [1180, 5140]][number]
    await limiter.aclose()


CHECKS = {
    "cancelled": check_a_cancelled_ones_slot_goes_to_the_next_in_line,
    "pause": check_a_pause_holds_for_all_within_a_lease,
    "429": check_a_429_pauses_once_a_window,
    "429s": check_few_429s_that_recur_double_the_guard_once,
    "next": check_a_caller_in_line_knows_when_it_may_go,
    "lost": check_a_lost_ledger_ends_in_an_error,
    "closing": check_closing_gives_back_what_is_booked,
    "used": check_what_calls_really_used_is_told,
}


class Keeping(SharedLimiter):
    def give_back(self, taken: Any) -> None:
        pass


class Unparked(SharedLimiter):
    def park(self, until_s: float) -> bool:
        return False


class Nervous(SharedLimiter):
    def answered(self, now_s: float, *, is_limited: bool) -> None:
        self.park(now_s + 1.0)


class Unclosed(SharedLimiter):
    async def aclose(self) -> None:
        pass


class Unsettled(SharedLimiter):
    def settle(self, taken: Any, used: Cost) -> None:
        pass


WRONG = [
    ("cancelled", Keeping),
    ("pause", Unparked),
    ("429", Nervous),
    ("closing", Unclosed),
    ("used", Unsettled),
]


def checked(name: str) -> Callable[[Any], None]:
    def check(kind: Any) -> None:
        async def run() -> None:
            await CHECKS[name](kind)

        virtual_run(run(), start_s=1000.0, limit_s=600.0)

    return check


@pytest.mark.parametrize("name", CHECKS)
def test_the_limiter(name: str) -> None:
    checked(name)(SharedLimiter)


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_wrong_limiter_is_noticed(name: str, wrong: Any) -> None:
    assert_caught(checked(name), SharedLimiter, wrong)


@in_virtual_time
async def test_a_call_larger_than_the_limit_is_refused_at_once() -> None:
    limiter = limiter_of(Memory(), tokens="1000/1s", output_tokens="100/1s")
    assert limiter.counts_tokens
    assert (limiter.most("tokens"), limiter.most("output_tokens")) == (1000, 100)
    with pytest.raises(OverLimit, match="101 output tokens"):
        await limiter.acquire(Cost(1, 101))
    await limiter.aclose()


@in_virtual_time
async def test_a_crowd_that_goes_leaves_nothing_behind() -> None:
    limiter = limiter_of(Memory(), requests="1/1s")
    before = futures()
    for _ in range(20):
        crowd = [asyncio.create_task(limiter.acquire()) for _ in range(100)]
        await asyncio.sleep(0.01)
        for task in crowd:
            task.cancel()
        await asyncio.wait(crowd)
    assert limiter.waiting == 0
    del crowd, task
    assert futures() - before <= 250
    (await limiter.acquire()).release()
    await limiter.aclose()


def test_a_busy_loop_that_misses_its_slots_gets_longer_ones() -> None:
    """Every timer rings 0.2 s late, four times the slack: it must still come to send."""

    async def main() -> None:
        limiter = limiter_of(Memory(), requests="20/1s")
        granted: Granted = []
        ring_late([0.2])
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(take(limiter, str(number), granted))
        assert len(granted) == 20
        await limiter.aclose()

    late_run(main())


def test_slots_that_fit_none_of_the_first_in_line_cost_no_search_and_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """600 small calls have slots when 2,000 large ones come that go before them."""
    looks, fits = 0, Slot.fits

    def counted(slot: Slot, amounts: tuple[int, ...]) -> bool:
        nonlocal looks
        looks += 1
        return fits(slot, amounts)

    async def main() -> None:
        limiter = limiter_of(Memory(), requests="60000/60s", tokens="6M/60s")
        granted: Granted = []
        small = [take(limiter, "small", granted, tokens=10, priority=1) for _ in range(600)]
        tasks = [asyncio.create_task(one) for one in small]
        await asyncio.sleep(0.001)
        large = [take(limiter, "large", granted, tokens=5_000) for _ in range(2_000)]
        tasks += [asyncio.create_task(one) for one in large]
        await asyncio.sleep(1.0)
        assert granted.count("small") == 600
        # Of 2,600 callers and 600 slots, less than a tenth of all pairs.
        assert looks < 100_000
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await limiter.aclose()

    monkeypatch.setattr(Slot, "fits", counted)
    virtual_run(main())


@in_virtual_time
async def test_a_slot_and_its_caller_do_not_keep_each_other() -> None:
    """The collector does not see a caller, so that it could not free the two."""
    limiter = limiter_of(Memory(), requests="6000/60s")
    for grant in await asyncio.gather(*(limiter.acquire() for _ in range(10))):
        assert grant.taken.owner is None
        grant.sent(now_s())
    await limiter.aclose()


def test_a_slot_fits_whoever_wants_no_more() -> None:
    slot = Slot(None, 0.0, 0.0, 0.0, 1.0, (1, 50))
    assert slot.fits((1, 40))
    assert slot.fits((1, 50))
    assert not slot.fits((1, 51))
    assert not slot.fits((2, 40))
