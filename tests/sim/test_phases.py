"""Each phase of a call: a delay planted in one of them is found there, and nothing is left over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from redline.calls import Backend, Call, Endpoint, HttpBackend, Request, Retry
from redline.calls.client import RetryPolicy
from redline.errors import CallError, ServerFailed
from redline.limits import Limits
from redline.route import Pool, Seat, strategy_of
from redline.testing import VirtualClock, virtual_run
from redline.timeline import Counters, Gatherer, Totals, Window
from redline.timeline.phases import phases_of
from redline.waist import Attempt, Chunk, Outcome, Sink
from support.raw_server import RawServer, Seen, answer, chat

CALLS = 8
DELAY_S = 2.0
# Any call takes a little at the server, so that no phase is empty by being everything.
SERVED_S = 0.25
Server = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
STREAM = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "yes"}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


class Reads(Sink):
    async def put(self, chunk: Chunk) -> None:
        return


async def quick(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(SERVED_S)
    writer.write(answer(chat("yes")))


async def slow_to_begin(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(DELAY_S)
    writer.write(answer(chat("yes")))


async def slow_to_end(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(SERVED_S)
    data = answer(chat("yes"))
    writer.write(data[:40])
    await asyncio.sleep(DELAY_S)
    writer.write(data[40:])


async def slow_to_say_a_word(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(SERVED_S)
    writer.write(STREAM_HEAD)
    await asyncio.sleep(DELAY_S)
    writer.write(STREAM)
    writer.close()


async def slow_to_go_on(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(SERVED_S)
    first, rest = STREAM.split(b"\n\n", 1)
    writer.write(STREAM_HEAD + first + b"\n\n")
    await asyncio.sleep(DELAY_S)
    writer.write(rest)
    writer.close()


def failing_first() -> Server:
    seen_before: set[bytes] = set()

    async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SERVED_S)
        is_first = seen.body not in seen_before
        seen_before.add(seen.body)
        if is_first:
            writer.write(answer(b"{}", status=503, Retry_After=f"{DELAY_S:g}"))
        else:
            writer.write(answer(chat("yes")))

    return serve


async def recorded(
    backend: Backend, *, at_once: int, calls: int = CALLS, sink: Sink | None = None
) -> tuple[Window, float]:
    """The window of so many calls, and the seconds that they took, one added to the other."""
    clock = VirtualClock(asyncio.get_running_loop())
    gatherer, total_s = Gatherer(), 0.0
    gatherer.begin(clock.now_s(), Counters())
    numbers, outcomes = iter(range(calls)), list[Outcome]()

    async def work() -> None:
        nonlocal total_s
        for number in numbers:
            begun_s = clock.now_s()
            body = {"model": "m", "user": str(number), "messages": []}
            outcomes.append(await backend.send(Request(body=body), Call(), sink))
            gatherer.took(0, (begun_s, clock.now_s(), outcomes[-1].tried))
            total_s += clock.now_s() - begun_s

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    await backend.aclose()
    assert all(one.is_success for one in outcomes)
    return gatherer.window(clock.now_s(), Counters(calls=len(outcomes)), Totals()), total_s


async def at_endpoint(
    server: Server,
    *,
    at_once: int = 1,
    calls: int = CALLS,
    sink: Sink | None = None,
    **limits: object,
) -> tuple[Window, float]:
    clock = VirtualClock(asyncio.get_running_loop())
    async with RawServer(server) as raw:
        endpoint = Endpoint(base_url=raw.base_url, limits=Limits(**limits), proxy="")  # type: ignore[arg-type]
        policy = RetryPolicy(base_s=0.001, cap_s=0.002)
        backend = Retry(HttpBackend(endpoint, clock=clock), policy, clock=clock, seed=1)
        return await recorded(backend, at_once=at_once, calls=calls, sink=sink)


async def in_pool(server: Server) -> tuple[Window, float]:
    """Two endpoints with a slot each, and four calls at once."""
    clock = VirtualClock(asyncio.get_running_loop())
    async with RawServer(server) as one, RawServer(server) as other:

        def seat(name: str, raw: RawServer) -> Seat:
            limits = Limits(concurrency=1)
            endpoint = Endpoint(base_url=raw.base_url, name=name, limits=limits, proxy="")
            return Seat(
                name=name, make=lambda on_room: HttpBackend(endpoint, clock=clock, on_room=on_room)
            )

        strategy = strategy_of("p2c", random.Random(1))
        pool = Pool([seat("a", one), seat("b", other)], strategy, clock=clock, seed=1)
        return await recorded(pool, at_once=4)


PLANTED: dict[str, tuple[Callable[[], Awaitable[tuple[Window, float]]], float]] = {
    "first_byte_s": (lambda: at_endpoint(slow_to_begin), CALLS * DELAY_S),
    "answer_s": (lambda: at_endpoint(slow_to_end), CALLS * DELAY_S),
    "first_token_s": (lambda: at_endpoint(slow_to_say_a_word, sink=Reads()), CALLS * DELAY_S),
    "answer_s of a stream": (lambda: at_endpoint(slow_to_go_on, sink=Reads()), CALLS * DELAY_S),
    "backoff_s": (lambda: at_endpoint(failing_first()), CALLS * DELAY_S),
    # The first goes at once, each of the others waits for one interval less than it takes.
    "grant_s": (
        lambda: at_endpoint(quick, requests="1/2s", guard_s=0.0),
        (CALLS - 1) * (DELAY_S - SERVED_S),
    ),
    # Two at once for one slot: all but the first call find it taken for as long as a call takes.
    "slot_s": (
        lambda: at_endpoint(slow_to_begin, at_once=2, concurrency=1),
        (CALLS - 1) * DELAY_S,
    ),
    "queue_s": (lambda: in_pool(slow_to_begin), (CALLS - 2) * DELAY_S),
}


@pytest.mark.parametrize("phase", PLANTED)
def test_a_delay_is_found_in_the_phase_that_it_was_planted_in(phase: str) -> None:
    work, planted_s = PLANTED[phase]
    window, total_s = virtual_run(_of(work), start_s=100.0)
    phases = window.phases
    assert getattr(phases, phase.split()[0]) == pytest.approx(planted_s, rel=0.05)
    assert phases.total_s == pytest.approx(total_s, rel=0.01)
    assert phases.unattributed_s <= 0.01 * total_s
    assert (window.calls, window.answered) == (CALLS, CALLS)


def test_a_turn_to_get_ready_for_the_grant_is_time_until_the_grant() -> None:
    """Of many calls few make a connection and wait with it; the others wait for the same limit."""
    calls = 50
    planted_s = DELAY_S * calls * (calls - 1) / 2
    work = at_endpoint(quick, at_once=calls, calls=calls, requests="1/2s", guard_s=0.0)
    window, total_s = virtual_run(work, start_s=100.0)
    assert window.phases.grant_s == pytest.approx(planted_s, rel=0.01)
    assert window.phases.total_s == pytest.approx(total_s, rel=0.01)


async def _of(work: Callable[[], Awaitable[tuple[Window, float]]]) -> tuple[Window, float]:
    return await work()


def test_the_wait_for_the_disk_is_a_phase_and_unknown_rows_wait_as_the_others() -> None:
    async def main() -> None:
        window, _ = await at_endpoint(quick)
        assert window.phases.durable_s == 0
        clock = VirtualClock(asyncio.get_running_loop())
        gatherer = Gatherer()
        gatherer.begin(clock.now_s(), Counters())
        async with RawServer(quick) as raw:
            endpoint = Endpoint(base_url=raw.base_url, proxy="")
            backend = HttpBackend(endpoint, clock=clock)
            begun_s = clock.now_s()
            outcome = await backend.send(Request(body={"messages": []}), Call())
            await backend.aclose()
        ended_s = clock.now_s()
        gatherer.took(0, (begun_s, ended_s, outcome.tried))
        await asyncio.sleep(DELAY_S)
        gatherer.became_durable(ended_s + DELAY_S, [ended_s, None])
        found = gatherer.window(clock.now_s(), Counters(), Totals())
        assert found.phases.durable_s == pytest.approx(2 * DELAY_S, rel=0.01)

    virtual_run(main(), start_s=100.0)


def attempt(sent_s: float, complete_s: float, error: CallError | None = None) -> Attempt:
    return Attempt("one", error, sent_s, None, complete_s)


def test_what_comes_before_the_first_attempt_and_after_the_last_is_the_clients() -> None:
    tried = (attempt(3.0, 4.0, ServerFailed("it failed", status=500)), attempt(6.0, 9.0))
    phases = phases_of([(1.0, 14.0, tried), (0.0, 0.5, ())])
    assert (phases.client_s, phases.first_byte_s, phases.backoff_s) == (7.5, 4.0, 2.0)
    assert phases.unattributed_s == 0


def test_what_may_have_been_other_attempts_is_not_attributed() -> None:
    """A call keeps its latest attempts alone."""
    tried = [attempt(100.0 + n, 100.5 + n, ServerFailed("", status=500)) for n in range(32)]
    phases = phases_of([(10.0, 131.5, tried)])
    assert phases.unattributed_s == pytest.approx(90.0)
    assert phases.total_s == pytest.approx(121.5)


def waited(draw: random.Random, begun_s: float) -> Attempt:
    """An attempt with some of the marks that there may be, in their order."""
    at_s = begun_s
    marks = dict[str, float | None]()
    is_waited, is_sent = draw.random() < 0.6, draw.random() < 0.8
    names = ["queued_s"]
    names += ["eligible_s", "slot_s", "ahead_s", "connected_s", "granted_s"] if is_waited else []
    names += ["sent_s", "first_byte_s", "first_token_s"] if is_sent else []
    needed = {"eligible_s", "sent_s", "first_byte_s"} if draw.random() < 0.8 else {"sent_s"}
    for name in names:
        at_s += draw.random()
        marks[name] = at_s if name in needed or draw.random() < 0.5 else None
    marks = {"sent_s": None, "first_byte_s": None, **marks}
    if marks["first_byte_s"] is None:
        marks["first_token_s"] = None
    return Attempt("one", None, complete_s=at_s + draw.random(), **marks)  # type: ignore[arg-type]


def test_phases_add_up_to_the_whole_time_whatever_a_call_waited_for() -> None:
    draw = random.Random(3)
    for _ in range(400):
        begun_s = draw.uniform(1e5, 1e5 + 60)
        tried = [waited(draw, begun_s)]
        if draw.random() < 0.2:
            tried.append(waited(draw, tried[0].complete_s + draw.random()))
        ended_s = tried[-1].complete_s + draw.random()
        found = msgspec.structs.astuple(phases_of([(begun_s, ended_s, tried)]))
        assert sum(found) == pytest.approx(ended_s - begun_s, abs=1e-6)
        assert min(found) >= 0
