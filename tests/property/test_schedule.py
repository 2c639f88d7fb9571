"""Several processes under one limit, dying, late and cancelled: never over it, never starved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redline.limits import Limits, Rate
from redline.limits.shared import Lease, LeaseRequest, State, lease_s_of
from redline.limits.shared import redis_ledger as redis_module
from redline.limits.shared import schedule as schedule_module
from support.catching import assert_caught
from support.sharing import Ask, Process, Sent, least_left, most_amount, share

GUARD_S = 0.05
HARD = ("any", "counter", "fixed", "moving")
RATES = st.builds(Rate, st.integers(1, 12), st.sampled_from([0.5, 1.0, 2.0]))
MANY = settings(max_examples=30, deadline=None)


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False).map(lambda value: round(value, 4))


# Hypothesis draws from a strategy that it knows in a third of the time that a new one takes.
ARRIVALS_S = st.just(0.0) | seconds(4.0)
PRIORITIES = st.sampled_from([0, 0, 1])
GONE_S = st.just(math.inf) | seconds(2.0)
ANSWERS_S = seconds(2.0)
WAYS_S = st.sampled_from([0.0, 0.0, 0.002, 0.01])
AHEAD_S = st.sampled_from([0.0, -500.0, 1e5])
DIES_S = st.just(math.inf) | seconds(3.0)
LATES_S = st.lists(st.sampled_from([0.0, 0.002, 0.03, 0.3]), min_size=1, max_size=6)


@st.composite
def asks(draw: st.DrawFn, most_tokens: int) -> list[Ask]:
    """Up to 25 callers who come, wait, go, give back and settle as they like."""
    return [
        Ask(
            arrival_s=draw(ARRIVALS_S),
            tokens=(tokens := draw(st.integers(0, most_tokens)) if most_tokens else 0),
            priority=draw(PRIORITIES),
            gone_s=draw(GONE_S),
            is_released=draw(st.integers(0, 4)) == 0,
            used=draw(st.integers(0, tokens)) if tokens and draw(st.booleans()) else None,
            answer_s=draw(ANSWERS_S) if tokens else 0.5,
        )
        for _ in range(draw(st.integers(1, 25)))
    ]


@st.composite
def processes(draw: st.DrawFn, most_tokens: int = 0) -> list[Process]:
    """One to four, with clocks of their own; some die, and some have a loop that is often late."""
    return [
        Process(
            asks=draw(asks(most_tokens)),
            way_s=draw(WAYS_S),
            ahead_s=draw(AHEAD_S),
            dies_s=draw(DIES_S),
            lates_s=draw(LATES_S),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]


@MANY
@given(st.data())
def test_no_window_plus_guard_ever_holds_more_than_the_count(data: st.DataObject) -> None:
    rate, profile = data.draw(RATES), data.draw(st.sampled_from(HARD))
    limits = Limits(requests=rate, profile=profile, guard_s=GUARD_S)
    shared = share(limits, data.draw(processes()))
    assert most_amount(shared.sends, rate.window_s + GUARD_S) <= rate.count


@pytest.mark.slow
@MANY
@given(st.data())
def test_tokens_are_never_over_either_and_requests_not_with_them(data: st.DataObject) -> None:
    rate = Rate(data.draw(st.integers(5, 200)), data.draw(st.sampled_from([0.5, 1.0])))
    requests = data.draw(RATES)
    limits = Limits(requests=requests, tokens=rate, profile="moving", guard_s=GUARD_S)
    shared = share(limits, data.draw(processes(most_tokens=rate.count)))
    tokens = [Sent(send.at_s, send.process, send.ask, send.amount) for send in shared.sends]
    for send in tokens:
        # What a call used is known later; until then its estimate counts, which is not less.
        send.amount = send.amount if send.ask.tokens else 0
    assert most_amount(tokens, rate.window_s + GUARD_S) <= rate.count
    plain = [Sent(send.at_s, send.process, send.ask) for send in shared.sends]
    assert most_amount(plain, requests.window_s + GUARD_S) <= requests.count


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_bucket_at_the_server_is_never_exceeded(data: st.DataObject) -> None:
    """Whatever is settled later: a bucket that was full meanwhile has gained nothing by it."""
    rate = Rate(data.draw(st.integers(20, 200)), data.draw(st.sampled_from([0.5, 1.0, 2.0])))
    limits = Limits(tokens=rate, profile="bucket", guard_s=GUARD_S)
    lates_s = data.draw(st.lists(seconds(GUARD_S), min_size=1, max_size=6))
    shared = share(limits, data.draw(processes(most_tokens=rate.count)))
    for send in shared.sends:
        send.amount = send.amount if send.ask.tokens else 0
    assert least_left(shared.sends, rate, lates_s) >= -1e-6


@MANY
@given(st.data())
def test_every_caller_is_served_or_gone_and_in_its_order(data: st.DataObject) -> None:
    rate, profile = data.draw(RATES), data.draw(st.sampled_from((*HARD, "bucket")))
    limits = Limits(requests=rate, profile=profile, guard_s=GUARD_S)
    staying = [
        Process([Ask(ask.arrival_s, priority=ask.priority) for ask in process.asks], process.way_s)
        for process in data.draw(processes())
    ]
    shared = share(limits, staying)
    assert len(shared.sends) == sum(len(process.asks) for process in staying)
    for number in range(len(staying)):
        for priority in (0, 1):
            arrivals = [
                send.ask.arrival_s for send in shared.by(number) if send.ask.priority == priority
            ]
            assert arrivals == sorted(arrivals)


def busy(count: int, **changes: Any) -> Process:
    return Process([Ask()] * count, **changes)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(HARD), st.integers(2, 4), st.integers(10, 40))
def test_together_they_are_as_fast_as_one(profile: str, number: int, count: int) -> None:
    limits = Limits(requests=Rate(count, 1.0), profile=profile, guard_s=GUARD_S)
    calls = 4 * count * number
    shared = share(limits, [busy(4 * count)] * number)
    burst = profile in ("fixed", "moving")
    ideal_s = (calls - 1) // count * 1.05 if burst else (calls - 1) * 1.05 / count
    assert shared.sends[-1].at_s <= ideal_s * 1.005 + lease_s_of(limits)


def check_a_dead_share_is_used_again(schedule: Any) -> None:
    limits = Limits(requests="20/1s", guard_s=GUARD_S)
    shared = share(limits, [busy(100, dies_s=2.5), busy(100), busy(100)], schedule)
    living = sorted(send.at_s for send in shared.sends if send.process)
    # What was booked for the dead one is lost, and its last calls count as sent at the end of
    # their slots; nothing else.
    lost_s = lease_s_of(limits) + GUARD_S
    assert living[-1] <= (len(shared.sends) - 1) * 1.05 / 20 + lost_s + 0.01
    steps_s = [after_s - at_s for at_s, after_s in itertools.pairwise(living) if at_s > 2.5]
    assert max(steps_s) <= 1.05 / 20 + lost_s


def check_all_get_about_the_same(schedule: Any) -> None:
    limits = Limits(requests="100/1s", guard_s=GUARD_S)
    shared = share(limits, [busy(400)] * 4, schedule)
    early = [send.process for send in shared.sends if send.at_s < 4.0]
    assert min(early.count(number) for number in range(4)) >= len(early) / 4 * 0.5


def check_a_large_call_is_not_starved(schedule: Any) -> None:
    limits = Limits(tokens="1000/1s", guard_s=GUARD_S)
    small = Process([Ask(tokens=20) for _ in range(200)])
    large = Process([Ask(arrival_s=1.5, tokens=900)])
    shared = share(limits, [small, small, large], schedule)
    # The window must drain for it, and as much of the one before as a sliding counter still sees:
    # (1 - x / 2)^2 of the pace is a tenth of the limit at x = 1.37. Then it goes, long before the
    # small ones are through.
    assert shared.by(2)[0].at_s < 1.5 + 1.37 * 1.05 + 0.5
    assert shared.sends[-1].at_s > 8


def check_a_dead_one_in_line_holds_nobody_up(schedule: Any) -> None:
    limits = Limits(tokens="1000/10s", profile="moving", guard_s=GUARD_S)
    first = Process([Ask(tokens=500)])
    large = Process([Ask(arrival_s=0.2, tokens=900)], dies_s=0.5)
    small = Process([Ask(arrival_s=1.0, tokens=20) for _ in range(20)])
    shared = share(limits, [first, large, small], schedule)
    # The large one would have to wait for 10 s.
    assert shared.sends[-1].at_s < 1.0 + 2 * lease_s_of(limits)


def check_a_dying_process_does_not_break_the_limit(schedule: Any) -> None:
    """Its calls left late in their slots, and it could not say so."""
    limits = Limits(requests="10/1s", profile="moving", guard_s=GUARD_S)
    others = Process([Ask(arrival_s=0.9)] * 10)
    for step in range(60):
        late = busy(11, way_s=0.01, lates_s=(0.045,), dies_s=0.1 + step / 200)
        shared = share(limits, [late, others], schedule)
        assert most_amount(shared.sends, 1.0 + GUARD_S) <= 10


def check_a_burst_is_not_larger_than_the_count(schedule: Any) -> None:
    limits = Limits(requests="10/1s", profile="moving", guard_s=GUARD_S)
    shared = share(limits, [busy(30), busy(30)], schedule)
    assert most_amount(shared.sends, 1.0 + GUARD_S) == 10


CHECKS = {
    "dead share": check_a_dead_share_is_used_again,
    "fair": check_all_get_about_the_same,
    "large": check_a_large_call_is_not_starved,
    "dead in line": check_a_dead_one_in_line_holds_nobody_up,
    "dying": check_a_dying_process_does_not_break_the_limit,
    "burst": check_a_burst_is_not_larger_than_the_count,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_shares(name: str) -> None:
    CHECKS[name](schedule_module)


def ruled(
    asked: Callable[[LeaseRequest], LeaseRequest] = lambda request: request, **places: float
) -> Any:
    """The rule with other requests, or with other times of the places in line."""

    def transact(state: State | None, request: LeaseRequest, now_s: float) -> tuple[State, Lease]:
        state, lease = schedule_module.transact(state, asked(request), now_s)
        for place in state.line:
            for name, time_s in places.items():
                setattr(place, name, time_s)
        return state, lease

    return SimpleNamespace(transact=transact)


def one_more(request: LeaseRequest) -> LeaseRequest:
    rules = [replace(rule, count=rule.count + 1) for rule in request.rules]
    return replace(request, rules=rules)


WRONG = {
    "dead share": ruled(lambda request: replace(request, lease_s=1e9)),
    "large": ruled(kept_s=-math.inf),
    "dead in line": ruled(until_s=math.inf),
    "dying": ruled(lambda request: replace(request, slack_s=0.0, guard_s=0.0)),
    "burst": ruled(one_more),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_noticed(name: str) -> None:
    assert_caught(CHECKS[name], schedule_module, WRONG[name])


@settings(max_examples=100, deadline=None)
@given(
    st.floats(-1e6, 1e6),
    st.floats(-4e-4, 4e-4),
    st.lists(
        st.tuples(st.floats(0.001, 30.0), seconds(0.1), seconds(0.1)), min_size=1, max_size=20
    ),
)
def test_a_time_of_redis_lies_between_the_ends_of_its_local_time(
    ahead_s: float, drift: float, turns: list[tuple[float, float, float]]
) -> None:
    """Whatever the way takes, and with clocks that drift apart by up to 800 ppm."""
    offset = redis_module.Offset()
    now_s = 0.0

    def redis_s(local_s: float) -> float:
        return (local_s - ahead_s) * (1 + drift) + 1.79e9

    for pause_s, there_s, back_s in turns:
        now_s += pause_s
        offset.saw(redis_s(now_s + there_s), now_s, now_s + there_s + back_s)
        now_s += there_s + back_s
        for later_s in (0.0, 0.5, 20.0):
            low_s, high_s = offset.bounds_s(now_s + later_s)
            there = redis_s(now_s + later_s)
            assert there + low_s - 1e-5 <= now_s + later_s <= there + high_s + 1e-5
