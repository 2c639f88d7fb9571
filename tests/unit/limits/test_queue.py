"""Who waits: order, forgetting, and a bound on what is kept."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
import weakref

import pytest

from redline.limits.wait import WaitQueue


def woken(queue: WaitQueue[str, int]) -> list[str]:
    """Everybody, in the order in which they go."""
    names = []
    while (head := queue.head()) is not None:
        names.append(head.want)
        queue.wake_head(len(names))
    return names


def leave(queue: WaitQueue[str, int], turn: asyncio.Future[int]) -> None:
    turn.cancel()
    queue.forget()


async def test_the_lowest_priority_goes_first_and_arrival_decides_within() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    assert queue.head() is None
    for want, priority in [("a", 5), ("b", -1), ("c", 0), ("d", 5), ("e", -1), ("f", 0)]:
        queue.add(want, priority)
    assert len(queue) == 6
    assert [waiter.want for waiter in queue.line()] == list("becfad")
    assert woken(queue) == list("becfad")
    assert len(queue) == 0
    assert [*queue.line()] == []


async def test_each_gets_what_it_was_woken_with() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    waiters = [queue.add(want, 0) for want in "abc"]
    woken(queue)
    assert [waiter.result() for waiter in waiters] == [1, 2, 3]


async def test_who_has_left_is_passed_over() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    waiters = {
        want: queue.add(want, priority)
        for want, priority in zip("abcdef", (0, 1, 0, 1, 0, 1), strict=True)
    }
    for want in "abf":
        leave(queue, waiters[want])
    assert len(queue) == 3
    assert woken(queue) == ["c", "e", "d"]


async def test_a_newcomer_of_a_priority_that_was_used_up_is_found() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    for _ in range(3):
        for priority in (2, 0, 1):
            queue.add(str(priority), priority)
        assert woken(queue) == ["0", "1", "2"]


async def test_who_waits_again_has_its_old_place() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    numbers = {want: queue.number() for want in "abc"}
    for want, number in numbers.items():
        queue.add(want, 0, number)
    queue.add("d", 0)
    a, b, *_ = queue.line()
    queue.wake(b, 2)
    queue.wake(a, 1)
    assert (a.future.result(), b.future.result()) == (1, 2)
    assert [waiter.want for waiter in queue.line()] == ["c", "d"]
    for want in "ba":
        queue.add(want, 0, numbers[want])
    assert len(queue) == 4
    assert woken(queue) == list("abcd")


async def test_nothing_is_kept_of_priorities_behind_one_that_waits() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    queue.add("first", 0)
    tracemalloc.start()
    for priority in range(1, 2_001):
        queue.add("later", priority)
        _, later = queue.line()
        queue.wake(later, 1)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # An empty line takes some 700 bytes.
    assert kept < 100_000


async def test_a_refused_one_gets_the_error_and_is_passed_over() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    turns = [queue.add(want, 0) for want in "abc"]
    queue.refuse([*queue.line()][1], ValueError("too large"))
    assert len(queue) == 2
    with pytest.raises(ValueError, match="too large"):
        await turns[1]
    assert woken(queue) == ["a", "c"]


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_what_is_kept_is_bounded_by_who_waits(is_at_once: bool) -> None:
    """Also where all are cancelled before the first of their tasks has run."""
    queue: WaitQueue[str, int] = WaitQueue()
    queue.add("stays", -1)
    for _ in range(3):
        waiters = [queue.add("goes", 0) for _ in range(5000)]
        kept = weakref.WeakSet(waiters)
        if is_at_once:
            for waiter in waiters:
                waiter.cancel()
            for _ in waiters:
                queue.forget()
        else:
            for waiter in waiters:
                leave(queue, waiter)
        assert len(queue) == 1
        del waiter, waiters
        gc.collect()
        assert len(kept) <= 2 * 66
    assert woken(queue) == ["stays"]


async def test_what_is_kept_is_bounded_however_many_left_at_the_head() -> None:
    queue: WaitQueue[str, int] = WaitQueue()
    queue.add("stays", 0)
    kept: weakref.WeakSet[asyncio.Future[int]] = weakref.WeakSet()
    for _ in range(20):
        for priority in [1] * 60 + [-1] * 100:
            turn = queue.add("goes", priority)
            kept.add(turn)
            leave(queue, turn)
            head = queue.head()
            assert head is not None
            assert head.want == "stays"
        del turn
    gc.collect()
    assert len(kept) <= 2 * 66
    assert woken(queue) == ["stays"]


async def test_any_mixture_keeps_the_order_and_loses_nobody() -> None:
    chance = random.Random(7)
    queue: WaitQueue[str, int] = WaitQueue()
    waiting: list[tuple[int, int, asyncio.Future[int]]] = []
    for number in range(20_000):
        step = chance.random()
        if step < 0.5 or not waiting:
            priority = chance.randrange(4)
            waiting.append((priority, number, queue.add(str(number), priority)))
        elif step < 0.75:
            _, _, turn = waiting.pop(chance.randrange(len(waiting)))
            leave(queue, turn)
        else:
            first = min(waiting, key=lambda entry: entry[:2])
            waiting.remove(first)
            assert queue.is_next(first[2])
            queue.wake_head(number)
        assert len(queue) == len(waiting)
        if number == 10_000:
            del waiting[200:]
            for waiter in [*queue.line()]:
                if all(waiter.future is not entry[2] for entry in waiting):
                    leave(queue, waiter.future)
    left = sorted(waiting, key=lambda entry: entry[:2])
    assert woken(queue) == [str(number) for _, number, _ in left]
