"""Bounds in place of estimates: no call is rejected that an estimate would have let pass.

While a large token limit is free, the input of a chat is bounded by its bytes and not estimated.
Calls come in waves, so that the limit is free, fills up, and is free again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from redline.calls import Call, HttpBackend, Outcome, Request, Sink
from redline.limits import Cost, Grant, Rate
from redline.limits.wait import Limiter
from support.pacing import SERVERS
from support.token_world import Found, Setting, Traffic, drive

RATE = Rate(600_000, 0.25)
WAVE_S, EVERY_S, START_S, STEADY = 0.5, 2.5, 1000.0, 50
TRAFFIC = Traffic(latency_s=(0.05, 0.15))
SETTING = Setting(
    "moving", {"tokens": RATE}, traffic=TRAFFIC, concurrency=450, windows=20, jitter_s=0.03
)
PHASES = [number / 12 for number in range(12)]


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
        for server in SERVERS.values()
        for phase in PHASES
    )


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
