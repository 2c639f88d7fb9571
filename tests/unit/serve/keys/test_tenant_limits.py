"""What a tenant may start, and what is said to one who may not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from redline.limits import Rate, parse_rate
from redline.process import SharedTable
from redline.serve.keys import (
    DAY_S,
    OWN,
    LimitStore,
    Refused,
    SharedStore,
    Started,
    TenantLimits,
    Tenants,
    TenantSettings,
)
from redline.testing import ManualClock

DOLLAR = 10**12


def limits_of(clock: ManualClock | None = None, **facts: Any) -> TenantLimits:
    for name in ("requests", "tokens"):
        facts[name] = tuple(parse_rate(text) for text in facts.get(name, ()))
    return TenantLimits("acme", TenantSettings(**facts), clock or ManualClock())


def started(limits: TenantLimits, now_s: float, *asked: Any) -> Started:
    found = limits.try_start(now_s, *asked)
    assert isinstance(found, Started), found
    return found


def refused(limits: TenantLimits, now_s: float, *asked: Any) -> Refused:
    found = limits.try_start(now_s, *asked)
    assert isinstance(found, Refused)
    return found


def test_without_limits_everything_starts() -> None:
    limits = limits_of()
    calls = [started(limits, 0.0, 10**9, None) for _ in range(1000)]
    assert limits.in_flight == 1000
    for call in calls:
        call.settle(1.0, 5, 7)
    assert limits.in_flight == 0


def test_requests_in_any_window() -> None:
    limits = limits_of(requests=["2/10s"])
    started(limits, 0.0).settle(0.5)
    started(limits, 4.0).settle(4.5)
    told = refused(limits, 5.0)
    assert told.what == "Tenant acme: it has reached its limit of 2 requests/10 s."
    assert told.retry_after_s == pytest.approx(5.0)
    assert isinstance(limits.try_start(9.999), Refused)
    started(limits, 10.0)
    assert refused(limits, 10.0).retry_after_s == pytest.approx(4.0)


def test_the_limit_that_holds_longest_is_told() -> None:
    limits = limits_of(requests=["1/1s", "2/60s"], tokens=["100/30s"])
    started(limits, 0.0, 60)
    assert "100 tokens/30 s" in refused(limits, 0.5, 60).what
    started(limits, 1.0, 40)
    told = refused(limits, 1.5, 40)
    assert "2 requests/min" in told.what
    assert told.retry_after_s == pytest.approx(58.5)


@pytest.mark.parametrize("store", [OWN, SharedStore(SharedTable.make(1), 0)], ids=["own", "shared"])
def test_of_two_rates_of_one_length_the_lower_one_holds(store: LimitStore) -> None:
    rates = tuple(map(parse_rate, ["4/60s", "6/60s"]))
    limits = TenantLimits("acme", TenantSettings(requests=rates), ManualClock(), store)
    for _ in range(4):
        started(limits, 1.0)
    assert "4 requests/min" in refused(limits, 1.0).what


def test_a_refused_call_counts_nowhere() -> None:
    limits = limits_of(requests=["5/1s"], tokens=["100/1s"], picodollars_per_day=DOLLAR)
    started(limits, 0.0, 100, DOLLAR // 2)
    for _ in range(50):
        refused(limits, 0.5, 1, 1)
    assert (limits.in_flight, limits.money.committed) == (1, DOLLAR // 2)
    for _ in range(4):
        started(limits, 1.0 - 1e-6, 0, 0)


def test_what_a_call_did_not_use_comes_free() -> None:
    limits = limits_of(tokens=["1000/60s"])
    call = started(limits, 0.0, 900)
    refused(limits, 1.0, 200)
    call.settle(1.0, 100)
    started(limits, 1.0, 900)
    refused(limits, 1.0, 1)


def test_what_a_call_used_beyond_its_estimate_counts_from_when_it_is_known() -> None:
    limits = limits_of(tokens=["1000/60s"])
    started(limits, 0.0, 100).settle(50.0, 1000)
    assert refused(limits, 59.0, 1).retry_after_s == pytest.approx(1.0)
    started(limits, 60.0, 100)
    told = refused(limits, 60.0, 1)
    assert told.retry_after_s == pytest.approx(50.0)


def test_a_late_settlement_gives_back_nothing_twice() -> None:
    limits = limits_of(tokens=["1000/60s"])
    call = started(limits, 0.0, 900)
    other = started(limits, 70.0, 1000)
    call.settle(71.0, 0)
    refused(limits, 71.0, 1)
    other.cancel()
    started(limits, 71.0, 1000)


@pytest.mark.parametrize("end", ["settle", "cancel"])
def test_a_call_ends_once(end: str) -> None:
    limits = limits_of(concurrency=2, tokens=["100/60s"], picodollars_per_day=DOLLAR)
    call = started(limits, 0.0, 50, 10)
    started(limits, 0.0, 50, 10)
    if end == "settle":
        call.settle(1.0, 50, 10)
    else:
        call.cancel()
    before = (limits.in_flight, limits.money.committed)
    call.settle(1.0, 0, 0)
    call.cancel()
    assert (limits.in_flight, limits.money.committed) == before


def test_a_call_that_was_not_sent_counts_nowhere() -> None:
    limits = limits_of(requests=["1/60s"], tokens=["10/60s"], concurrency=1)
    for now_s in range(100):
        started(limits, float(now_s), 10, 5).cancel()
    assert (limits.in_flight, limits.money.committed) == (0, 0)


def test_a_block_that_fails_ends_its_call_at_the_estimate() -> None:
    limits = limits_of(concurrency=1, tokens=["100/60s"], picodollars_per_day=DOLLAR)
    with pytest.raises(ValueError, match="boom"), started(limits, 0.0, 60, 7):
        raise ValueError("boom")
    assert (limits.in_flight, limits.money.spent) == (0, 7)
    refused(limits, 0.0, 60)
    with started(limits, 0.0, 40, 7) as call:
        call.settle(1.0, 1, 1)
    assert (limits.in_flight, limits.money.spent) == (0, 8)


def test_concurrency_and_how_long_calls_take() -> None:
    limits = limits_of(concurrency=2)
    for number in range(100):
        started(limits, 8.0 * number).settle(8.0 * number + 8.0)
    calls = [started(limits, 1000.0) for _ in range(2)]
    told = refused(limits, 1000.0)
    assert told.what == "Tenant acme: it has 2 calls in flight, the most allowed."
    assert told.retry_after_s == pytest.approx(4.0, rel=0.01), "2 calls of 8 s each"
    calls[0].settle(1001.0)
    started(limits, 1001.0)


def test_calls_that_yield_leave_a_part_of_each_limit_to_others() -> None:
    for facts, lines, left in (
        ({"concurrency": 4}, 3, 1),
        ({"concurrency": 40}, 36, 4),
        ({"requests": ["20/1s"]}, 18, 2),
        ({"tokens": ["200/1s"]}, 18, 2),
        ({"concurrency": 1}, 1, 0),
    ):
        limits = limits_of(**facts)
        for _ in range(lines):
            assert isinstance(limits.try_start(0.0, 10, yields=True), Started)
        told = limits.try_start(0.0, 10, yields=True)
        assert isinstance(told, Refused)
        assert 0 < told.retry_after_s <= 1
        for _ in range(left):
            started(limits, 0.0, 10)
        refused(limits, 0.0, 10)


def test_a_large_call_that_yields_starts_once_nothing_else_counts() -> None:
    limits = limits_of(tokens=["100/1s"])
    started(limits, 0.0, 1)
    told = limits.try_start(0.5, 95, yields=True)
    assert isinstance(told, Refused)
    assert told.retry_after_s == pytest.approx(0.5)
    assert isinstance(limits.try_start(1.0, 95, yields=True), Started)


def test_a_call_larger_than_a_limit_is_never_granted() -> None:
    limits = limits_of(tokens=["1000/60s"], picodollars_per_day=DOLLAR)
    told = refused(limits, 0.0, 1001, 5)
    assert told.what == (
        "Tenant acme: the call may use 1,001 tokens, "
        "more than the limit of 1,000 tokens/min allows."
    )
    assert told.retry_after_s == math.inf
    refusal = told.refusal()
    assert (refusal.status, refusal.body["error"]["code"]) == (400, "over_limit")
    told = refused(limits, 0.0, 5, DOLLAR + 1)
    assert "may cost $1.00, more than the limit of $1.00 a day" in told.what
    assert told.refusal().status == 400


def test_a_refusal_as_a_client_sees_it() -> None:
    limits = limits_of(requests=["1/10s"])
    started(limits, 0.0)
    refusal = refused(limits, 2.5).refusal()
    assert refusal.status == 429
    assert refusal.headers == {"retry-after": "8"}
    assert refusal.body["error"]["type"] == "rate_limit_error"
    assert refusal.body["error"]["code"] == "rate_limit_exceeded"


def test_money_of_a_day() -> None:
    clock = ManualClock()
    clock.advance(DAY_S - 600.0)
    limits = limits_of(clock, picodollars_per_day=2 * DOLLAR)
    started(limits, 0.0, 0, DOLLAR).settle(1.0, 0, DOLLAR // 2)
    call = started(limits, 1.0, 0, 3 * DOLLAR // 2)
    told = refused(limits, 1.0, 0, 1)
    assert "calls in flight may use up the rest of its limit of $2.00 a day" in told.what
    assert told.refusal().headers == {"retry-after": "1"}
    call.settle(2.0, 0, 3 * DOLLAR // 2)
    told = refused(limits, 2.0, 0, 1)
    what = "the rest of its limit of $2.00 a day (UTC) does not cover the call"
    assert told.what == f"Tenant acme: {what}."
    assert told.retry_after_s == pytest.approx(600.0)
    refusal = told.refusal()
    assert refusal.headers == {"retry-after": "600", "x-should-retry": "false"}
    assert refusal.body["error"]["code"] == "insufficient_quota"
    started(limits, 2.0, 0, 0)
    clock.advance(600.0)
    started(limits, 602.0, 0, 2 * DOLLAR)


def test_a_call_over_midnight_counts_on_the_day_it_began() -> None:
    clock = ManualClock()
    limits = limits_of(clock, picodollars_per_day=DOLLAR)
    call = started(limits, 0.0, 0, DOLLAR)
    clock.advance(DAY_S)
    other = started(limits, DAY_S, 0, DOLLAR)
    call.settle(DAY_S, 0, DOLLAR)
    assert limits.money.committed == DOLLAR
    other.cancel()
    assert limits.money.committed == 0


def test_a_model_without_a_price_cannot_be_paid_for() -> None:
    limits = limits_of(picodollars_per_day=DOLLAR)
    told = refused(limits, 0.0, 5, None)
    assert "the price of the model is not known" in told.what
    assert told.refusal().body["error"]["code"] == "unpriced"
    assert told.refusal().status == 400


def test_other_limits_keep_what_counts() -> None:
    limits = limits_of(requests=["5/60s"], concurrency=9)
    calls = [started(limits, 0.0) for _ in range(5)]
    limits.reshape(TenantSettings(requests=(Rate(7, 60.0), Rate(5, 10.0)), concurrency=6))
    assert limits.in_flight == 5
    assert "5 requests/10 s" in refused(limits, 1.0).what
    calls[0].cancel()
    assert "5 requests/10 s" in refused(limits, 1.0).what, "it keeps to what it has copied"
    started(limits, 10.0)
    started(limits, 10.0)
    assert "6 calls in flight" in refused(limits, 11.0).what
    for call in calls[1:]:
        call.settle(12.0)
    started(limits, 12.0)
    assert "7 requests/min" in refused(limits, 12.0).what
    limits.reshape(TenantSettings())
    for _ in range(50):
        started(limits, 12.0)


def test_tenants_are_reshaped_by_name() -> None:
    tenants = Tenants({"a": TenantSettings(concurrency=1)}, ManualClock())
    a, b = tenants.of("a"), tenants.of("b")
    call = started(a.limits, 0.0)
    tenants.replace({"a": TenantSettings(concurrency=2), "b": TenantSettings(concurrency=1)})
    assert tenants.of("a") is a
    started(a.limits, 0.0)
    refused(a.limits, 0.0)
    started(b.limits, 0.0)
    refused(b.limits, 0.0)
    call.settle(1.0)
    assert a.limits.in_flight == 1
    assert not Tenants({"a": TenantSettings(models=frozenset({"m"}))}).of("a").may_use("n")
    assert a.may_use("n")
