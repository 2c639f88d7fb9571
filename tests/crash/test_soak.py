"""The soak of bench/soak.py in its smallest form: what leaks is noticed, and a run does not."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from redline.job import new_event_loop
from redline.journal import KeySet
from support.simulated import simulated

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import soak

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs /proc/self/statm"),
]
CONCURRENCY = 32
FLAT = {"memory_mb": 60.0, "blocks": 110_000.0, "descriptors": 80.0, "tasks": 130.0}


def samples(calls_per_s: int, count: int = 600, **leaks: float) -> list[soak.Sample]:
    """A run with a sample a second. leaks: how much of a figure is kept in a million calls."""
    chance = random.Random(1)
    found = []
    for second in range(1, count + 1):
        calls = calls_per_s * second
        sample = {"calls": float(calls), "at_s": float(second), "keys_mb": 1.0}
        for figure, level in FLAT.items():
            wobble = chance.uniform(-0.02, 0.02) * level
            # What is made once, in the first tenth of the time.
            sample[figure] = level * min(1, 10 * second / count) + wobble
            sample[figure] += leaks.get(figure, 0.0) * calls / 1e6
        found.append(sample)
    return found


@pytest.mark.parametrize("calls_per_s", [200, 5000])
def test_figures_that_rise_at_first_and_waver_then_are_flat(calls_per_s: int) -> None:
    verdict = soak.judge(samples(calls_per_s), CONCURRENCY)
    assert verdict["is_flat"], verdict
    assert verdict["samples"] == 451


@pytest.mark.parametrize(
    ("figure", "leak"),
    [("memory_mb", 24.0), ("blocks", 100_000.0), ("descriptors", 50.0), ("tasks", 50.0)],
)
def test_a_small_object_a_call_or_a_file_in_a_thousand_faults_is_a_leak(
    figure: str, leak: float
) -> None:
    """5 % of a million calls are 50,000 faults."""
    verdict = soak.judge(samples(2000, **{figure: leak}), CONCURRENCY)
    assert verdict[figure]["is_leak"]
    assert verdict[figure]["per_million_calls"] == pytest.approx(leak, rel=0.1)
    assert not verdict["is_flat"]
    assert [name for name in FLAT if verdict[name]["is_leak"]] == [figure]


def test_steps_that_come_to_an_end_are_no_leak() -> None:
    found = samples(2000)
    for sample in found:
        sample["memory_mb"] += 9.0 * (sample["at_s"] > 300)
    verdict = soak.judge(found, CONCURRENCY)
    assert verdict["memory_mb"]["per_million_calls"] > soak.BARS["memory_mb"]
    assert verdict["is_flat"]


def test_a_leak_that_is_below_its_bar_is_none() -> None:
    assert soak.judge(samples(5000, memory_mb=6.0, blocks=40_000.0, tasks=15.0), CONCURRENCY)[
        "is_flat"
    ]


def test_what_row_keys_take_is_looked_up() -> None:
    before_mb = soak.keys_mb()
    keys = KeySet()
    for key in range(1, 100_001):
        keys.add(key)
    # The power of two above twice their number, 8 bytes each.
    assert soak.keys_mb() - before_mb == 2.0
    del keys
    assert soak.keys_mb() == before_mb


def soaked(url: str, folder: Path, is_clear: Callable[[Any], bool]) -> Any:
    """The verdict on a run of 2 s; if it is not clear, on one of 4 s and at last of 6 s.

    What leaks does so in each, but on a busy machine one may be too short to tell.
    """
    for number in range(1, 4):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            timing = 2.0 * number, 0.08 * number
            found = runner.run(soak.soak(url, folder / f"{number}.jsonl", timing, CONCURRENCY))
        assert found[-1]["calls"] > 50
        verdict = soak.judge(found, CONCURRENCY)
        if is_clear(verdict):
            break
    return verdict


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(120)
def test_a_run_with_faults_is_flat_and_one_that_keeps_things_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    last_s = 0.0
    (tmp_path / "leaky").mkdir()
    (tmp_path / "flat").mkdir()

    def leaks_all(verdict: Any) -> bool:
        return all(verdict[figure]["is_leak"] for figure in FLAT)

    def keep() -> None:
        """A file, a task, 400 kB and some objects for each 10 ms, however fast the calls go.

        On a busy machine the calls come in bursts: what was missed between them is made up for,
        up to 0.1 s.
        """
        nonlocal last_s
        now_s = time.monotonic()
        last_s = max(last_s, now_s - 0.1)
        while last_s + 0.01 <= now_s:
            last_s += 0.01
            kept.append(open(os.devnull, "rb"))  # noqa: SIM115
            kept.append(asyncio.ensure_future(asyncio.sleep(3600)))
            # Pages of its own: the heap may have room from tests before.
            kept.append(mmap.mmap(-1, 400_000))
            kept[-1].write(b"x" * 400_000)
            kept.append([object() for _ in range(500)])

    def drop() -> None:
        for thing in kept:
            if hasattr(thing, "close"):
                thing.close()
        kept.clear()

    class Keeping(soak.Sampler):
        def __init__(self, every_s: float) -> None:
            drop()
            super().__init__(every_s)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "calls":
                keep()

    with simulated("--faults", "0.05", "--latency", "0.002-0.01") as server:
        with monkeypatch.context() as patch:
            patch.setattr(soak, "Sampler", Keeping)
            caught = soaked(server.base_url, tmp_path / "leaky", leaks_all)
        drop()
        verdict = soaked(server.base_url, tmp_path / "flat", itemgetter("is_flat"))
        faults = server.stats()["faults"]
    assert leaks_all(caught), caught
    assert verdict["is_flat"], verdict
    assert faults > 10
