"""Bounds in place of estimates: no call is rejected that an estimate would have let pass.

While a large token limit is free, the input of a chat is bounded by its bytes and not estimated.
Calls come in waves, so that the limit is free, fills up, and is free again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from redline.calls import Call, Endpoint, HttpBackend, Outcome, Request, Sink
from redline.calls.wire import Answer, Exchange, Stops, TaskTimeout, Transport
from redline.limits import Cost, Grant, Limits, Rate
from redline.limits.wait import Limiter
from redline.testing import VirtualClock, virtual_run
from support.pacing import SERVERS, phases_of
from support.swapping import Swap
from support.token_world import Found, Setting, Traffic, drive

RATE = Rate(600_000, 0.25)
WAVE_S, EVERY_S, START_S, STEADY = 0.5, 2.5, 1000.0, 50
TRAFFIC = Traffic(latency_s=(0.05, 0.15))
SETTING = Setting(
    "moving", {"tokens": RATE}, traffic=TRAFFIC, concurrency=450, windows=20, jitter_s=0.03
)


class Waves(HttpBackend):
    """All workers send in a wave, and 50 of them go on between the waves."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.workers: list[object] = []

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        worker = asyncio.current_task()
        if worker not in self.workers:
            self.workers.append(worker)
        wave_s = (self.clock.now_s() - START_S) % EVERY_S
        if wave_s > WAVE_S and self.workers.index(worker) >= STEADY:
            await asyncio.sleep(EVERY_S - wave_s)
        return await super().send(request, call, sink)


class Ran(NamedTuple):
    """bounds, estimates: grants by each."""

    found: Found
    bounds: int
    estimates: int


def run(monkeypatch: pytest.MonkeyPatch, *, bounds: bool, setting: Setting = SETTING) -> Ran:
    granted = {True: 0, False: 0}

    class Counted(Limiter):
        def acquire_now(self, cost: Cost) -> Grant | None:
            grant = super().acquire_now(cost)
            granted[cost.is_bound] += grant is not None
            return grant

        @property
        def easy_tokens(self) -> int:
            return super().easy_tokens if bounds else 0

    with monkeypatch.context() as patched:
        patched.setattr("redline.limits.open.Limiter", Counted)
        found = drive(setting, Waves)
    return Ran(found, granted[True], granted[False])


def rejected(found: Found) -> int:
    """By every way of counting, in all phases together."""
    return found.rejected + sum(
        found.rejections(server(RATE), "actual", phase)
        for kind, server in SERVERS.items()
        for phase in phases_of(kind)
    )


@pytest.mark.slow
def test_bounds_are_never_rejected_and_cost_no_throughput(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounded, estimated = run(monkeypatch, bounds=True), run(monkeypatch, bounds=False)
    assert bounded.bounds > 300
    assert bounded.estimates > 300
    assert estimated.bounds == 0
    assert rejected(bounded.found) <= rejected(estimated.found) == 0
    assert bounded.found.used() >= 0.99 * estimated.found.used()
    backend = bounded.found.backend
    assert backend is not None
    assert backend.load(START_S).tokens_out == 0


def test_a_limit_that_always_binds_has_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(SETTING, rates={"tokens": Rate(200_000, 60.0)}, concurrency=20, windows=0.5)
    assert run(monkeypatch, bounds=True, setting=small).bounds == 0


class Told(Transport):
    """Answers at once, with the usage that it is told."""

    usage: dict[str, int]

    async def exchange(self, exchange: Exchange, *_: object) -> Answer:
        async with TaskTimeout(Stops(VirtualClock(asyncio.get_running_loop()))) as alarm:
            exchange.follow(alarm)
            await exchange.get_ready()
            await exchange.wait_for_grant()
            exchange.leave(alarm)
            await asyncio.sleep(0.01)
            exchange.headers_came()
            choice = {"message": {"content": "yes"}, "finish_reason": "stop"}
            answer = {"choices": [choice], "usage": self.usage}
            return Answer(200, {}, msgspec.json.encode(answer))


LONG = {"model": "m", "messages": [{"role": "user", "content": "word " * 50}]}


async def bounded(then: dict[str, int], calls: int) -> list[Cost | None]:
    """The bound of a request whose usage was 60 tokens, before and after calls that used `then`."""
    limits = Limits(tokens=Rate(10**9, 1.0), charge="actual")
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", limits=limits, proxy="")
    clock = VirtualClock(asyncio.get_running_loop())
    server = Told(endpoint, clock, lambda took_s: None)
    with Swap((Transport, lambda *_, **__: server)):
        backend = HttpBackend(endpoint, clock=clock)
    found = []
    for usage, count in (({"prompt_tokens": 60, "completion_tokens": 5}, 600), (then, calls)):
        server.usage = usage
        for _ in range(count):
            outcome = await backend.send(Request(raw=msgspec.json.encode(LONG)), Call())
            assert outcome.is_success
        request = Request(raw=msgspec.json.encode(LONG))
        found.append(backend.estimator.bound(request, backend.limiter.easy_tokens))
        assert backend.load(clock.now_s()).tokens_out == 0
    await backend.aclose()
    return found


@pytest.mark.parametrize("then", [{}, {"prompt_tokens": 5_000, "completion_tokens": 5}])
def test_the_first_usage_that_a_bound_does_not_cover_ends_bounds(then: dict[str, int]) -> None:
    before, after = virtual_run(bounded(then, 1))
    assert before is not None
    assert after is None


def test_outputs_are_followed_while_calls_take_bounds() -> None:
    before, after = virtual_run(bounded({"prompt_tokens": 60, "completion_tokens": 40}, 3_200))
    assert before is not None
    assert after is not None
    assert before.output_tokens == 5
    assert 13 <= after.output_tokens <= 80
