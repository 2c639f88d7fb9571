"""Token limits, learned from scratch: used to 95 %, and never passed.

The sends of a run do not depend on the server as long as nobody is rejected. So one run is judged
by every way of counting and by many phases of each.
"""

from __future__ import annotations

from typing import Any

import pytest

from redline.calls.http import EndpointLimits
from redline.calls.http import backend as backend_module
from redline.calls.tokens import PendingOutputs
from redline.calls.tokens import estimate as tokens_module
from redline.limits import Rate
from redline.limits.rule import Doubt, Window
from support.pacing import SERVERS, phases_of
from support.token_world import Found, Setting, Traffic, drive

RATE = Rate(200_000, 60.0)
USED = 0.95
# The same mean time to an answer: whatever its length, or by its length.
LATENCIES = {
    "any": Traffic(),
    "growing": Traffic(latency_s=(0.5, 0.5), per_token_s=0.00625),
}
RESERVED = Traffic(output_tokens=300, most_tokens=400)
# Servers for which each profile is made, besides the one it names.
OWN = {"moving": ("fixed", "moving", "aligned"), "bucket": ("bucket",)}


def run(profile: str = "any", traffic: Traffic = LATENCIES["any"], **changes: Any) -> Found:
    server = "bucket" if profile == "bucket" else "moving"
    changes = {"rates": {"tokens": RATE}, **changes}
    return drive(Setting(server, profile=profile, traffic=traffic, **changes))


def rejected(found: Found, *charges: str, kinds: tuple[str, ...] = tuple(SERVERS)) -> int:
    """By all of these servers in all phases together."""
    (rate,) = found.setting.rates.values()
    return sum(
        found.rejections(SERVERS[kind](rate), charge, phase)
        for kind in kinds
        for charge in charges
        for phase in phases_of(kind)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("latency", LATENCIES)
def test_any_uses_nearly_all_and_no_way_of_counting_rejects_it(latency: str, seed: int) -> None:
    found = run(traffic=LATENCIES[latency], seed=seed)
    assert found.rejected == rejected(found, "actual", "answered") == 0
    assert found.used() >= USED
    assert found.used(after_windows=1) >= USED


@pytest.mark.slow
@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("profile", OWN)
def test_the_servers_own_profile_uses_nearly_all(profile: str, latency: str) -> None:
    # A burst is over by the middle of its window.
    found = run(profile, LATENCIES[latency], windows=2.5)
    assert found.rejected == rejected(found, "actual", kinds=OWN[profile]) == 0
    assert found.used() >= USED


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["any", "moving", "bucket"])
def test_what_is_charged_in_advance_is_never_passed(profile: str) -> None:
    found = run(profile, RESERVED, charge="reserved", windows=3.5)
    kinds = OWN.get(profile, tuple(SERVERS))
    assert found.rejected == rejected(found, "reserved", kinds=kinds) == 0
    # All that it can be charged for is used, too.
    charged = sum(call.most_tokens for call in found.calls[:-1])
    lasted_s = found.calls[-1].at_s - found.calls[0].at_s
    assert charged >= USED * RATE.count * lasted_s / RATE.window_s


# What a moving window lets in, a fixed one does as well.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "profile"),
    [
        *(("moving", "any"), ("counter", "any"), ("bucket", "any")),
        *(("fixed", "fixed"), ("moving", "moving"), ("bucket", "bucket")),
    ],
)
def test_limits_on_input_and_output_apart(algorithm: str, profile: str) -> None:
    rates = {"input_tokens": Rate(150_000, 60.0), "output_tokens": Rate(120_000, 60.0)}
    found = drive(Setting(algorithm, rates, profile, windows=2.5, phase=0.3))
    assert found.rejected == 0
    # Outputs bind.
    assert found.used("output_tokens", after_windows=1) >= 0.9


def test_a_request_limit_beside_it() -> None:
    rates = {"tokens": RATE, "requests": Rate(9, 1.0)}
    found = drive(Setting("counter", rates, phase=0.4, windows=2.5))
    assert found.rejected == 0
    assert found.used(after_windows=1) >= 0.9


def test_predictable_outputs_use_a_small_limit() -> None:
    traffic = Traffic(shape=0.05, most_tokens=260)
    found = run(traffic=traffic, rates={"tokens": Rate(60_000, 6.0)}, windows=8)
    assert found.rejected == rejected(found, "actual") == 0
    assert found.used() >= USED


def test_calls_that_wait_from_the_start_take_the_outputs_learned_since_then() -> None:
    traffic = Traffic(most_tokens=4096)
    rates = {"output_tokens": Rate(100_000, 60.0)}
    found = run(traffic=traffic, rates=rates, concurrency=700, windows=2.5)
    assert found.rejected == 0
    assert found.used("output_tokens", after_windows=1) >= 0.8


# What a part that does less does, in the beginning of a run that is right above.


def test_no_margin_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubt, "margin", lambda self, spread: 0.0)
    assert run(traffic=LATENCIES["growing"], windows=1.5, seed=2).rejected > 0


def test_refunds_that_are_lost_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Window.settle

    def lost(self: Window, booking: Any, used: int) -> None:
        settle(self, booking, max(booking.amount, used))

    monkeypatch.setattr(Window, "settle", lost)
    assert run(traffic=LATENCIES["growing"], windows=2.2).used() < 0.8 * USED


def test_what_is_charged_in_advance_and_given_back_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refunded(EndpointLimits):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.charges_reserved = False

    monkeypatch.setattr(backend_module, "EndpointLimits", Refunded)
    assert run(traffic=RESERVED, charge="reserved", windows=1.5).rejected > 0


def many_in_flight() -> Found:
    rates = {"tokens": Rate(600_000, 6.0)}
    return run(traffic=LATENCIES["growing"], rates=rates, concurrency=600, windows=1.9)


def test_what_is_in_flight_is_no_short_output() -> None:
    assert many_in_flight().rejected == 0


class Alike(PendingOutputs):
    def end(self, number: int, tokens: int | None, took_s: float) -> None:
        super().end(number, tokens, 1.0)


class AsTheyCome(PendingOutputs):
    def begin(self) -> int:
        return 0

    def end(self, number: int, tokens: int | None, took_s: float) -> None:
        super().end(super().begin(), tokens, took_s)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Alike, AsTheyCome])
def test_short_outputs_mislead_if_all_count_alike_or_as_they_come(
    monkeypatch: pytest.MonkeyPatch, kind: type[PendingOutputs]
) -> None:
    monkeypatch.setattr(tokens_module, "PendingOutputs", kind)
    assert many_in_flight().rejected > 0
