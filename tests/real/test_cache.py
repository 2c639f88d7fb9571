"""The cache over real sockets, from Python: one answer for equal rows, and none for failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import redline
from redline import Cache, ConfigError
from support.simulated import simulated

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def plain_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name.startswith("OPENAI_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def asked(count: int, kinds: int) -> list[dict[str, Any]]:
    return [{"prompt": f"Say {number % kinds}.", "temperature": 0} for number in range(count)]


def test_equal_rows_are_asked_once_and_later_runs_ask_nothing(tmp_path: Path) -> None:
    with simulated("--latency", "0.05") as sim:
        for cache in (True, True, tmp_path / "other", str(tmp_path / "other")):
            report = redline.run(
                asked(200, 5), endpoint=sim.base_url, model="m", cache=cache, progress=False
            )
            assert [outcome.output for outcome in report.outcomes] == [
                f"You said: Say {number % 5}." for number in range(200)
            ]
            assert report.cache is not None
            found = (report.cache.hits, report.cache.shared, report.cache.misses)
            spared = sum(outcome.is_cached for outcome in report.outcomes)
            assert (sum(found), found[0] + found[1]) == (200, spared)
            assert report.attempts == found[2]
            # What the answers cost stands in their lines, and is not spent again.
            if not report.attempts:
                assert (report.input_tokens, report.output_tokens) == (0, 0)
        assert sim.stats()["received"] == 10
    assert (tmp_path / "home" / "redline" / "answers").is_dir()


def test_failures_are_asked_again_by_each_who_has_them(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "temperature": 0, "max_tokens": 0}] * 4
    with simulated() as sim:
        for number in (1, 2):
            report = redline.run(
                rows, endpoint=sim.base_url, model="m", cache=tmp_path, progress=False
            )
            assert (report.failed, report.attempts) == (4, 4)
            assert sim.stats()["received"] == 4 * number


def test_faults_are_retried_behind_the_cache(tmp_path: Path) -> None:
    with simulated("--faults", "0.2", "--seed", "5", "--latency", "0.01") as sim:
        for _ in range(2):
            report = redline.run(
                asked(300, 60),
                endpoint=redline.Endpoint(
                    base_url=sim.base_url, timeouts=redline.Timeouts(attempt_s=1, first_byte_s=1)
                ),
                model="m",
                cache=Cache(tmp_path),
                progress=False,
            )
            assert (report.succeeded, report.failed) == (300, 0)
            assert {outcome.output for outcome in report.outcomes} == {
                f"You said: Say {number}." for number in range(60)
            }
        assert report.attempts == 0


async def test_a_stream_of_outcomes_says_which_were_cached(tmp_path: Path) -> None:
    with simulated() as sim:
        found = [
            outcome
            async for outcome in redline.stream(
                asked(40, 4), endpoint=sim.base_url, model="m", cache=tmp_path
            )
        ]
    assert sum(outcome.is_cached for outcome in found) == 36
    assert all(outcome.attempts == (not outcome.is_cached) for outcome in found)


def test_options_that_make_no_cache() -> None:
    async def answer(row: dict[str, Any]) -> str:
        return "yes"

    with pytest.raises(ConfigError, match="a function of your own are not cached"):
        redline.run([{"a": 1}], call=answer, cache=True)
    with pytest.raises(ConfigError, match="cache must be True, a folder or a Cache, not 3"):
        redline.run([{"a": 1}], endpoint="sim", cache=3)  # type: ignore[arg-type]
    report = redline.run([{"prompt": "a", "seed": 1}], endpoint="sim", cache=False, progress=False)
    assert report.cache is None


def test_what_comes_from_the_cache_is_not_spent(tmp_path: Path) -> None:
    price = {"m": {"input": 1.0, "cached_input": 1.0, "output": 1.0}}
    with simulated() as sim:
        spent = []
        for name in ("first", "second"):
            report = redline.run(
                asked(20, 4),
                endpoint=sim.base_url,
                model="m",
                cache=True,
                prices=price,
                output=tmp_path / f"{name}.jsonl",
                progress=False,
            )
            spent.append(report.spent.usd)
        tokens = sim.stats()["received"] * (len("Say 0.") // 4 + 1 + len("You said: Say 0.") // 4)
    # Of the second run nothing is told: it has paid for nothing.
    assert spent == [pytest.approx(tokens / 1e6), None]
