"""Bottlenecks planted in real runs are named by their timelines; bench/binds.py plants others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import redline
from redline.observe import Cause, bindings
from redline.timeline import NAME, read_timeline
from support.bottlenecks import Scenario, played, scenarios
from support.sim_process import SimProcess

pytestmark = [pytest.mark.real]

SHORT = [one for one in scenarios(seed=3) if one.name in ("endpoint", "writer")]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SHORT, ids=[one.name for one in SHORT])
def test_what_was_planted_is_named(scenario: Scenario, tmp_path: Path) -> None:
    verdict = played(scenario, tmp_path)
    assert verdict.seconds >= 3
    assert verdict.share >= 0.9, verdict.wrong


def test_a_pool_that_may_have_fewer_calls_than_its_endpoints_is_short_of_concurrency(
    tmp_path: Path,
) -> None:
    rows = (json.dumps({"prompt": f"Sort {number}."}) for number in range(400))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    with SimProcess("--latency", "0.1") as one, SimProcess("--latency", "0.1") as two:
        command = [sys.executable, "-m", "redline", "run", "rows.jsonl", "--model", "m", "-c", "10"]
        command += ["--endpoint", one.base_url, "--endpoint", two.base_url, "-o", "out.jsonl", "-q"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    windows = read_timeline(tmp_path / "out.redline" / NAME).runs[0].windows[:-1]
    assert {window.slots for window in windows} == {10.0}
    causes = [binding.cause for binding in bindings(windows)]
    assert causes.count(Cause.CONCURRENCY) >= 0.6 * len(causes)
    assert Cause.CLIENT not in causes


def test_a_function_that_blocks_the_event_loop_is_named_and_not_the_concurrency(
    tmp_path: Path,
) -> None:
    async def ask(row: dict[str, int]) -> str:
        time.sleep(0.05)
        return "yes"

    rows = [{"number": number} for number in range(60)]
    redline.run(rows, call=ask, concurrency=16, output=tmp_path / "out.jsonl", progress=False)
    windows = read_timeline(tmp_path / "out.redline" / NAME).runs[0].windows[:-1]
    causes = [binding.cause for binding in bindings(windows)]
    assert causes.count(Cause.CLIENT) > 0.5 * len(causes)


def test_a_function_that_blocks_the_event_loop_is_named_and_not_an_iterable_of_unknown_length(
    tmp_path: Path,
) -> None:
    async def ask(row: dict[str, int]) -> str:
        time.sleep(0.008)
        await asyncio.sleep(0.02)
        return "yes"

    rows = ({"number": number} for number in range(240))
    redline.run(rows, call=ask, concurrency=16, output=tmp_path / "out.jsonl", progress=False)
    windows = read_timeline(tmp_path / "out.redline" / NAME).runs[0].windows[:-1]
    causes = [binding.cause for binding in bindings(windows)]
    assert causes.count(Cause.CLIENT) > 0.5 * len(causes)


def test_an_iterable_that_takes_most_of_the_time_is_named(tmp_path: Path) -> None:
    async def ask(row: dict[str, int]) -> str:
        await asyncio.sleep(0.005)
        return "yes"

    def busy() -> Iterator[dict[str, int]]:
        for number in range(300):
            end_s = time.perf_counter() + 0.008
            while time.perf_counter() < end_s:
                pass
            yield {"number": number}

    redline.run(busy(), call=ask, concurrency=16, output=tmp_path / "out.jsonl", progress=False)
    windows = read_timeline(tmp_path / "out.redline" / NAME).runs[0].windows[:-1]
    causes = [binding.cause for binding in bindings(windows)]
    assert causes.count(Cause.INPUT) > 0.5 * len(causes)


def test_the_last_window_of_a_run_has_its_slots(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Sort."}\n' * 20)
    with SimProcess("--latency", "0.05") as sim:
        command = [sys.executable, "-m", "redline", "run", "rows.jsonl", "--model", "m", "-c", "4"]
        command += ["--base-url", sim.base_url, "-o", "out.jsonl", "-q"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    # Its last sample is taken after the connections were closed.
    assert read_timeline(tmp_path / "out.redline" / NAME).runs[0].windows[-1].slots == 4
