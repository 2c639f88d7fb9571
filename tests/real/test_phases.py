"""Where the time of real calls went: a delay is found in the phase where it was planted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Request, Retry
from redline.clock import SYSTEM
from redline.timeline import Counters, Gatherer, Totals
from redline.waist import Chunk, Sink
from support.phase_runs import PLANTED, Ran, run
from support.sim_process import SimProcess, fleet_of

pytestmark = [pytest.mark.real]

MOST_UNATTRIBUTED = 0.01


def is_attributed(ran: Ran) -> bool:
    """The phases are the time of all rows, which samples of the rows in hand come near to."""
    assert ran.attributed_s == pytest.approx(ran.sampled_s, rel=0.25)
    return ran.unattributed <= MOST_UNATTRIBUTED


@pytest.mark.parametrize("phase", PLANTED)
def test_a_delay_is_found_where_it_was_planted(phase: str, tmp_path: Path) -> None:
    planted = PLANTED[phase](tmp_path)
    assert planted.phase == phase
    assert abs(planted.error) <= 0.05, planted
    assert planted.ran.unattributed <= MOST_UNATTRIBUTED


async def answered(row: dict[str, Any]) -> str:
    await asyncio.sleep(0.1)
    return str(row["text"])


def with_retries(folder: Path, sim: SimProcess) -> Ran:
    sim.disturb("500=0.1", "429=0.05", "503=0.05", "reset=0.05")
    return run(folder, sim, 60, concurrency=16)


RUNS: dict[str, Callable[[Path, SimProcess], Ran]] = {
    "plain": lambda folder, sim: run(folder, sim, 80, concurrency=8),
    "with retries": with_retries,
    "within a limit": lambda folder, sim: run(folder, sim, 60, concurrency=32, rps=25),
    "by a function": lambda folder, sim: run(folder, sim, 60, call=answered, rps=25),
    "with a cache": lambda folder, sim: run(
        folder, sim, 60, concurrency=8, prompt="{{ id % 20 }}", params={"temperature": 0},
        cache=folder / "cache", after=lambda output: output,
    ),
    "within a budget": lambda folder, sim: run(
        folder, sim, 40, concurrency=16, params={"max_tokens": 100}, budget_tokens=4_000
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_hardly_any_time_is_left_over(kind: str, tmp_path: Path) -> None:
    with SimProcess("--latency", "0.1-0.3") as sim:
        ran = RUNS[kind](tmp_path, sim)
    assert is_attributed(ran), ran.phases


def test_hardly_any_time_is_left_over_at_several_endpoints(tmp_path: Path) -> None:
    with fleet_of(3, "--latency", "0.1-0.3", "--faults", "500=0.05") as sims:
        endpoints = [sim.base_url for sim in sims]
        ran = run(tmp_path, sims[0], 100, endpoint=endpoints, concurrency=6)
    assert is_attributed(ran), ran.phases


class Reads(Sink):
    async def put(self, chunk: Chunk) -> None:
        return


@pytest.mark.parametrize(
    ("flags", "phase"),
    [(("--latency", "0.3"), "first_byte_s"), (("--per-token", "0.1"), "answer_s")],
)
async def test_of_a_stream_the_wait_is_told_from_the_rest(flags: Sequence[str], phase: str) -> None:
    with SimProcess(*flags) as sim:
        endpoint = Endpoint(base_url=sim.base_url, proxy="")
        backend, gatherer = Retry(HttpBackend(endpoint)), Gatherer()
        gatherer.begin(SYSTEM.now_s(), Counters())

        async def ask(number: int) -> None:
            begun_s = SYSTEM.now_s()
            body = {"model": "m", "messages": [{"role": "user", "content": f"say {number}"}]}
            outcome = await backend.send(Request(body=body), Call(), Reads())
            gatherer.took(0, (begun_s, SYSTEM.now_s(), outcome.tried))

        await asyncio.gather(*map(ask, range(8)))
        await backend.aclose()
        seen = sim.get("/sim/requests")["requests"]
    phases = gatherer.window(SYSTEM.now_s(), Counters(), Totals()).phases
    assert len(seen) == 8
    planted_s = sum(one["ended_s"] - one["arrival_s"] for one in seen)
    assert getattr(phases, phase) == pytest.approx(planted_s, rel=0.05)
    assert phases.unattributed_s <= MOST_UNATTRIBUTED * phases.total_s
