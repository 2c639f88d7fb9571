"""Health pages: they keep calls from what is down, and calls have the last word."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from redline.calls import Call, Request, Retry
from redline.errors import CallError, ServerFailed
from redline.route import Pool, Seat, ServerFigures, strategy_of
from redline.testing import virtual_run
from redline.waist import Health
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()
HTTP_500 = ServerFailed("HTTP 500", status=500)


class Pages:
    """Pages of a server in virtual time. shown: its figures, None for a page that is no good."""

    has_metrics = True
    has_health = True

    def __init__(self) -> None:
        self.shown: ServerFigures | None = None
        self.is_good = True
        self.takes_s = 0.01
        self.probes = self.scrapes = 0
        self.is_closed = False

    async def figures(self) -> ServerFigures | None:
        self.scrapes += 1
        await asyncio.sleep(self.takes_s)
        return self.shown

    async def is_well(self) -> bool:
        self.probes += 1
        await asyncio.sleep(self.takes_s)
        return self.is_good

    async def aclose(self) -> None:
        self.is_closed = True


def pool_of(servers: Sequence[ModelServer], pages: Sequence[Pages]) -> Pool:
    seats = [
        Seat(name=server.name, make=lambda on_room, server=server: server, pages=page)
        for server, page in zip(servers, pages, strict=True)
    ]
    return Pool(seats, strategy_of("p2c", random.Random(1)), seed=1, clock=CLOCK)


def states(pool: Pool) -> list[Health]:
    return [member.health(CLOCK.now_s()) for member in pool.members]


async def keep_busy(pool: Pool, for_s: float, *, at_once: int = 16) -> None:
    """Calls of 0.1 s for so long; each has an answer in the end."""
    backend, until_s = Retry(pool, clock=CLOCK, seed=1), CLOCK.now_s() + for_s

    async def work() -> None:
        while CLOCK.now_s() < until_s:
            outcome = await backend.send(Request(body={"work": 0.1}), Call())
            assert outcome.is_success, outcome

    await asyncio.gather(*(work() for _ in range(at_once)))


def fleet(
    count: int = 3, fails: Callable[[float, int], CallError | None] = lambda *_: None
) -> tuple[Pool, list[ModelServer], list[Pages]]:
    """A pool with pages; `fails` is of the first server."""
    servers = [
        ModelServer(f"s{n}", slots=16, bound=16, fails=fails if not n else lambda *_: None)
        for n in range(count)
    ]
    pages = [Pages() for _ in servers]
    return pool_of(servers, pages), servers, pages


def test_a_server_that_is_not_up_gets_no_call_until_its_page_is_well() -> None:
    async def main() -> None:
        pool, servers, pages = fleet()
        pages[0].is_good = False
        await keep_busy(pool, 30.0)
        assert states(pool) == [Health.STARTING, Health.READY, Health.READY]
        assert (servers[0].calls, pages[0].probes > 25) == (0, True)
        pages[0].is_good = True
        await keep_busy(pool, 10.0)
        assert states(pool) == [Health.READY] * 3
        assert servers[0].calls > 300
        await pool.aclose()

    virtual_run(main())


def test_the_first_calls_wait_for_the_first_page() -> None:
    async def main() -> None:
        pool, servers, _ = fleet(1)
        outcome = asyncio.create_task(pool.send(Request(body={"work": 0.1}), Call()))
        await asyncio.sleep(0.005)
        assert (servers[0].calls, states(pool)) == (0, [Health.STARTING])
        assert (await outcome).is_success
        await pool.aclose()

    virtual_run(main())


def test_a_page_that_fails_three_times_takes_its_server_out_before_calls_do() -> None:
    async def main() -> None:
        pool, servers, pages = fleet()
        await keep_busy(pool, 10.0)
        pages[0].is_good = False
        await keep_busy(pool, 1.5)
        assert states(pool) == [Health.READY] * 3
        await keep_busy(pool, 2.0)
        assert states(pool) == [Health.DEGRADED, Health.READY, Health.READY]
        calls = servers[0].calls
        await keep_busy(pool, 60.0)
        assert servers[0].calls == calls
        pages[0].is_good = True
        await keep_busy(pool, 5.0)
        assert servers[0].calls > calls + 50
        await pool.aclose()

    virtual_run(main())


def test_a_page_that_is_late_now_and_then_takes_nothing_out() -> None:
    async def main() -> None:
        pool, _, pages = fleet()
        await keep_busy(pool, 5.0)
        for number in range(100):
            pages[0].is_good = number % 5 != 0
            await keep_busy(pool, 1.0, at_once=4)
            assert states(pool) == [Health.READY] * 3
        await pool.aclose()

    virtual_run(main())


def test_a_page_that_is_well_brings_nothing_back_whose_calls_fail() -> None:
    async def main() -> None:
        pool, servers, _ = fleet(fails=lambda now_s, n: HTTP_500 if n > 100 else None)
        await keep_busy(pool, 60.0)
        # Five failures degrade it; then one call tries it after each pause of 1, 2, 4, 8, 15 s.
        assert states(pool)[0] is Health.DEGRADED
        assert servers[0].failed < 40
        await pool.aclose()

    virtual_run(main())


def test_calls_do_not_try_a_degraded_server_whose_page_fails() -> None:
    async def main() -> None:
        down_s = CLOCK.now_s() + 10

        def fails(now_s: float, number: int) -> CallError | None:
            return HTTP_500 if down_s <= now_s < down_s + 120 else None

        pool, servers, pages = fleet(fails=fails)
        await keep_busy(pool, 10.5)
        pages[0].is_good = False
        await keep_busy(pool, 2.0)
        failed = servers[0].failed
        await keep_busy(pool, 100.0)
        assert servers[0].failed == failed
        await keep_busy(pool, 30.0)
        pages[0].is_good = True
        # It is back at once, and not after a pause.
        calls = servers[0].calls
        await keep_busy(pool, 3.0)
        assert servers[0].calls > calls + 20
        await pool.aclose()

    virtual_run(main())


def test_if_all_pages_fail_while_calls_are_answered_calls_go_on() -> None:
    async def main() -> None:
        pool, servers, pages = fleet()
        await keep_busy(pool, 5.0)
        for page in pages:
            page.is_good = False
        before = sum(server.calls for server in servers)
        await keep_busy(pool, 60.0)
        # 16 at a time, of 0.1 s each.
        assert sum(server.calls for server in servers) - before > 0.95 * 16 * 600
        await pool.aclose()

    virtual_run(main())


def test_servers_none_of_which_is_up_are_tried_with_calls() -> None:
    async def main() -> None:
        pool, servers, pages = fleet()
        for page in pages:
            page.is_good = False
        outcome = await pool.send(Request(body={"work": 0.1}), Call(deadline_s=CLOCK.now_s() + 5))
        assert outcome.is_success
        assert sum(server.calls for server in servers) == 1
        await pool.aclose()

    virtual_run(main())


def test_one_that_is_not_up_yet_does_not_get_all_calls_while_the_other_one_fails() -> None:
    """Its model is being loaded: a call that is sent to it waits for that."""

    async def main() -> None:
        begun_s = CLOCK.now_s()
        pages = [Pages(), Pages()]
        pages[0].is_good = False

        def fails(now_s: float, number: int) -> CallError | None:
            return HTTP_500 if 1 <= now_s - begun_s < 6 else None

        servers = [
            ModelServer("loading", slots=64, speed=0.001),
            ModelServer("failing", slots=64, fails=fails),
        ]
        pool = pool_of(servers, pages)
        await keep_busy(pool, 20)
        await pool.aclose()
        assert servers[0].calls < 8
        assert servers[1].calls > 1_000

    virtual_run(main())


@pytest.mark.parametrize("others", [0, 12])
def test_calls_of_others_count_and_own_ones_count_once(others: int) -> None:
    async def main() -> None:
        pool, servers, pages = fleet(2)

        async def show() -> None:
            while True:
                for server, page in zip(servers, pages, strict=True):
                    count = server.in_flight + (others if server is servers[0] else 0)
                    page.shown = ServerFigures(min(8, count), max(0, count - 8), 0.5)
                await asyncio.sleep(0.01)

        shows = asyncio.create_task(show())
        await keep_busy(pool, 20.0)
        figures = pool.members
        assert figures[0].foreign == pytest.approx(others, abs=2)
        assert figures[1].foreign <= 2
        assert [one.gpu for one in figures] == [0.5, 0.5]
        share = servers[0].calls / sum(server.calls for server in servers)
        # With x of 16 calls at the first one: x + others = 16 - x.
        assert share == pytest.approx((16 - others) / 32, abs=0.08)
        shows.cancel()
        await pool.aclose()

    virtual_run(main())


def test_figures_that_come_no_more_are_used_for_ten_seconds() -> None:
    async def main() -> None:
        pool, _, pages = fleet(2)
        pages[0].shown = ServerFigures(1_000, 0)
        await keep_busy(pool, 5.0, at_once=2)
        first = pool.members[0]
        seen = first.answers
        await keep_busy(pool, 5.0, at_once=2)
        assert first.answers <= seen + 2
        pages[0].shown = None
        await keep_busy(pool, 9.0, at_once=2)
        assert first.answers <= seen + 4
        await keep_busy(pool, 10.0, at_once=2)
        assert first.answers > seen + 50
        # A page that fails is asked for less and less often.
        before = pages[0].scrapes
        await keep_busy(pool, 300.0, at_once=2)
        assert pages[0].scrapes - before < 12
        await pool.aclose()

    virtual_run(main())


def test_a_pool_that_is_used_in_another_loop_reads_its_pages_there() -> None:
    pool, servers, pages = fleet()

    async def main() -> int:
        probes = pages[0].probes
        await keep_busy(pool, 5.0)
        return pages[0].probes - probes

    assert [virtual_run(main(), start_s=start_s) >= 4 for start_s in (0.0, 10.0)] == [True] * 2
    assert all(server.calls for server in servers)


def test_slow_pages_hold_up_no_call() -> None:
    async def main() -> None:
        pool, servers, pages = fleet()
        await keep_busy(pool, 2.0)
        for page in pages:
            page.takes_s = 1_000.0
        before = sum(server.calls for server in servers)
        await keep_busy(pool, 30.0)
        assert sum(server.calls for server in servers) - before > 0.95 * 16 * 300
        await pool.aclose()

    virtual_run(main())


def test_nothing_is_asked_before_the_first_call_or_after_the_end() -> None:
    async def main() -> None:
        pool, _, pages = fleet()
        await asyncio.sleep(10.0)
        assert [page.probes + page.scrapes for page in pages] == [0, 0, 0]
        await keep_busy(pool, 3.0)
        await pool.remove("s0")
        asked = pages[0].probes + pages[0].scrapes
        await keep_busy(pool, 3.0)
        assert (pages[0].probes + pages[0].scrapes, pages[0].is_closed) == (asked, True)
        await pool.aclose()
        assert all(page.is_closed for page in pages)
        assert len(asyncio.all_tasks()) == 1

    virtual_run(main())


def test_a_server_that_hung_is_not_taken_to_be_slow_afterwards() -> None:
    async def main() -> None:
        pool, servers, pages = fleet(2)
        await keep_busy(pool, 5.0)
        # Its calls take a thousand times as long, and its page fails.
        servers[0].speed, pages[0].is_good = 0.001, False
        slow = asyncio.create_task(keep_busy(pool, 1.0))
        await asyncio.sleep(50.0)
        servers[0].speed, pages[0].is_good = 1.0, True
        # Those answers are still to come.
        await keep_busy(pool, 80.0)
        await slow
        before = [server.calls for server in servers]
        await keep_busy(pool, 5.0)
        calls = [server.calls - seen for server, seen in zip(servers, before, strict=True)]
        assert min(calls) > 0.4 * sum(calls)
        await pool.aclose()

    virtual_run(main())
