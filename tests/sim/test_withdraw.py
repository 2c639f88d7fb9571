"""Calls that a pool takes back before they are written, and what an endpoint tells a pool."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls import Call, Chunk, Endpoint, HttpBackend, Request, Retry, Sink
from redline.errors import Withdrawn
from redline.limits import Limits
from redline.testing import VirtualClock, virtual_run
from redline.waist import Attempts
from support.raw_server import RawServer, Seen, answer, chat

LATENCY_S = 0.3


def ask(number: int) -> Request:
    return Request(body={"model": "m", "user": str(number), "messages": []})


async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(LATENCY_S)
    writer.write(answer(chat("yes")))


def backend_of(
    server: RawServer, *, on_room: Any = None, attempts: Attempts | None = None, **limits: Any
) -> HttpBackend:
    return HttpBackend(
        Endpoint(base_url=server.base_url, limits=Limits(profile="fixed", **limits), proxy=""),
        attempts=attempts,
        on_room=on_room,
        clock=VirtualClock(asyncio.get_running_loop()),
    )


def now_s() -> float:
    return asyncio.get_running_loop().time()


def assert_nothing_held(backend: HttpBackend, idle: Any) -> None:
    load = backend.load(now_s())
    assert (load.in_flight, load.waiting, load.ahead_free) == (0, 0, idle.ahead_free)
    for line in backend.limiter.rules.lines:  # type: ignore[attr-defined]
        # What was booked and never sent or given back would stay for ever.
        assert line.window.wait_s(line.window.rate.count, now_s()) < math.inf


class Plan:
    """Which of some calls are taken back, and which cancelled, after so many turns of the loop."""

    def __init__(self, slots: int, rate: str | None, moves: list[tuple[int, int, bool]]) -> None:
        self.slots, self.rate, self.moves = slots, rate, moves


PLANS = st.builds(
    Plan,
    st.sampled_from([1, 2, 8]),
    st.sampled_from([None, "2/1s", "30/1s"]),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60), st.booleans()), max_size=8),
)


async def play(plan: Plan) -> None:
    async with RawServer(late) as server:
        backend = backend_of(server, concurrency=plan.slots, requests=plan.rate or ())
        retry, idle = Retry(backend), backend.load(now_s())
        calls = [Call() for _ in range(8)]
        tasks = [asyncio.create_task(retry.send(ask(at), call)) for at, call in enumerate(calls)]
        withdrawn, cancelled, turns = set(), set(), 0
        for at, after, is_cancel in sorted(plan.moves, key=lambda move: move[1]):
            for _ in range(after - turns):
                await asyncio.sleep(0 if after % 3 else 0.01)
            turns = after
            if is_cancel:
                if tasks[at].cancel():
                    cancelled.add(at)
            elif backend.withdraw(calls[at]):
                withdrawn.add(at)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for at, outcome in enumerate(outcomes):
            if at in cancelled:
                assert isinstance(outcome, asyncio.CancelledError)
                continue
            assert not isinstance(outcome, BaseException), outcome
            assert isinstance(outcome.error, Withdrawn) == (at in withdrawn)
            if at in withdrawn:
                assert (outcome.status, outcome.attempts) == ("exhausted", 0)
                assert (outcome.tried, calls[at].attempts, calls[at].requests) == ((), 0, 0)
            else:
                assert (outcome.is_success, outcome.attempts) == (True, 1)
        written = {str(seen.json()["user"]) for seen in server.seen}  # type: ignore[index]
        assert written.isdisjoint(map(str, withdrawn))
        assert written >= {str(at) for at in range(8)} - set(map(str, withdrawn | cancelled))
        assert_nothing_held(backend, idle)
        # It works as before.
        assert (await retry.send(ask(9), Call())).is_success
        await backend.aclose()


@settings(max_examples=60, deadline=None)
@given(PLANS)
def test_a_call_that_is_withdrawn_at_any_moment_gives_everything_back(plan: Plan) -> None:
    virtual_run(play(plan))


def run(main: Coroutine[Any, Any, None]) -> None:
    virtual_run(main)


@pytest.mark.parametrize("place", ["slot", "ahead", "grant", "connection"])
def test_a_call_that_waits_is_withdrawn(place: str) -> None:
    async def main() -> None:
        async with RawServer(late) as server:
            slots = 1 if place == "slot" else 50
            backend = backend_of(server, concurrency=slots, requests="1/5s")
            call, others = Call(), 0
            if place in ("slot", "ahead"):
                others = 1 if place == "slot" else 30
            tasks = [asyncio.create_task(backend.send(ask(at), Call())) for at in range(others)]
            if place == "grant":
                backend.limiter.park(60.0)
            asked = asyncio.create_task(backend.send(ask(99), call))
            for _ in range(0 if place == "connection" else 20):
                await asyncio.sleep(0.001)
            if place == "connection":
                await asyncio.sleep(0)
            assert backend.withdraw(call)
            assert not backend.withdraw(call)
            began_s = now_s()
            outcome = await asked
            assert isinstance(outcome.error, Withdrawn)
            assert now_s() == began_s
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await backend.aclose()

    run(main())


def test_a_call_that_was_written_or_is_not_here_is_not_touched() -> None:
    async def main() -> None:
        async with RawServer(late) as server:
            backend, call = backend_of(server), Call()
            assert not backend.withdraw(call)
            task = asyncio.create_task(backend.send(ask(1), call))
            await asyncio.sleep(LATENCY_S / 2)
            assert len(server.seen) == 1
            assert not backend.withdraw(call)
            assert (await task).is_success
            assert not backend.withdraw(call)
            await backend.aclose()

    run(main())


class Ignores(Sink):
    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        pass

    async def put(self, chunk: Chunk) -> None:
        pass


@pytest.mark.parametrize("cause", ["refused", "broken"])
def test_a_call_that_waits_to_be_written_again_is_withdrawn(cause: str) -> None:
    async def write(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b"stream_options" in seen.body:
            writer.write(answer({"message": 'unknown field "stream_options"'}, status=400))
        elif len(server.seen) == 2 and cause == "broken":
            writer.close()
        else:
            writer.write(answer(chat("yes")))

    server = RawServer(write)

    async def main() -> None:
        async with server:
            attempts, call = Attempts(), Call()
            backend = backend_of(server, attempts=attempts, requests="2/20s")
            retry, idle = Retry(backend), backend.load(now_s())
            assert (await retry.send(ask(1), Call())).is_success
            sink = Ignores() if cause == "refused" else None
            task = asyncio.create_task(backend.send(ask(2), call, sink))
            await asyncio.sleep(1)
            assert (len(server.seen), call.requests) == (2, 1)
            assert backend.withdraw(call)
            began_s = now_s()
            assert isinstance((await task).error, Withdrawn)
            assert (now_s(), call.sent_s) == (began_s, None)
            assert_nothing_held(backend, idle)
            kind = "rejected" if cause == "refused" else "disconnected"
            assert (attempts.in_flight, attempts.errors) == (0, {kind: 1})
            # One that is on the wire again is not touched.
            task = asyncio.create_task(backend.send(ask(3), call))
            await asyncio.sleep(0)
            assert (await task).is_success
            assert not backend.withdraw(call)
            await backend.aclose()

    run(main())


@pytest.mark.parametrize("is_cancelled_too", [False, True])
def test_a_withdrawal_is_no_cancellation_of_the_task(is_cancelled_too: bool) -> None:
    async def main() -> None:
        async with RawServer(late) as server:
            backend, call, left = backend_of(server), Call(), []
            backend.limiter.park(60.0)

            async def work() -> None:
                assert isinstance((await backend.send(ask(1), call)).error, Withdrawn)
                task = asyncio.current_task()
                assert task is not None
                left.append(task.cancelling())

            task = asyncio.create_task(work())
            await asyncio.sleep(1)
            assert backend.withdraw(call)
            if is_cancelled_too:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await task
                assert left == [0]
            await backend.aclose()

    run(main())


def test_a_place_ahead_that_becomes_free_is_reported() -> None:
    async def main() -> None:
        rooms: list[float] = []
        async with RawServer(late) as server:
            backend = backend_of(
                server, concurrency=50, requests="1/1s", on_room=lambda: rooms.append(now_s())
            )
            ahead = backend.load(now_s()).ahead_free
            # The first one waits for nothing.
            tasks = [asyncio.create_task(backend.send(ask(at), Call())) for at in range(ahead + 1)]
            await asyncio.sleep(0.5)
            assert (backend.load(now_s()).ahead_free, rooms) == (0, [])
            await asyncio.gather(*tasks)
            assert rooms[0] == pytest.approx(1.0, abs=0.2)
            await backend.aclose()

    run(main())
