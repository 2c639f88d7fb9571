"""The rule by which several processes share a limit: one request after another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redline.limits import Limits
from redline.limits.shared import (
    STALE_S,
    Book,
    Change,
    Lease,
    LeaseRequest,
    State,
    described,
    lease_s_of,
    rules_of,
    transact,
)
from support.catching import assert_caught

GUARD_S, SLACK_S, NOW_S = 0.05, 0.02, 1000.0
ONE = (1,)


class Desk:
    """A ledger in memory, and what a process asks of it."""

    def __init__(self, rule: Any = transact, **limits: Any) -> None:
        self._rule = rule
        self.limits = Limits(**limits)
        self.state: State | None = None

    def ask(self, count: int = 0, at_s: float = NOW_S, **changes: Any) -> Lease:
        """A turn of a process that wants `count` single calls."""
        changes.setdefault("owner", "a")
        changes.setdefault("wants", [ONE] * count)
        request = LeaseRequest(
            limits=changes.pop("limits", described(self.limits)),
            rules=rules_of(self.limits, GUARD_S),
            guard_s=GUARD_S,
            slack_s=SLACK_S,
            lease_s=lease_s_of(self.limits),
            **changes,
        )
        self.state, lease = self._rule(self.state, request, at_s)
        return lease

    @property
    def total(self) -> int:
        """What the first window counts."""
        assert self.state is not None
        return next(iter(self.state.books.values())).total


def steps(times: list[float]) -> list[float]:
    return [pytest.approx(time_s - NOW_S, abs=1e-3) for time_s in times]


def test_a_call_above_a_buckets_burst_waits_for_the_guard_it_leaves_no_room_for() -> None:
    (rule,) = rules_of(Limits(tokens="400/1s", profile="bucket"), GUARD_S)
    book = Book(rule.grain_s, NOW_S, 0, [], [], [], [])
    assert [book.earliest_s(rule, amount) - NOW_S for amount in (380, 400)] == [
        pytest.approx(0.0),
        pytest.approx(0.05),
    ]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [("any", [0, 0.0105, 0.021, 0.0315]), ("moving", [0, 0, 0, 0]), ("bucket", [0, 0, 0, 0])],
)
def test_slots_are_paced_by_the_profile(profile: str, expected: list[float]) -> None:
    assert steps(Desk(requests="100/1s", profile=profile).ask(4).times) == expected


def test_a_second_process_is_planned_behind_the_first() -> None:
    desk = Desk(requests="100/1s")
    desk.ask(3)
    assert steps(desk.ask(2, owner="b").times) == [0.0315, 0.042]


def test_a_lease_reaches_no_further_than_its_time() -> None:
    desk = Desk(requests="100/1s")
    lease = desk.ask(50)
    assert len(lease.times) == 10
    assert lease.times[-1] <= NOW_S + 0.1
    # The next one fits as soon as it lies within a lease.
    assert lease.free_s == pytest.approx(NOW_S + 0.105 - 0.1, abs=1e-3)


@pytest.mark.parametrize(("window", "lease_s"), [("10ms", 0.005), ("1s", 0.1), ("60s", 1.0)])
def test_a_lease_is_a_tenth_of_the_shortest_window_within_bounds(
    window: str, lease_s: float
) -> None:
    limits = Limits(requests=(f"5/{window}", "1000/1d"))
    assert lease_s_of(limits) == pytest.approx(lease_s)


def test_a_full_window_frees_a_slot_when_the_oldest_stamp_has_left_it() -> None:
    desk = Desk(requests="5/1s", profile="moving")
    assert len(desk.ask(9).times) == 5
    # Unsent as far as the ledger knows: it may leave until planned + slack, and be late by guard.
    late = desk.ask(1, NOW_S + 1.0)
    assert steps(late.times) == [1 + SLACK_S + GUARD_S]


def check_a_sent_slot_counts_from_its_stamp(rule: Any) -> None:
    desk = Desk(rule, requests="5/1s", profile="moving")
    desk.ask(5)
    booked_s = NOW_S + SLACK_S + GUARD_S
    sent_s = NOW_S + 0.003 + GUARD_S
    lease = desk.ask(1, NOW_S + 1.0, changes=[Change(booked_s, sent_s, ONE, ONE, NOW_S)] * 5)
    assert steps(lease.times) == [1.053]
    assert desk.total == 1


def check_a_slot_given_back_is_free(rule: Any) -> None:
    desk = Desk(rule, requests="5/1s", profile="moving")
    desk.ask(5)
    booked_s = NOW_S + SLACK_S + GUARD_S
    lease = desk.ask(2, changes=[Change(booked_s, booked_s, ONE, (0,), NOW_S, was_sent=False)])
    assert steps(lease.times) == [0]
    assert desk.total == 5


def check_only_the_last_slot_of_a_pace_is_planned_again(rule: Any) -> None:
    for given_back, expected in [(1, 0.0105), (0, 0.021)]:
        desk = Desk(rule, requests="100/1s")
        planned_s = desk.ask(2).times[given_back]
        booked_s = planned_s + SLACK_S + GUARD_S
        unsent = Change(booked_s, booked_s, ONE, (0,), planned_s, was_sent=False)
        lease = desk.ask(1, changes=[unsent])
        assert steps(lease.times) == [expected]


def check_settled_tokens_are_free_again(rule: Any) -> None:
    desk = Desk(rule, tokens="1000/1s", profile="moving")
    desk.ask(wants=[(800,)])
    booked_s, sent_s = NOW_S + SLACK_S + GUARD_S, NOW_S + GUARD_S
    change = Change(booked_s, sent_s, (800,), (300,), NOW_S)
    assert steps(desk.ask(wants=[(700,)], at_s=NOW_S + 0.01, changes=[change]).times) == [0.01]


def check_a_bucket_gets_back_only_what_it_had_room_for(rule: Any) -> None:
    """Of 600, refilled at 10 a second, 500 are booked twice; later the first call has used 10."""
    for second_s in (55.0, 45.0, 39.5):
        desk = Desk(rule, tokens="600/60s", profile="bucket")
        (first_s,) = desk.ask(wants=[(500,)]).times
        (planned_s,) = desk.ask(wants=[(500,)], at_s=NOW_S + second_s).times
        desk.ask(at_s=NOW_S + 60, changes=[Change(first_s, first_s, (500,), (10,), first_s)])
        # With the right amount from the start, the bucket was full at the second call: 100 are left
        # after it. The guard keeps 1 free, so that another 500 can go once 401 have come back.
        due_s = planned_s + 40.1
        assert desk.ask(wants=[(500,)], at_s=due_s - 1.1).times == []
        assert desk.ask(wants=[(500,)], at_s=due_s - 0.5).times == [pytest.approx(due_s)]


def check_nothing_is_given_back_that_a_ledger_may_not_have_counted(rule: Any) -> None:
    """It was set back, or was lost, after the slot."""
    for set_back_s, loses in ((0.0, False), (0.3, False), (0.0, True)):
        desk = Desk(rule, tokens="600/60s", profile="bucket")
        (first_s,) = desk.ask(wants=[(500,)]).times
        if loses:
            desk.state = None
        desk.ask(at_s=NOW_S - set_back_s, seen_s=first_s)
        (later_s,) = desk.ask(wants=[(1,)], at_s=NOW_S + 10, seen_s=first_s).times
        assert desk.state is not None
        (book,) = desk.state.books.values()
        before_s = book.full_at_s
        change = Change(first_s, first_s, (500,), (10,), first_s)
        desk.ask(at_s=later_s + 1, seen_s=first_s, changes=[change])
        (book,) = desk.state.books.values()
        given_s = before_s - book.full_at_s
        assert given_s == pytest.approx(0.0 if set_back_s or loses else 40.0, abs=0.1)


def check_a_lost_state_counts_as_full(rule: Any) -> None:
    """Redis came back empty, or a file was deleted: what was sent is unknown."""
    desk = Desk(rule, requests="10/1s", profile="moving")
    seen_s = desk.ask(10).times[-1]
    desk.state = None
    assert desk.ask(1, NOW_S + 0.5, seen_s=seen_s).times == []
    (at_s,) = desk.ask(1, NOW_S + 1.5, seen_s=seen_s).times
    assert at_s >= NOW_S + 1.5 + GUARD_S


def check_a_clock_set_back_frees_nothing(rule: Any) -> None:
    desk = Desk(rule, requests="10/1s", profile="moving")
    desk.ask(10)
    assert desk.ask(1, NOW_S - 500).times == []
    later = desk.ask(1, NOW_S - 498.95).times
    assert len(later) == 1
    assert later[0] >= NOW_S - 499 + GUARD_S


def check_other_limits_are_refused_while_in_use(rule: Any) -> None:
    desk = Desk(rule, requests="10/1s")
    desk.ask(1)
    before = msgspec.json.encode(desk.state)
    # One of them with a clock that was set back.
    for at_s in (NOW_S + STALE_S / 2, NOW_S - 1):
        refused = desk.ask(1, at_s, limits="20/1s requests")
        assert refused.others == described(desk.limits)
        assert refused.times == []
        assert msgspec.json.encode(desk.state) == before
    assert desk.ask(1, NOW_S + 2 * STALE_S, limits="20/1s requests").others == ""


def check_what_was_sent_counts_under_other_limits(rule: Any) -> None:
    """Half of a window is left of the first run's; the second finds another count or window."""
    for before, after, profiles in [
        ("1000/60s", "1200/60s", ("fixed", "fixed")),
        ("1200/60s", "1000/60s", ("moving", "moving")),
        ("600/60s", "1200/120s", ("fixed", "fixed")),
        ("1000/60s", "500/30s", ("fixed", "any")),
        ("1000/60s", "1000/60s", ("bucket", "moving")),
    ]:
        desk = Desk(rule, requests=before, profile=profiles[0])
        sent = desk.ask(500).times
        desk.limits = Limits(requests=after, profile=profiles[1])
        (rate,) = desk.limits.request_rates()
        for second in range(6, 60):
            sent += desk.ask(2000, NOW_S + second).times
            since = [time_s for time_s in sent if time_s > NOW_S + second - rate.window_s]
            assert len(since) <= rate.count, (before, after)


def check_a_want_that_is_not_met_has_its_time(rule: Any) -> None:
    desk = Desk(rule, requests="10/3600s", profile="moving")
    assert desk.ask(10).at_s <= NOW_S + 1
    late = desk.ask(1)
    assert late.times == []
    assert late.free_s < NOW_S + 1
    assert late.at_s == pytest.approx(NOW_S + 3600, abs=1)


def check_nobody_is_planned_before_the_end_of_a_pause(rule: Any) -> None:
    desk = Desk(rule, requests="10/1s")
    desk.ask(park_s=NOW_S + 30)
    assert desk.ask(1, owner="b").parked_s == NOW_S + 30
    assert desk.ask(1, NOW_S + 29, owner="b").times == []
    assert desk.ask(1, NOW_S + 29.95, owner="b").times == [NOW_S + 30]


def check_limits_hold_together(rule: Any) -> None:
    desk = Desk(rule, requests="10/1s", tokens="100/1s", profile="moving")
    assert len(desk.ask(wants=[(1, 60), (1, 60), (1, 10)]).times) == 1
    assert desk.state is not None
    assert [book.total for book in desk.state.books.values()] == [1, 60]


CHECKS = {
    "sent": check_a_sent_slot_counts_from_its_stamp,
    "back": check_a_slot_given_back_is_free,
    "last": check_only_the_last_slot_of_a_pace_is_planned_again,
    "settled": check_settled_tokens_are_free_again,
    "room": check_a_bucket_gets_back_only_what_it_had_room_for,
    "uncounted": check_nothing_is_given_back_that_a_ledger_may_not_have_counted,
    "lost": check_a_lost_state_counts_as_full,
    "clock": check_a_clock_set_back_frees_nothing,
    "others": check_other_limits_are_refused_while_in_use,
    "other": check_what_was_sent_counts_under_other_limits,
    "not met": check_a_want_that_is_not_met_has_its_time,
    "pause": check_nobody_is_planned_before_the_end_of_a_pause,
    "together": check_limits_hold_together,
}


def test_of_rates_of_one_length_the_lowest_is_kept() -> None:
    limits = Limits(requests=("20/1s", "30/1s", "500/60s"), tokens=("9/1s", "8/1s"))
    assert described(limits) == "20/1s requests, 500/60s requests, 8/1s tokens (profile any)"
    desk = Desk(requests=("20/1s", "30/1s"))
    assert len(desk.ask(1).times) == 1
    assert desk.total == 1


@pytest.mark.parametrize("name", CHECKS)
def test_the_rule(name: str) -> None:
    CHECKS[name](transact)


@pytest.mark.parametrize(
    ("name", "unheard"),
    [
        ("sent", {"changes": []}),
        ("back", {"changes": []}),
        ("settled", {"changes": []}),
        ("room", {"changes": []}),
        ("lost", {"seen_s": 0.0}),
        ("pause", {"park_s": 0.0}),
    ],
)
def test_a_rule_that_does_not_hear_is_noticed(name: str, unheard: dict[str, Any]) -> None:
    def deaf(state: State | None, request: LeaseRequest, now_s: float) -> tuple[State, Lease]:
        return transact(state, msgspec.structs.replace(request, **unheard), now_s)

    assert_caught(CHECKS[name], transact, deaf)


@pytest.mark.parametrize("rate", ["1000000/1s", "1000000/60s", "2000000/1d", "1024/1s"])
def test_a_state_stays_small_for_a_limit_of_millions(rate: str) -> None:
    desk = Desk(tokens=rate, profile="moving")
    window_s = rules_of(desk.limits, GUARD_S)[0].window_s
    for number in range(3000):
        desk.ask(wants=[(1 + number % 300,)], at_s=NOW_S + number * window_s / 2000)
    assert len(msgspec.msgpack.encode(desk.state)) < 25_000


@pytest.mark.parametrize("count", [10, 1024, 1025, 100_000])
def test_rounding_costs_a_thousandth_at_most_and_never_frees_early(count: int) -> None:
    limits = Limits(requests=f"{count}/1s", profile="moving")
    (rule,) = rules_of(limits, GUARD_S)
    assert rule.grain_s <= 0.0011
    book = Book(rule.grain_s, NOW_S, 0, [], [])
    book.fill(rule, NOW_S + 0.12345)
    assert 0 <= book.earliest_s(rule, 1) - (NOW_S + 1.12345) <= rule.grain_s + 1e-6
