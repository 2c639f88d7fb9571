"""Loads in virtual time: what is called when, what is measured, and how a load ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat
from typing import Any

import msgspec
import pytest

from redline.calls import Reply
from redline.errors import ConfigError, RateLimited, Refused, ServerFailed
from redline.measure import (
    Answer,
    Figures,
    Measuring,
    Plan,
    caller_of,
    measured,
    nothing_measured,
    parse_objectives,
    schedule_of,
    swept,
)
from redline.measure.measuring import Started
from redline.testing import ScriptedBackend, Send, Step, VirtualClock, VirtualLoop, virtual_run
from support.catching import assert_caught

Latency = Callable[[float], float]


def clock() -> VirtualClock:
    """That of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop)


class Server:
    """Answers after `latency_s(now)` seconds, at most `slots` at once; others wait in line."""

    label = "server"

    def __init__(
        self, latency_s: Latency | float = 0.1, *, slots: int = 10**6, takes: int = 1
    ) -> None:
        self.takes = takes
        self.asked: list[Sequence[Any]] = []
        self.most_in_flight = self._in_flight = 0
        self.outcome: Callable[[int], Answer] = lambda number: Answer()
        self._latency_s = latency_s
        self._slots = asyncio.Semaphore(slots)

    async def ask(self, requests: Sequence[Any]) -> Answer:
        self.asked.append(requests)
        answer = self.outcome(len(self.asked))
        answer.weight, answer.sent_s = len(requests), asyncio.get_running_loop().time()
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            async with self._slots:
                latency_s = self._latency_s
                if callable(latency_s):
                    latency_s = latency_s(asyncio.get_running_loop().time())
                await asyncio.sleep(latency_s)
        finally:
            self._in_flight -= 1
        return answer

    def pause_s(self, answer: Answer, now_s: float) -> float:
        return 0.0

    def close(self) -> None:
        pass


def measure(
    server: Server, plan: Plan, requests: Iterator[Any] | None = None, **options: Any
) -> Figures:
    async def main() -> Figures:
        what = Measuring(caller=server, target="t", clock=clock(), **options)
        return await measured(what, plan, repeat("x") if requests is None else requests)

    return virtual_run(main())


def scheduled(rate_per_s: float, duration_s: float, **facts: Any) -> Plan:
    schedule = schedule_of(rate_per_s, "constant", 0)
    return Plan(concurrency=1000, duration_s=duration_s, schedule=schedule, **facts)


def test_a_closed_loop_has_the_throughput_of_littles_law() -> None:
    server = Server(0.8)
    figures = measure(server, Plan(concurrency=16, duration_s=60.0))
    assert figures.requests_per_s == pytest.approx(16 / 0.8, rel=0.01)
    assert figures.in_flight == pytest.approx(16, rel=0.01)
    assert figures.concurrent_users == pytest.approx(16, rel=0.01)
    assert figures.batch_efficiency == pytest.approx(1.0, rel=0.01)
    assert figures.latency is not None
    assert figures.latency.p99_s == pytest.approx(0.8)
    assert server.most_in_flight == 16
    assert figures.succeeded == len(server.asked) == figures.scheduled


def test_a_straggler_does_not_stretch_the_window() -> None:
    # One call of the last second takes 100 s; the other three users are not slower for it.
    server = Server(lambda now_s: 100.0 if len(server.asked) == 380 else 0.1)
    figures = measure(server, Plan(concurrency=4, duration_s=10.0))
    assert figures.seconds == pytest.approx(10.0)
    assert figures.requests_per_s == pytest.approx(4 / 0.1, rel=0.05)


def test_a_rate_is_kept_whatever_becomes_of_the_calls() -> None:
    figures = measure(Server(5.0), scheduled(20.0, 60.0))
    # The answers to the calls of the last 5 s come after the window.
    assert figures.requests_per_s == pytest.approx(20 * (60 - 2.5) / 60, rel=0.01)
    assert (figures.scheduled, figures.unsent) == (1200, 0)
    assert figures.batch_efficiency is None


def stalled(now_s: float) -> float:
    """0.1 s, but for a server that stops from 20 s to 25 s."""
    return 25.1 - now_s if 20 <= now_s < 25 else 0.1


def test_a_stall_shows_in_the_latency_from_the_scheduled_time() -> None:
    def shows(plan: Plan) -> None:
        figures = measure(Server(stalled), plan)
        assert figures.latency is not None
        # One call in twelve met it; the last hundredth of all waited 4.4 s and more.
        assert figures.latency.p99_s == pytest.approx(4.5, abs=0.15)

    # A user who waits for the answer leaves out what would have been asked meanwhile.
    assert_caught(shows, scheduled(20.0, 60.0), Plan(concurrency=2, duration_s=60.0))


def test_calls_that_wait_for_a_place_count_from_when_they_were_due() -> None:
    plan = scheduled(10.0, 30.0)
    figures = measure(Server(0.2), msgspec.structs.replace(plan, concurrency=1))
    # One at a time are 5 in a second: half of the calls are not made, and the others fall behind.
    assert figures.requests_per_s == pytest.approx(5.0, rel=0.02)
    assert figures.unsent == pytest.approx(150, abs=2)
    assert figures.scheduled == 300
    assert figures.latency is not None
    assert figures.from_send is not None
    assert figures.from_send.max_s == pytest.approx(0.2)
    assert figures.latency.max_s == pytest.approx(15.0, rel=0.03)


@pytest.mark.parametrize("form", [list, iter])
def test_a_schedule_counts_each_call_that_was_not_made_once(
    form: Callable[[list[float]], Any],
) -> None:
    schedule = form([number / 10 for number in range(20)])
    figures = measure(Server(60.0), Plan(concurrency=3, duration_s=5.0, schedule=schedule))
    assert (figures.succeeded, figures.unsent, figures.scheduled) == (3, 17, 20)


def test_calls_of_the_warm_up_that_were_not_made_are_not_counted() -> None:
    # 8 calls of the warm-up are not made, and 10 after it, of which a limit allows 6.
    for most, unsent in ((None, 10), (16, 6)):
        plan = scheduled(10.0, 2.0, warm_up_s=1.0, most=most)
        figures = measure(Server(60.0), msgspec.structs.replace(plan, concurrency=2))
        assert (figures.warm_up, figures.unsent, figures.scheduled) == (2, unsent, unsent)


def test_a_warm_up_is_apart() -> None:
    server = Server(lambda now_s: 1.0 if now_s < 10 else 0.1)
    figures = measure(server, Plan(concurrency=2, duration_s=30.0, warm_up_s=11.0))
    assert figures.seconds == pytest.approx(19.0)
    assert figures.latency is not None
    assert figures.latency.max_s == pytest.approx(0.1)
    assert figures.requests_per_s == pytest.approx(20.0, rel=0.01)
    assert figures.warm_up + figures.succeeded == len(server.asked)


@pytest.mark.parametrize("concurrency", [4, 64])
def test_no_more_than_the_limit_is_asked_and_what_was_is_measured(concurrency: int) -> None:
    server = Server(1.0)
    figures = measure(server, Plan(concurrency=concurrency, duration_s=60.0, most=20))
    assert len(server.asked) == figures.succeeded == 20
    assert figures.requests_per_s == pytest.approx(4.0 if concurrency == 4 else 20.0, rel=0.02)


def test_requests_are_asked_in_their_order_and_their_end_ends_the_load() -> None:
    server = Server(1.0)
    figures = measure(server, Plan(concurrency=1, duration_s=60.0), iter("abc"))
    assert server.asked == [["a"], ["b"], ["c"]]
    assert figures.seconds == pytest.approx(3.0, rel=0.01)


def test_lists_are_filled_and_their_fill_is_the_batch_efficiency() -> None:
    server = Server(1.0, takes=8)
    figures = measure(server, Plan(concurrency=1, duration_s=60.0, most=20))
    assert [len(requests) for requests in server.asked] == [8, 8, 4]
    assert figures.succeeded == 20
    assert figures.batch_efficiency == pytest.approx(20 / 24)


@pytest.mark.parametrize(
    ("facts", "sizes", "ends_s"),
    [
        ({}, [8, 8, 4], [0.7, 1.5, 1.9]),
        ({"most": 10}, [8, 2], [0.7, 0.9]),
    ],
)
def test_a_rate_is_of_requests_and_a_list_is_due_with_its_last(
    facts: dict[str, Any], sizes: list[int], ends_s: list[float]
) -> None:
    server, at_s = Server(0.1, takes=8), list[float]()

    def note(number: int) -> Answer:
        at_s.append(asyncio.get_running_loop().time())
        return Answer()

    server.outcome = note
    started = list[Started]()
    figures = measure(server, scheduled(10.0, 2.0, **facts), on_start=started.append)
    assert [len(requests) for requests in server.asked] == sizes
    assert [now_s - started[0].begun_s for now_s in at_s] == pytest.approx(ends_s)
    assert figures.scheduled == figures.succeeded == sum(sizes)
    assert figures.latency is not None
    assert figures.latency.max_s == pytest.approx(0.1)


def test_each_request_of_lists_that_were_not_made_is_counted() -> None:
    plan = scheduled(10.0, 2.0)
    figures = measure(Server(60.0, takes=8), msgspec.structs.replace(plan, concurrency=1))
    assert (figures.succeeded, figures.unsent, figures.scheduled) == (8, 12, 20)


def test_goodput_counts_what_keeps_the_objectives_failures_included() -> None:
    server = Server(0.1)

    def every_fourth_fails(number: int) -> Answer:
        return Answer(kind="server_failed", example="no") if number % 4 == 0 else Answer()

    server.outcome = every_fourth_fails
    plan = Plan(concurrency=1, duration_s=10.0)
    figures = measure(server, plan, objectives=parse_objectives("latency<200ms"))
    assert figures.goodput is not None
    assert figures.goodput.share == pytest.approx(0.75, abs=0.01)
    assert figures.goodput.rate.per_s == pytest.approx(7.5, rel=0.02)
    assert figures.requests_per_s == pytest.approx(7.5, rel=0.02)
    (failures,) = figures.failures
    assert (failures.kind, failures.count, failures.example) == ("server_failed", 25, "no")


def test_a_target_that_only_fails_is_given_up() -> None:
    server = Server(0.0)
    server.outcome = lambda number: Answer(kind="ValueError", example="ValueError: no")
    figures = measure(server, Plan(concurrency=4, duration_s=60.0))
    assert 20 <= len(server.asked) < 30
    assert "the first 20 requests failed" in figures.ended
    reason = nothing_measured(figures)
    assert reason is not None
    assert "ValueError: no" in reason.what


@pytest.mark.parametrize("defect", [ValueError, BaseException])
def test_a_defect_of_a_scheduled_call_ends_the_load_and_is_raised(
    defect: type[BaseException],
) -> None:
    def fails(number: int) -> Answer:
        raise defect("a defect")

    server = Server(0.1)
    server.outcome = fails
    with pytest.raises(defect, match="a defect"):
        measure(server, scheduled(10.0, 60.0))
    assert len(server.asked) == 1


def test_an_error_that_no_call_can_get_around_ends_the_load() -> None:
    refused = Refused("the endpoint refused the key: HTTP 401")
    server = Server(0.1)
    server.outcome = lambda number: Answer(kind="refused", example="no", error=refused)
    with pytest.raises(Refused):
        measure(server, Plan(concurrency=2, duration_s=60.0))
    assert len(server.asked) <= 3

    late = Server(0.1)
    late.outcome = lambda number: (
        Answer() if number < 50 else Answer(kind="refused", example="no", error=refused)
    )
    figures = measure(late, Plan(concurrency=2, duration_s=60.0))
    assert figures.ended == refused.what
    assert figures.succeeded == 49


def test_a_failure_that_may_pass_ends_nothing() -> None:
    server = Server(0.1)
    fault = ServerFailed("HTTP 500", status=500)
    server.outcome = lambda number: (
        Answer(kind="server_failed", example="HTTP 500", error=fault) if number > 1 else Answer()
    )
    figures = measure(server, Plan(concurrency=1, duration_s=9.95))
    assert (figures.succeeded, figures.failed, figures.ended) == (1, 99, "")


def test_an_endpoint_that_refuses_is_not_flooded() -> None:
    def refuses(send: Send) -> Step:
        return Reply(output="yes") if send.number == 1 else RateLimited("no", status=429)

    backend = ScriptedBackend(refuses)

    async def main() -> Figures:
        what = Measuring(caller=caller_of(backend), target="t", clock=clock())
        return await measured(what, Plan(concurrency=2, duration_s=9.5), repeat("x"))

    figures = virtual_run(main())
    # Each of two users asks once a second.
    assert len(backend.sends) == figures.succeeded + figures.failed == 21


@pytest.mark.parametrize("schedule", [None, [0.0, 1.0, 2.0]])
def test_what_is_no_request_is_refused(schedule: list[float] | None) -> None:
    async def main() -> None:
        caller = caller_of(ScriptedBackend([Reply(output="yes")]))
        what = Measuring(caller=caller, target="t", clock=clock())
        plan = Plan(concurrency=2, duration_s=9.5, schedule=schedule)
        await measured(what, plan, repeat(5))

    with pytest.raises(ConfigError, match="5 is not a request"):
        virtual_run(main())


def test_an_interrupt_ends_it_with_the_figures_so_far() -> None:
    def interrupt(started: Started) -> None:
        asyncio.get_running_loop().call_later(10.05, started.load.interrupt)

    for plan in (Plan(concurrency=2, duration_s=3600.0), scheduled(20.0, 3600.0)):
        figures = measure(Server(0.1), plan, on_start=interrupt)
        assert figures.is_interrupted
        assert figures.cut == 2 if plan.schedule is None else figures.cut > 0
        assert figures.seconds == pytest.approx(10.05, rel=0.01)
        assert figures.requests_per_s == pytest.approx(20.0, rel=0.03)


def test_an_interrupt_counts_each_request_of_a_list() -> None:
    def interrupt(started: Started) -> None:
        asyncio.get_running_loop().call_later(1.5, started.load.interrupt)

    plan = Plan(concurrency=2, duration_s=60.0)
    figures = measure(Server(1.0, takes=8), plan, on_start=interrupt)
    assert (figures.succeeded, figures.cut, figures.scheduled) == (16, 16, 32)


def test_a_sweep_finds_the_slots_of_a_server_and_goes_no_further_than_needed() -> None:
    async def main() -> list[Figures]:
        server = Server(0.5, slots=8)
        what = Measuring(caller=server, target="t", clock=clock())
        plan = Plan(concurrency=256, duration_s=20.0, warm_up_s=2.0)
        return [one async for one in swept(what, plan, map(str, count()))]

    found = virtual_run(main())
    assert [one.concurrency for one in found] == [1, 2, 4, 8, 16, 32]
    assert [round(one.requests_per_s) for one in found] == [2, 4, 8, 16, 16, 16]


def test_the_limit_of_a_sweep_is_for_all_levels_together() -> None:
    server = Server(0.5)

    async def main() -> list[Figures]:
        what = Measuring(caller=server, target="t", clock=clock())
        plan = Plan(concurrency=256, duration_s=20.0, most=100)
        return [one async for one in swept(what, plan, map(str, count()))]

    found = virtual_run(main())
    assert [one.concurrency for one in found] == [1, 2]
    assert len(server.asked) == 100
