"""A user's own coroutine as the call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redline.calls import Call, FunctionBackend, Outcome, Reply, Request, failed
from redline.calls.http import Shared
from redline.errors import (
    CallError,
    ConfigError,
    Disconnected,
    NoEndpoint,
    RateLimited,
    Rejected,
    TimedOut,
)
from redline.limits import Limits
from redline.limits.shared import SharedLimiter
from redline.testing import VirtualClock, virtual_run
from redline.waist import Attempts
from support.sharing import Memory, MemoryLedger


class Ends(Attempts):
    """Keeps how each attempt ended."""

    def __init__(self) -> None:
        super().__init__()
        self.errors_in_turn: list[str | None] = []

    def ended(self, now_s: float, latency_s: float, error: str | None, *used: int) -> None:
        super().ended(now_s, latency_s, error, *used)
        self.errors_in_turn.append(error)


def call_once(function: Any, *, call: Call | None = None, **settings: Any) -> Outcome:
    async def main() -> Outcome:
        clock = VirtualClock(asyncio.get_running_loop())
        backend = FunctionBackend(function, clock=clock, **settings)
        outcome = await backend.send(Request(body={"q": 1}), call or Call())
        assert backend.slots.in_use == 0
        return outcome

    return virtual_run(main())


def raising(error: BaseException) -> Any:
    async def broken(row: Any) -> None:
        raise error

    return broken


@pytest.mark.parametrize("error", [None, Rejected("no"), RateLimited("later"), NoEndpoint("gone")])
def test_an_outcome_that_it_returns_counts_as_its_own(error: CallError | NoEndpoint | None) -> None:
    async def ask(row: Any) -> Outcome:
        if error is not None:
            return failed(error)
        return Outcome(status="succeeded", reply=Reply(output="here"))

    outcome = call_once(ask)
    if error is None:
        assert (outcome.status, outcome.output) == ("succeeded", "here")
    else:
        assert outcome.status == failed(error).status
        assert error.what in str(outcome.error)


def test_what_it_returns_is_the_output() -> None:
    async def answer(row: dict[str, int]) -> dict[str, int]:
        stamps.append(call.sent_s)
        await asyncio.sleep(2)
        return {"q": row["q"] + 1}

    attempts, call = Attempts(), Call()
    stamps: list[float | None] = []
    outcome = call_once(answer, call=call, attempts=attempts)
    assert (outcome.status, outcome.output, outcome.endpoint) == ("succeeded", {"q": 2}, "answer")
    assert outcome.latency_s == pytest.approx(2)
    assert (stamps, call.sent_s) == ([0.0], None)
    assert (attempts.attempts, attempts.retries, attempts.in_flight) == (1, 0, 0)
    assert (attempts.most_in_flight, attempts.errors) == (1, {})
    assert (attempts.ended_s, attempts.longest_s) == (pytest.approx(2), pytest.approx(2))


class Panic(BaseException):
    """What code in Rust raises when it panics, for one."""


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (RateLimited("full", retry_after_s=3.0), RateLimited, "exhausted"),
        (Rejected("bad row"), Rejected, "rejected"),
        (ConnectionResetError("reset"), Disconnected, "exhausted"),
        (TimeoutError(), TimedOut, "exhausted"),
        (KeyError("q"), Rejected, "rejected"),
        (ConfigError("bad"), Rejected, "rejected"),
        (Panic("boom"), Rejected, "rejected"),
        (ExceptionGroup("two", [ConnectionError("x"), KeyError("q")]), Disconnected, "exhausted"),
        (ExceptionGroup("one", [RateLimited("full")]), RateLimited, "exhausted"),
    ],
)
def test_what_it_raises_decides(error: BaseException, kind: type, status: str) -> None:
    outcome = call_once(raising(error))
    assert type(outcome.error) is kind
    assert outcome.status == status


def test_a_defect_is_named() -> None:
    outcome = call_once(raising(KeyError("q")))
    assert outcome.error is not None
    assert outcome.error.what == "broken raised KeyError: 'q'"


def test_a_function_that_is_not_async_is_explained() -> None:
    outcome = call_once(lambda row: 3)
    assert outcome.error is not None
    assert "is not a coroutine function" in outcome.error.what
    assert "async def" in outcome.error.hint


async def forever(row: Any) -> None:
    await asyncio.Event().wait()


def test_the_attempts_clock_is_named() -> None:
    error = call_once(forever, timeout_s=7).error
    assert isinstance(error, TimedOut)
    assert (error.phase, error.after_s) == ("attempt", 7)


def test_the_rows_clock_is_named() -> None:
    error = call_once(forever, call=Call(deadline_s=3.0)).error
    assert isinstance(error, TimedOut)
    assert (error.phase, error.after_s) == ("row", None)


def test_a_timeout_of_the_functions_own_does_not_claim_redlines_seconds() -> None:
    error = call_once(raising(TimeoutError("mine"))).error
    assert isinstance(error, TimedOut)
    assert (error.phase, error.after_s) == ("attempt", None)


@pytest.mark.parametrize("limits", [Limits(concurrency=1), Limits(requests="1/60s")])
def test_a_row_whose_deadline_passes_in_the_queue_is_not_called(limits: Limits) -> None:
    async def main() -> None:
        calls = []

        async def slow(row: Any) -> None:
            calls.append(row)
            await asyncio.sleep(20)

        clock = VirtualClock(asyncio.get_running_loop())
        backend = FunctionBackend(slow, limits=limits, clock=clock)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(backend.send(Request(), Call()))
            late = group.create_task(backend.send(Request(), Call(deadline_s=5.0)))
            past = group.create_task(backend.send(Request(), Call(deadline_s=0.0)))
        assert first.result().is_success
        for outcome in (late.result(), past.result()):
            assert isinstance(outcome.error, TimedOut)
            assert outcome.error.phase == "row"
        assert len(calls) == 1
        assert backend.slots.in_use == 0

    virtual_run(main())


def test_limits_hold_and_cancelled_calls_give_back() -> None:
    async def main() -> None:
        running = most = 0

        async def work(row: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(1)
            finally:
                running -= 1

        clock = VirtualClock(asyncio.get_running_loop())
        ends = Ends()
        backend = FunctionBackend(work, limits=Limits(concurrency=3), clock=clock, attempts=ends)
        tasks = [asyncio.create_task(backend.send(Request(), Call())) for _ in range(10)]
        await asyncio.sleep(0.5)
        load = backend.load(0.5)
        assert (load.in_flight, load.waiting, load.slots) == (3, 7, 3)
        assert (load.room_s > 0, load.binds) == (True, "3 calls in flight")
        tasks[0].cancel()
        tasks[5].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most == 3
        assert backend.slots.in_use == 0
        load = backend.load(clock.now_s())
        assert (load.in_flight, load.waiting, load.room_s, load.binds) == (0, 0, 0, "")
        assert sorted(map(str, ends.errors_in_turn)) == ["None"] * 8 + ["cancelled"]

    virtual_run(main())


@pytest.mark.parametrize("refuses", ["before_write", "on_write"])
def test_a_call_that_may_not_begin_takes_nothing_from_the_limits(refuses: str) -> None:
    async def answer(row: Any) -> float:
        return clock.now_s()

    def refuse() -> None:
        if not refused:
            refused.append(Rejected("not this one"))
            raise refused[0]

    async def main() -> None:
        nonlocal clock
        clock = VirtualClock(asyncio.get_running_loop())
        hook = {"before_write": refuse} if refuses == "before_write" else {}
        limits = Limits(requests="1/60s")
        backend = FunctionBackend(answer, limits=limits, clock=clock, attempts=ends, **hook)
        call = Call(on_write=refuse)
        outcome = await backend.send(Request(), call)
        assert [outcome.error] == refused
        assert (ends.attempts, call.requests, backend.slots.in_use) == (0, 0, 0)
        # The one call that the limit allows at once.
        assert (await backend.send(Request(), call)).output == 0

    clock: VirtualClock
    refused: list[Rejected] = []
    ends = Ends()
    virtual_run(main())


def test_a_call_that_misses_its_time_under_shared_limits_waits_for_another() -> None:
    saved_s: list[float] = []

    async def answer(row: Any) -> str:
        return "yes"

    async def main() -> None:
        memory = Memory()
        ledger = MemoryLedger(memory)

        def before_write() -> None:
            saved_s.append(ledger.clock.now_s())
            if len(saved_s) == 1:
                # The disk is slow.
                ledger.clock.ahead_s += 30.0

        limits = Limits(requests="10/1s", guard_s=0.05)
        limiter = SharedLimiter(limits, ledger, ledger.clock)
        backend = FunctionBackend(
            answer, shared=Shared(limiter=limiter), before_write=before_write, clock=ledger.clock
        )
        outcome = await backend.send(Request(), Call())
        assert outcome.output == "yes"
        assert memory.turns == 2, "the call began 30 s late"
        # What was saved meanwhile comes before the call as well.
        assert len(saved_s) == 2
        await backend.aclose()

    virtual_run(main(), start_s=1000.0)


def test_a_token_limit_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match="token limit"):
        FunctionBackend(forever, limits=Limits(tokens="1k/1s"))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_its_timeout_has_bounds(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        FunctionBackend(forever, timeout_s=timeout_s)
