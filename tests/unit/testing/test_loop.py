"""Virtual time: it moves only when nothing is left to do, and never by waiting."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from redline.errors import ConfigError
from redline.testing import Deadlock, ManualClock, VirtualClock, VirtualLoop, virtual_run
from redline.testing import loop as loop_module

HOUR_S = 3600.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


def run_counting_real_time(main: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Virtual seconds `main` says it took, and the real ones."""

    async def call() -> float:
        return await main()

    started_s = time.monotonic()
    virtual_s = virtual_run(call())
    return virtual_s, time.monotonic() - started_s


def test_sleep_moves_time_instead_of_waiting() -> None:
    async def main() -> float:
        await asyncio.sleep(HOUR_S)
        return now_s()

    virtual_s, real_s = run_counting_real_time(main)
    assert virtual_s == pytest.approx(HOUR_S)
    assert real_s < virtual_s


def test_timers_fire_in_order_of_their_time() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def note(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append((name, now_s()))

        async with asyncio.TaskGroup() as group:
            for name, after_s in [("late", 90.0), ("early", 0.5), ("middle", 60.0)]:
                group.create_task(note(name, after_s))
        return seen

    assert virtual_run(main()) == [
        ("early", pytest.approx(0.5)),
        ("middle", pytest.approx(60.0)),
        ("late", pytest.approx(90.0)),
    ]


def test_work_that_is_ready_runs_before_time_moves() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return now_s()

    assert virtual_run(main()) == 0.0


def test_asyncio_timeout_and_wait_for_are_virtual() -> None:
    async def main() -> tuple[float, float]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        first_s = now_s()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(HOUR_S), timeout=45)
        return first_s, now_s()

    assert virtual_run(main()) == (pytest.approx(30.0), pytest.approx(75.0))


def test_two_runs_see_the_same_times() -> None:
    async def main() -> list[float]:
        seen = []
        for step in range(50):
            await asyncio.sleep(0.1 * step)
            seen.append(now_s())
        return seen

    assert virtual_run(main()) == virtual_run(main())


def test_time_starts_where_it_is_told() -> None:
    async def main() -> float:
        await asyncio.sleep(5)
        return now_s()

    assert virtual_run(main(), start_s=1000.0) == pytest.approx(1005.0)


def test_an_exception_of_the_main_coroutine_comes_out() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise LookupError("from inside")

    with pytest.raises(LookupError, match="from inside"):
        virtual_run(main())


def test_deadlock_names_the_tasks_and_the_lines_they_wait_at() -> None:
    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(forgotten(), name="the-forgotten-one")

    with pytest.raises(Deadlock) as caught:
        virtual_run(main())
    # The line of the test, not the one inside asyncio's Event that it waits through.
    line = forgotten.__code__.co_firstlineno + 1
    assert f"the-forgotten-one at {__file__}:{line}" in caught.value.where
    assert "no timer is set" in str(caught.value)


def test_deadlock_of_a_bare_future_shows_the_line_of_the_test() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock) as caught:
        virtual_run(main())
    assert f"{__file__}:{main.__code__.co_firstlineno + 1}" in caught.value.where


def test_deadlock_lists_a_few_tasks_and_counts_the_rest() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(asyncio.Event().wait(), name=f"waiter-{number:02}")

    with pytest.raises(Deadlock) as caught:
        virtual_run(main())
    assert "and 13 more" in caught.value.where


def test_a_ticker_that_keeps_a_dead_run_alive_meets_the_limit() -> None:
    async def main() -> None:
        async def tick() -> None:
            for _ in itertools.count():
                await asyncio.sleep(10)

        ticker = asyncio.create_task(tick(), name="ticker")
        await asyncio.Event().wait()
        ticker.cancel()

    with pytest.raises(Deadlock, match="would pass its limit, 1000 s"):
        virtual_run(main(), limit_s=1000.0)


def test_tasks_left_over_are_cancelled_and_may_clean_up_in_virtual_time() -> None:
    cleaned: list[float] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(HOUR_S)
        finally:
            await asyncio.sleep(2)
            cleaned.append(now_s())

    async def main() -> None:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1)
        assert not task.done()

    virtual_run(main())
    assert cleaned == [pytest.approx(3.0)]


def test_time_stands_still_while_a_thread_works() -> None:
    def slow_name() -> str:
        time.sleep(0.05)
        return threading.current_thread().name

    async def main() -> tuple[str, float]:
        ticks = asyncio.create_task(asyncio.sleep(5))
        name = await asyncio.to_thread(slow_name)
        seen_s = now_s()
        await ticks
        return name, seen_s

    name, seen_s = virtual_run(main())
    assert name != threading.current_thread().name
    assert seen_s == 0.0


def test_a_thread_is_waited_for_when_no_timer_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "THREAD_GRACE_S", 0.01)

    def slow_seven() -> int:
        time.sleep(0.1)
        return 7

    assert virtual_run(asyncio.to_thread(slow_seven)) == 7


def test_a_timer_fires_over_a_thread_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "THREAD_GRACE_S", 0.02)
    release = threading.Event()

    async def main() -> float:
        stuck = asyncio.get_running_loop().run_in_executor(None, release.wait)
        await asyncio.sleep(60)
        ended_s = now_s()
        assert not stuck.done()
        release.set()
        assert await stuck
        return ended_s

    assert virtual_run(main()) == pytest.approx(60.0)


def test_a_stuck_thread_costs_its_grace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    real_select = selectors.DefaultSelector.select
    release = threading.Event()

    def counted(self: selectors.DefaultSelector, timeout: float | None = None) -> object:
        waits.append(timeout)
        return real_select(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    monkeypatch.setattr(loop_module, "THREAD_GRACE_S", 0.02)

    async def main() -> None:
        stuck = asyncio.get_running_loop().run_in_executor(None, release.wait)
        for _ in range(10):
            await asyncio.sleep(1)
        release.set()
        await stuck

    virtual_run(main())
    assert waits.count(0.02) == 1


def test_a_server_and_its_client_talk_over_loopback_in_virtual_time() -> None:
    async def main() -> tuple[bytes, float]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            question = await reader.readline()
            await asyncio.sleep(30)
            writer.write(question.upper())
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            reply = await reader.read()
            writer.close()
            await writer.wait_closed()
        return reply, now_s()

    reply, took_s = virtual_run(main())
    assert reply == b"HELLO\n"
    assert took_s == pytest.approx(30.0)


def test_a_server_nobody_calls_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "THREAD_GRACE_S", 0.01)

    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with server:
            await server.serve_forever()

    with pytest.raises(Deadlock):
        virtual_run(main())


def test_the_loop_can_be_used_without_the_runner() -> None:
    loop = VirtualLoop(start_s=10.0)
    try:
        assert loop.run_until_complete(asyncio.sleep(5, "slept")) == "slept"
        assert loop.time() == pytest.approx(15.0)
    finally:
        loop.close()


def test_virtual_clock_follows_its_loop() -> None:
    async def main() -> tuple[float, float, float]:
        clock = VirtualClock(asyncio.get_running_loop(), wall_start_s=1_000_000.0)
        started_s = clock.now_s()
        await asyncio.sleep(90)
        return started_s, clock.now_s(), clock.wall_s()

    assert virtual_run(main()) == (0.0, pytest.approx(90.0), pytest.approx(1_000_090.0))


def test_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(now_s=5.0, wall_s=100.0)
    assert (clock.now_s(), clock.wall_s()) == (5.0, 100.0)
    assert clock.advance(2.5) == 7.5
    assert (clock.now_s(), clock.wall_s()) == (7.5, 102.5)


@pytest.mark.parametrize("by_s", [-0.001, float("nan")])
def test_manual_clock_never_goes_back(by_s: float) -> None:
    clock = ManualClock()
    with pytest.raises(ConfigError, match="cannot be moved"):
        clock.advance(by_s)
    assert clock.now_s() == 0.0
