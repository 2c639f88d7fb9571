"""Token limits, learned from scratch: used to 95 %, and never passed.

The sends of a run do not depend on the server as long as nobody is rejected. So one run is judged
by every way of counting and by many phases of each.
"""

from __future__ import annotations

from typing import Any

import pytest

from mutants import mutant, with_names
from pacing import SERVERS
from redline.calls import http as http_module
from redline.calls import moments as moments_module
from redline.calls import tokens as tokens_module
from redline.limits import Rate
from redline.limits import budget as budget_module
from redline.limits import record as record_module
from redline.limits import window as window_module
from token_world import Found, Setting, Traffic, drive

RATE = Rate(200_000, 60.0)
USED = 0.95
PHASES = [number / 12 for number in range(12)]
# The same mean time to an answer: whatever its length, or by its length.
LATENCIES = {
    "any": Traffic(),
    "growing": Traffic(latency_s=(0.5, 0.5), per_token_s=0.00625),
}


def run(profile: str = "any", traffic: Traffic = LATENCIES["any"], **changes: Any) -> Found:
    changes = {"rates": {"tokens": RATE}, **changes}
    return drive(Setting("moving", profile=profile, traffic=traffic, **changes))


def rejected(found: Found, *charges: str, kinds: tuple[str, ...] = tuple(SERVERS)) -> int:
    """By all of these servers in all phases together."""
    (rate,) = found.setting.rates.values()
    return sum(
        found.rejections(SERVERS[kind](rate), charge, phase)
        for kind in kinds
        for charge in charges
        for phase in PHASES
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("latency", LATENCIES)
def test_any_uses_nearly_all_and_no_way_of_counting_rejects_it(latency: str, seed: int) -> None:
    found = run(traffic=LATENCIES[latency], seed=seed)
    assert found.rejected == rejected(found, "actual", "answered") == 0
    assert found.used() >= USED
    assert found.used(after_windows=1) >= USED


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("profile", ["moving", "bucket"])
def test_the_servers_own_profile_uses_nearly_all(profile: str, latency: str) -> None:
    found = run(profile, LATENCIES[latency], windows=4.5)
    kinds = ("bucket",) if profile == "bucket" else ("fixed", "moving", "aligned", "bucket")
    if profile == "bucket":
        found = drive(Setting("bucket", {"tokens": RATE}, "bucket", traffic=LATENCIES[latency]))
    assert found.rejected == 0
    assert rejected(found, "actual", kinds=kinds[:3]) == 0
    assert found.used() >= USED


@pytest.mark.parametrize("profile", ["any", "moving", "bucket"])
def test_what_is_charged_in_advance_is_never_passed(profile: str) -> None:
    server = "bucket" if profile == "bucket" else "moving"
    traffic = Traffic(output_tokens=300, most_tokens=400)
    found = drive(Setting(server, {"tokens": RATE}, profile, "reserved", traffic, windows=3.5))
    assert found.rejected == 0
    kinds = {"any": tuple(SERVERS), "moving": ("fixed", "moving", "aligned"), "bucket": ("bucket",)}
    assert rejected(found, "reserved", kinds=kinds[profile]) == 0
    # All that it can be charged for is used, too.
    charged = sum(call.most_tokens for call in found.calls[:-1])
    lasted_s = found.calls[-1].at_s - found.calls[0].at_s
    assert charged >= USED * RATE.count * lasted_s / RATE.window_s


@pytest.mark.parametrize("algorithm", ["fixed", "moving", "counter", "bucket"])
@pytest.mark.parametrize("profile", ["any", "own"])
def test_limits_on_input_and_output_apart(algorithm: str, profile: str) -> None:
    rates = {"input_tokens": Rate(150_000, 60.0), "output_tokens": Rate(120_000, 60.0)}
    profile = algorithm if profile == "own" else profile
    found = drive(Setting(algorithm, rates, profile, windows=2.5, phase=0.3))
    assert found.rejected == 0
    # Outputs bind, and of them every one is uncertain.
    assert found.used("output_tokens") >= 0.9


def test_a_request_limit_beside_it() -> None:
    rates = {"tokens": RATE, "requests": Rate(9, 1.0)}
    found = drive(Setting("counter", rates, phase=0.4, windows=2.5))
    assert found.rejected == 0
    assert found.used() >= 0.9


def test_predictable_outputs_use_a_small_limit() -> None:
    traffic = Traffic(shape=0.05, most_tokens=260)
    found = run(traffic=traffic, rates={"tokens": Rate(60_000, 6.0)}, windows=8)
    assert found.rejected == rejected(found, "actual", "answered") == 0
    assert found.used(after_windows=1) >= USED


# What a change of one line does.


def check_short_window() -> None:
    traffic = Traffic(latency_s=(0.5, 0.5), per_token_s=0.00625)
    rates = {"tokens": Rate(600_000, 6.0)}
    found = run(traffic=traffic, rates=rates, concurrency=600, windows=6)
    assert rejected(found, "actual", kinds=("moving",)) == 0


def check_growing() -> None:
    assert run(traffic=LATENCIES["growing"]).used() >= USED


def check_reserved() -> None:
    assert run(charge="reserved", windows=1.5).rejected == 0


def test_each_part_of_the_rule_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "self._over[number] = None if tokens is None else (tokens, took_s)"
    as_they_come = mutant(
        moments_module, line, "self._count(tokens, took_s) if tokens is not None else None; return"
    )
    check_short_window()
