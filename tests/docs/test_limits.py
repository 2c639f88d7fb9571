"""Figures of docs/limits.md and docs/limits-proof.md that no example prints are the code's."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from redline.job.settings import FLAGS
from redline.limits import Limits, Rate, Spread
from redline.limits.rule import Doubt, Window
from redline.limits.rule import guard as jitter
from support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text("utf-8")
PROOF = (ROOT / "docs" / "limits-proof.md").read_text("utf-8")
GUARD_S = 0.055


@pytest.fixture(scope="module")
def plot() -> ModuleType:
    return script("bench/plot.py", "diagrams")


@pytest.mark.parametrize("name", ["sends.svg", "guard.svg"])
def test_a_picture_is_what_the_script_draws(plot: ModuleType, name: str) -> None:
    drawn = plot.PICTURES[name]()
    assert len(drawn) < 60_000
    assert (ROOT / "docs" / "pictures" / name).read_text("utf-8") == drawn, (
        "run python bench/plot.py"
    )
    assert f"(pictures/{name})" in PAGE + PROOF


def test_the_picture_shows_what_the_page_says_of_it(plot: ModuleType) -> None:
    found = plot.trials()
    rejected = {name: len(trial.rejected) for name, trial in found.items()}
    assert f"is rejected {rejected.pop('tutorial')} times, redline never" in PAGE
    assert rejected == {"any": 0, "matching": 0}
    assert {len(trial.admitted) for trial in found.values()} == {plot.CALLS}


def test_the_picture_would_show_a_limiter_that_is_wrong(plot: ModuleType) -> None:
    faster = plot.Redline(Rate(plot.RATE.count + 1, plot.RATE.window_s), "moving")
    assert plot.simulate(faster).rejected


def test_the_table_of_costs_is_that_of_the_formula(plot: ModuleType) -> None:
    rows = re.findall(r"^\| (\d+) s \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|$", PROOF, re.M)
    assert [int(row[0]) for row in rows] == [1, 6, 60]
    for window, *shares in rows:
        for guard_s, share in zip((0.005, 0.01, GUARD_S), shares, strict=True):
            assert share == f"{100 * plot.cost(guard_s, int(window)):.2f}"


@pytest.mark.parametrize("profile", ["any", "counter", "fixed", "moving", "bucket"])
@pytest.mark.parametrize("calls", [1, 7, 20, 21, 95])
def test_the_last_of_m_leaves_when_the_page_says(profile: str, calls: int) -> None:
    count, window_s = 20, 2.0
    window, now_s = Window(Rate(count, window_s), profile=profile, guard_s=GUARD_S), 0.0
    for _ in range(calls):
        while (wait_s := window.wait_s(1, now_s)) > 0:
            now_s += wait_s
        window.sent(window.book(1, now_s), now_s)
    span_s = window_s + GUARD_S
    if profile in ("any", "counter"):
        assert now_s == pytest.approx((calls - 1) * span_s / count)
    elif profile == "bucket":
        burst = math.floor(count * (1 - GUARD_S / window_s))
        # Within the burst, calls are spread out as those of a window are.
        assert now_s == pytest.approx(max(0, calls - burst) * window_s / count, abs=window_s / 20)
    else:
        whole_s = (calls - 1) // count * span_s
        assert whole_s - 1e-6 <= now_s <= whole_s + window_s / 20


def test_the_guards_that_the_page_names_are_the_codes() -> None:
    assert jitter.Jitter().guard_s == jitter.FIRST_GUARD_S == GUARD_S
    prior_ms, margin_ms = round(1000 * jitter.PRIOR_S), round(1000 * jitter.MARGIN_S)
    assert f"begins at 55 ms: {prior_ms} ms for the network and {margin_ms} ms for timers" in PROOF
    proved = jitter.Jitter()
    for number in range(1000):
        proved.replied(0.02, number * 0.1)
    late_s = proved.proved_s(0.02)
    assert f"t - m + {1000 * late_s:.0f} ms" in PROOF
    measured = jitter.Jitter()
    for number in range(64):
        measured.shook_hands(0.01 if number < 32 else 3.0)
    assert f"up to {1000 * measured.guard_s:.0f} ms" in " ".join(PROOF.split())


def test_the_margins_that_the_page_names_are_the_codes() -> None:
    mean, deviation, prompt, latency_s = 200.0, 132.0, 225.0, 1.75
    # The skewness of a lognormal law whose deviation is such a share of its mean.
    share = deviation / mean
    spread = Spread(deviation**2, (share**3 + 3 * share) * deviation**3, 1e9)
    for count, shown in ((200_000, "1.4 %"), (20_000, "7.8 %")):
        in_flight = count / 60 / (mean + prompt) * latency_s
        doubt = Doubt()
        doubt.variance, doubt.third = spread.variance * in_flight, spread.third * in_flight
        doubt.most = 1e9
        assert f"{100 * doubt.margin(spread) / count:.1f} %" == shown
        assert shown in PAGE


def test_every_flag_and_setting_of_the_limits_has_its_line() -> None:
    section = PAGE.partition("\n## ")[0]
    flags = {option.key for option in FLAGS.values() if option.section == "Limits"}
    named = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)", section)}
    assert flags - {"concurrency"} == named - {"dry_run"}
    assert "`-c 64`" in section
    python = (ROOT / "docs" / "python.md").read_text("utf-8")
    for field in msgspec.structs.fields(Limits):
        assert f"`{field.name}`" in python
