"""--longest-wait, in virtual time: a run ends in place of waiting too long, and loses nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest

from redline.calls import Endpoint, HttpBackend, Retry
from redline.errors import WaitTooLong
from redline.job.settings import Job, Prompting
from redline.job.work import Backpressure, Feed, Renderer, Runner, Tally
from redline.journal import NotKept, Result
from redline.limits import Limits
from redline.route import Pool, Seat, strategy_of
from redline.sources import open_source
from redline.testing import VirtualClock, virtual_run
from support.raw_server import RawServer, Seen, answer, chat

HOUR_S = 3600.0
FREE = Limits(concurrency=4)
Answers = Callable[[int, float], tuple[int, dict[str, str]]]


class Ran(msgspec.Struct):
    """A run's end: rows that succeeded, requests that came, seconds, and why it was stopped."""

    done: int
    asked: int
    took_s: float
    stopped: Exception | None


def quota(rows: int, retry_after_s: float, status: int = 429) -> Answers:
    """A server that takes so many requests, and none before that time has passed."""
    until_s: list[float] = []

    def answers(number: int, now_s: float) -> tuple[int, dict[str, str]]:
        if number <= rows or (until_s and now_s >= until_s[0]):
            return 200, {}
        until_s[:] = until_s or [now_s + retry_after_s]
        return status, {"Retry_After": f"{until_s[0] - now_s:.0f}"}

    return answers


def works(number: int, now_s: float) -> tuple[int, dict[str, str]]:
    return 200, {}


def used_up(number: int, now_s: float) -> tuple[int, dict[str, str]]:
    """A server whose headers say after ten requests that the day's quota is used up."""
    left, reset = max(0, 10 - number), "8h0m0s"
    headers = {"X_RateLimit_Limit_Requests": "10", "X_RateLimit_Remaining_Requests": str(left)}
    return 200, {**headers, "X_RateLimit_Reset_Requests": reset}


def run(
    answers: Sequence[Answers],
    *,
    rows: int = 40,
    limits: Limits = FREE,
    latency_s: float = 1.0,
    longest_wait_s: float | None = None,
    is_one_down: bool = False,
) -> Ran:
    """The end of a run on a server for each of `answers`, and on one that was never up."""

    async def main() -> Ran:
        loop = asyncio.get_running_loop()
        clock, tally, results = VirtualClock(loop), Tally(), list[Result]()
        job = Job(
            rows=[{"prompt": str(number)} for number in range(rows)],
            endpoints=(Endpoint(base_url="http://127.0.0.1:9/v1"),),
            prompting=Prompting(prompt="{{ prompt }}", model="m"),
            longest_wait_s=longest_wait_s,
        )
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(RawServer(_serving(each, latency_s)))
                for each in answers
            ]

            if is_one_down:
                async with RawServer(_serving(works, 0.0)) as down:
                    servers.append(down)

            def backend(
                server: RawServer, on_room: Callable[[], None] | None = None
            ) -> HttpBackend:
                endpoint = Endpoint(
                    base_url=server.base_url, name=str(server.port), limits=limits, proxy=""
                )
                return HttpBackend(
                    endpoint, attempts=tally, clock=clock, listener=tally, on_room=on_room
                )

            def seat(server: RawServer) -> Seat:
                return Seat(
                    name=str(server.port),
                    make=lambda on_room: backend(server, on_room),
                )

            calls = (
                backend(servers[0])
                if len(servers) == 1
                else Pool(
                    [seat(one) for one in servers],
                    strategy_of("p2c", random.Random(1)),
                    clock=clock,
                )
            )
            load = Backpressure()
            feed = Feed(open_source(job.rows), lambda keys, undone, marks: undone, None, load=load)
            runner = Runner(
                job=job,
                backend=Retry(calls, clock=clock, listener=tally, seed=1),
                slots=4 * len(servers),
                supply=feed,
                source_name="rows",
                renderer=Renderer(job.prompting),
                results=NotKept(results.extend),
                load=load,
                clock=clock,
            )
            begun_s = loop.time()
            await runner.run()
            took_s = loop.time() - begun_s
            await feed.aclose()
            await calls.aclose()
            asked = sum(len(server.seen) for server in servers)
        assert all(result.status == "succeeded" for result in results)
        assert len({result.key for result in results}) == len(results)
        return Ran(len(results), asked, took_s, runner.stopped)

    return virtual_run(main(), limit_s=90 * HOUR_S)


def _serving(answers: Answers, latency_s: float) -> Callable[[Seen, asyncio.StreamWriter], object]:
    count = 0

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        status, headers = answers(count, asyncio.get_running_loop().time())
        if status == 200:
            await asyncio.sleep(latency_s)
        writer.write(answer(chat("yes"), status=status, **headers))

    return handle  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answers", "limits", "why"),
    [
        (quota(10, 8 * HOUR_S), FREE, "the endpoint asked redline to wait"),
        (used_up, Limits(concurrency=4, rate="auto", profile="moving"), "a limit is used up"),
        (works, Limits(concurrency=4, requests="10/1d", profile="moving"), "a limit is used up"),
    ],
    ids=["Retry-After", "reset header", "own limit"],
)
def test_a_daily_quota_ends_the_run_with_all_that_it_gave(
    answers: Answers, limits: Limits, why: str
) -> None:
    ran = run([answers], limits=limits, longest_wait_s=600.0)
    assert isinstance(ran.stopped, WaitTooLong)
    assert why in str(ran.stopped)
    # The first answers come when four calls are in flight.
    assert 10 <= ran.done <= 13
    assert ran.took_s < 60
    assert 7.9 * HOUR_S < ran.stopped.wait_s < 24.1 * HOUR_S
    # Without it, the run waits.
    assert run([answers], rows=14, limits=limits).took_s > 7.9 * HOUR_S


def test_what_is_in_flight_is_waited_for_however_long_it_takes() -> None:
    ran = run([quota(10, 8 * HOUR_S)], longest_wait_s=600.0, latency_s=200.0)
    assert isinstance(ran.stopped, WaitTooLong)
    assert ran.done == 10


def test_a_run_goes_on_for_a_second_after_each_row_that_ends() -> None:
    ran = run([quota(1, 8 * HOUR_S)], longest_wait_s=600.0, latency_s=0.5)
    assert isinstance(ran.stopped, WaitTooLong)
    assert ran.done == 1
    assert ran.took_s > 1.5


def test_a_shorter_wait_is_waited_for() -> None:
    ran = run([quota(10, 500.0)], longest_wait_s=600.0)
    assert (ran.done, ran.stopped) == (40, None)
    assert ran.took_s > 500


def test_another_endpoint_that_can_go_on_keeps_the_run_going() -> None:
    ran = run([quota(4, 8 * HOUR_S), works], longest_wait_s=600.0)
    assert (ran.done, ran.stopped) == (40, None)
    ran = run([quota(4, 8 * HOUR_S), quota(8, 2 * HOUR_S)], longest_wait_s=600.0)
    assert isinstance(ran.stopped, WaitTooLong)
    assert ran.done == 12
    # By the one that could go on sooner.
    assert 1.9 * HOUR_S < ran.stopped.wait_s <= 2 * HOUR_S


def test_an_endpoint_that_is_out_of_reach_keeps_no_run_waiting() -> None:
    ran = run([quota(10, 8 * HOUR_S)], longest_wait_s=600.0, is_one_down=True)
    assert isinstance(ran.stopped, WaitTooLong)
    assert "the endpoint asked redline to wait" in str(ran.stopped)
    assert (ran.done, ran.took_s < 60) == (10, True)


def test_the_last_row_is_not_waited_for_if_it_alone_was_asked_to_wait() -> None:
    ran = run([quota(39, HOUR_S, status=500)], longest_wait_s=600.0)
    assert isinstance(ran.stopped, WaitTooLong)
    assert ran.done == 39
