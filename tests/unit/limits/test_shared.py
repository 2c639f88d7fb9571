"""The limiter before a ledger: order, cancellation, lateness, loss, and nothing kept back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mutants import assert_caught, mutant
from redline.errors import NoEndpoint, OverBudget
from redline.limits import Cost, Limits
from redline.limits import shared as shared_module
from redline.limits import timetable as timetable_module
from redline.limits.shared import SharedLimiter
from redline.testing import virtual_run
from sharing import Memory, MemoryLedger

Granted = list[str]


def limiter_of(memory: Memory, kind: Any = SharedLimiter, way_s: float = 0.0, **limits: Any) -> Any:
    limits.setdefault("guard_s", 0.05)
    ledger = MemoryLedger(memory, way_s)
    return kind(Limits(**limits), ledger, ledger.clock)


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


async def check_a_cancelled_ones_slot_goes_to_the_next_in_line(module: Any) -> None:
    limiter = limiter_of(Memory(), module.SharedLimiter, requests="10/1s", profile="moving")
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


async def check_a_slot_that_has_passed_is_not_used(module: Any) -> None:
    """The process is stopped between its timer and its caller, for 30 s."""
    memory = Memory()
    ledger = MemoryLedger(memory)
    limiter = module.SharedLimiter(Limits(requests="10/1s", guard_s=0.05), ledger, ledger.clock)
    hand_out = limiter._table.hand_out
    stops = iter([30.0])

    def stopped(at_s: float, parked_until_s: float) -> Any:
        lost = hand_out(at_s, parked_until_s)
        if memory.turns:
            ledger.clock.ahead_s += next(stops, 0.0)
        return lost

    limiter._table.hand_out = stopped
    grant = await limiter.acquire()
    assert memory.turns == 2, "the slot was used 30 s late"
    grant.sent(ledger.clock.now_s())
    await limiter.aclose()


async def check_a_pause_holds_for_all_within_a_lease(module: Any) -> None:
    memory = Memory()
    one, other = (limiter_of(memory, module.SharedLimiter, requests="100/10s") for _ in range(2))
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


async def check_a_429_pauses_once_a_window(module: Any) -> None:
    limiter = limiter_of(Memory(), module.SharedLimiter, requests="20/10s")
    limiter.limited(now_s())
    first_s = limiter.room_s(Cost(), now_s())
    assert 0 < first_s <= 1
    await asyncio.sleep(0.5)
    limiter.limited(now_s())
    assert limiter.room_s(Cost(), now_s()) == pytest.approx(first_s - 0.5)
    await limiter.aclose()


async def check_a_lost_ledger_ends_in_an_error(module: Any) -> None:
    memory = Memory()
    limiter = limiter_of(memory, module.SharedLimiter, requests="20/1s")
    await limiter.acquire()
    memory.is_lost = True
    began_s = now_s()
    try:
        async with asyncio.timeout(100):
            await limiter.acquire()
    except NoEndpoint:
        assert now_s() - began_s == pytest.approx(module.GIVE_UP_S, rel=0.2)
    except TimeoutError:
        raise AssertionError("a caller waits for a lost ledger without end") from None
    memory.is_lost = False
    await asyncio.sleep(3)
    (await limiter.acquire()).release()
    await limiter.aclose()


async def check_closing_gives_back_what_is_booked(module: Any) -> None:
    memory = Memory()
    limiter = limiter_of(memory, module.SharedLimiter, requests="50/1s")
    calls = [asyncio.create_task(limiter.acquire()) for _ in range(5)]
    (await calls[0]).sent(now_s())
    assert memory.state is not None
    assert [book.total for book in memory.state.books.values()] == [5]
    for call in calls[1:]:
        call.cancel()
    await asyncio.wait(calls)
    await limiter.aclose()
    assert [book.total for book in memory.state.books.values()] == [1]


async def check_what_calls_really_used_is_told(module: Any) -> None:
    memory = Memory()
    limiter = limiter_of(
        memory, module.SharedLimiter, tokens="1000/1s", input_tokens="5000/1s", profile="moving"
    )
    for number, used in enumerate([Cost(100, 20), 60, Cost(5000, 5000)]):
        grant = await limiter.acquire(Cost(200, 100))
        grant.sent(now_s())
        grant.settle(Cost())
        grant.settle(used)
        await limiter._ask()
        assert memory.state is not None
        totals = [book.total for book in memory.state.books.values()]
        assert totals == [[120, 100], [180, 140], [1180, 5140]][number]
    await limiter.aclose()


CHECKS = {
    "cancelled": check_a_cancelled_ones_slot_goes_to_the_next_in_line,
    "passed": check_a_slot_that_has_passed_is_not_used,
    "pause": check_a_pause_holds_for_all_within_a_lease,
    "429": check_a_429_pauses_once_a_window,
    "lost": check_a_lost_ledger_ends_in_an_error,
    "closing": check_closing_gives_back_what_is_booked,
    "used": check_what_calls_really_used_is_told,
}
MUTANTS = [
    ("cancelled", "self._table.put_back(taken)", "self._drop(taken)"),
    ("passed", "if now_s <= slot.until_s:", "if True:"),
    ("pause", "for slot in self._table.hand_out(now_s, self._parked_until_s):",
     "for slot in self._table.hand_out(now_s, 0.0):"),
    ("429", "self._pausable_s = now_s + self._shortest_s", "pass"),
    ("lost", "if now_s - self._lost_s >= GIVE_UP_S:", "if False:"),
    ("closing", "for slot in self._table.clear():", "for slot in ():"),
    ("used", "slot.amounts = slot.used", "slot.amounts = before"),
]  # fmt: skip


def checked(name: str) -> Callable[[Any], None]:
    def check(module: Any) -> None:
        async def run() -> None:
            await CHECKS[name](module)

        virtual_run(run(), start_s=1000.0, limit_s=600.0)

    return check


@pytest.mark.parametrize("name", CHECKS)
def test_the_limiter(name: str) -> None:
    checked(name)(shared_module)


@pytest.mark.parametrize(("name", "line", "replacement"), MUTANTS)
def test_a_wrong_limiter_is_noticed(name: str, line: str, replacement: str) -> None:
    assert_caught(checked(name), shared_module, mutant(shared_module, line, replacement))


@in_virtual_time
async def test_a_call_larger_than_the_limit_is_refused_at_once() -> None:
    limiter = limiter_of(Memory(), tokens="1000/1s", output_tokens="100/1s")
    assert limiter.counts_tokens
    assert (limiter.most("tokens"), limiter.most("output_tokens")) == (1000, 100)
    with pytest.raises(OverBudget, match="101 output tokens"):
        await limiter.acquire(Cost(1, 101))
    await limiter.aclose()


@in_virtual_time
async def test_a_crowd_that_goes_leaves_nothing_behind() -> None:
    limiter = limiter_of(Memory(), requests="1/1s")
    for _ in range(20):
        crowd = [asyncio.create_task(limiter.acquire()) for _ in range(100)]
        await asyncio.sleep(0.01)
        for task in crowd:
            task.cancel()
        await asyncio.wait(crowd)
    assert limiter.waiting == 0
    assert len(limiter._table._waiting) <= 200
    (await limiter.acquire()).release()
    await limiter.aclose()


@in_virtual_time
async def test_a_busy_loop_that_misses_its_slots_gets_longer_ones() -> None:
    """Every timer rings 0.2 s late, four times the slack: it must still come to send."""
    limiter = limiter_of(Memory(), requests="20/1s")
    loop, rang = asyncio.get_running_loop(), limiter._rang

    def late() -> None:
        limiter._timer = loop.call_later(0.2, rang)

    limiter._rang = late
    granted: Granted = []
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(take(limiter, str(number), granted))
    assert len(granted) == 20
    await limiter.aclose()


def test_a_slot_fits_whoever_wants_no_more() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        large = timetable_module.Caller((1, 50), (0, 1), future)
        small = timetable_module.Caller((1, 40), (0, 2), future)
        slot = timetable_module.Slot(large, 0.0, 0.0, (0.0, 1.0))
        assert slot.fits(small)
        assert not timetable_module.Slot(small, 0.0, 0.0, (0.0, 1.0)).fits(large)

    virtual_run(main())
