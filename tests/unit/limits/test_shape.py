"""A limit in numbers: windows, shared send times and forecasts go by the same ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits import PROFILES, Limits, Rate
from redline.limits.rule import Window, last_send_s, shape_of
from redline.limits.shared import rules_of

RATES = st.builds(Rate, st.integers(1, 30), st.sampled_from([0.01, 0.5, 1.0, 60.0]))
GUARDS_S = st.sampled_from([0.0, 0.005, 0.055, 0.4, 2.0])


def last_sent_s(rate: Rate, profile: str, guard_s: float, calls: int) -> float:
    """When the last of so many calls is sent that all ask at once."""
    window, now_s = Window(rate, profile=profile, guard_s=guard_s), 0.0
    for _ in range(calls):
        while (wait_s := window.wait_s(1, now_s)) > 0:
            now_s += wait_s
        window.sent(window.book(1, now_s), now_s)
    return now_s


@settings(deadline=None)
@given(RATES, st.sampled_from(PROFILES), GUARDS_S, st.integers(1, 80))
def test_a_forecast_is_what_a_window_does(
    rate: Rate, profile: str, guard_s: float, calls: int
) -> None:
    # A longer one is possible, and the calls of a burst then share a record.
    guard_s = min(guard_s, rate.window_s)
    limits = Limits(requests=rate, profile=profile, guard_s=guard_s)
    expected_s = last_send_s(calls - 1, rate, limits)
    # The calls of a burst are up to a twentieth of a window apart.
    assert expected_s - 1e-6 <= last_sent_s(rate, profile, guard_s, calls)
    assert last_sent_s(rate, profile, guard_s, calls) <= expected_s + rate.window_s / 20 + 1e-6


@pytest.mark.parametrize(("profile", "expected_s"), [("any", 10.55), ("fixed", 10.55)])
def test_a_forecast_assumes_the_first_guard_where_none_is_stated(
    profile: str, expected_s: float
) -> None:
    rate = Rate(10, 1.0)
    assert last_send_s(100, rate, Limits(requests=rate, profile=profile)) == pytest.approx(
        expected_s
    )


@given(RATES, st.sampled_from(PROFILES), GUARDS_S, st.sampled_from(["requests", "tokens"]))
def test_shared_rules_have_the_shape_of_the_limit(
    rate: Rate, profile: str, guard_s: float, kind: str
) -> None:
    (rule,) = rules_of(Limits(**{kind: rate}, profile=profile, guard_s=guard_s), guard_s)
    shape = shape_of(rate, kind, profile, guard_s)
    assert (rule.burst, rule.unit_s, rule.is_hard, rule.catch_up_s) == shape


@pytest.mark.parametrize("guard_s", [0.055, 1.0, 5.0])
def test_a_bucket_too_small_for_its_guard_is_paced_instead(guard_s: float) -> None:
    assert shape_of(Rate(1, 1.0), "requests", "bucket", guard_s) == shape_of(
        Rate(1, 1.0), "requests", "any", guard_s
    )
