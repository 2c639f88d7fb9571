"""All limits of an endpoint: together or not at all, and in force as soon as they are changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from redline.errors import OverLimit
from redline.limits import Cost, Limits, Rate
from redline.limits.rule import RecentSends, Rules
from redline.testing import ManualClock


def budget_of(**limits: Any) -> Rules:
    limits.setdefault("profile", "moving")
    limits.setdefault("guard_s", 0.0)
    return Rules(Limits(**limits))


def send(rules: Rules, cost: Cost, now_s: float) -> list[Any]:
    bookings = rules.book(cost, now_s)
    for booking in bookings:
        booking.window.sent(booking, now_s)
    return bookings


def fill(rules: Rules, now_s: float) -> tuple[int, float]:
    """How many calls go at once, a few milliseconds apart, and when the last of them went."""
    calls = 0
    while rules.wait_s(Cost(), now_s) < 0.1 and calls < 100:
        now_s += rules.wait_s(Cost(), now_s)
        send(rules, Cost(), now_s)
        calls += 1
    return calls, now_s


def used(rules: Rules, now_s: float) -> dict[str, int]:
    return {f"{line.kind} {line.window.rate}": line.window.used(now_s) for line in rules.lines}


def test_each_limit_counts_its_own_part_of_a_call() -> None:
    rules = budget_of(
        requests=("2/1s", "9/60s"), tokens="100/1s", input_tokens="80/1s", output_tokens="50/1s"
    )
    send(rules, Cost(30, 12), 0.0)
    assert used(rules, 0.0) == {
        "requests 2/1s": 1,
        "requests 9/60s": 1,
        "tokens 100/1s": 42,
        "input_tokens 80/1s": 30,
        "output_tokens 50/1s": 12,
    }
    assert rules.counts_tokens
    assert not budget_of(requests="2/1s").counts_tokens
    assert [rules.most(kind) for kind in ("requests", "tokens", "output_tokens")] == [2, 100, 50]
    assert budget_of().most("tokens") == math.inf


def test_the_longest_wait_of_all_limits_counts() -> None:
    rules = budget_of(requests="2/1s", tokens="100/60s")
    send(rules, Cost(70), 0.0)
    assert rules.wait_s(Cost(40), 0.5) == pytest.approx(59.5)
    assert rules.wait_s(Cost(30), 0.6) == 0


def test_the_limits_that_hold_a_call_are_those_with_nearly_the_longest_wait() -> None:
    rules = budget_of(requests=("2/10s", "2/8s", "2/1s"))
    send(rules, Cost(), 0.0)
    send(rules, Cost(), 0.1)
    assert [str(line.stated) for line in rules.holding(Cost(), 0.2)] == ["2/10s", "2/8s"]
    assert [str(line.stated) for line in rules.holding(Cost(), 8.5)] == ["2/10s"]
    assert [str(line.stated) for line in rules.holding(Cost(), 9.5)] == ["2/10s"]
    assert rules.holding(Cost(), 10.5) == []


def test_a_settlement_goes_to_the_token_limits_and_not_to_the_requests() -> None:
    rules = budget_of(requests="9/60s", tokens="100/60s", input_tokens="90/60s")
    bookings = send(rules, Cost(50, 20), 0.0)
    rules.settle(bookings, Cost(40, 5))
    assert list(used(rules, 1.0).values()) == [1, 45, 40]


def test_what_could_never_be_granted_is_refused_with_its_reason() -> None:
    rules = budget_of(tokens="100/1s", output_tokens="50/1s")
    rules.check(Cost(50, 50))
    for cost, words in [(Cost(60, 41), "101 tokens"), (Cost(0, 51), "51 output tokens")]:
        with pytest.raises(OverLimit, match=words):
            rules.check(cost)


def test_a_call_fits_up_to_the_whole_of_a_limit_as_the_headers_have_lowered_it() -> None:
    rules = budget_of(tokens="100/60s", headroom=0.5)
    assert rules.fits(Cost(50))
    assert not rules.fits(Cost(51))
    rules.restate(rules.lines[0], Rate(40, 60.0))
    assert rules.fits(Cost(20))
    assert not rules.fits(Cost(21))
    # It may be lowered for a while only.
    rules.check(Cost(50))
    assert budget_of().fits(Cost(10**9))


def test_the_strictest_limit_spaces_calls_in_the_long_run() -> None:
    rules = budget_of(requests="2/1s", tokens="100/1s", headroom=0.5)
    assert rules.spacing_s(Cost(10)) == 1.0
    assert rules.spacing_s(Cost(75)) == pytest.approx(1.5)
    assert budget_of().spacing_s(Cost(75)) == 0


def test_a_limit_that_keeps_its_window_keeps_what_was_sent_in_it() -> None:
    rules = budget_of(requests=("10/1s", "20/60s"))
    for _ in range(4):
        send(rules, Cost(), 0.0)
    rules.set_rates("requests", [Rate(5, 1.0), Rate(6, 60.0)], 0.5)
    assert used(rules, 0.5) == {"requests 5/1s": 4, "requests 6/60s": 4}


@pytest.mark.parametrize("profile", ["any", "fixed", "moving", "bucket"])
def test_other_windows_know_what_was_sent_and_what_is_booked(profile: str) -> None:
    rules = budget_of(requests="3/1s", profile=profile)
    _, now_s = fill(rules, 0.0)
    now_s += rules.wait_s(Cost(), now_s)
    rules.book(Cost(), now_s)
    rules.set_rates("requests", [Rate(3, 2.0)], now_s)
    # A bucket has refilled a little by then.
    assert fill(rules, now_s)[0] <= (profile == "bucket")
    # A booking that is never sent counts from the change on.
    assert rules.wait_s(Cost(), now_s + 2.1) == 0


def test_the_guard_follows_the_replies_unless_it_is_stated() -> None:
    measured, stated = budget_of(requests="20/1s", guard_s=None), budget_of(requests="20/1s")
    first_s = measured.guard_s
    for number in range(64):
        for rules in (measured, stated):
            now_s = number * 0.2
            bookings = send(rules, Cost(), now_s)
            rules.replied(bookings, 0.03, now_s)
    assert measured.guard_s < 0.2 * first_s
    assert measured.lines[0].window.guard_s == measured.guard_s
    assert stated.guard_s == 0


def test_replies_and_timers_are_measured_only_if_a_guard_is_needed() -> None:
    assert budget_of(requests="20/1s", guard_s=None).learner is not None
    assert budget_of(requests="20/1s").learner is None
    rules = budget_of(guard_s=None)
    assert rules.learner is None
    rules.set_rates("requests", [Rate(20, 1.0)], 0.0)
    assert rules.learner is not None
    rules.drop(rules.lines)
    assert rules.learner is None


@pytest.mark.parametrize("late_s", [0.02, 0.04])
def test_a_pace_catches_up_as_much_as_timers_are_usually_late(late_s: float) -> None:
    rules = budget_of(requests="10/1s", profile="any", guard_s=None)
    for _ in range(64):
        rules.jitter.rang(late_s)
    rules.book(Cost(), 0.0)
    each_s = rules.wait_s(Cost(), 0.0)
    rules.book(Cost(), each_s + late_s, late_s)
    # As if the second had been in time.
    assert rules.wait_s(Cost(), each_s + late_s) == pytest.approx(each_s - late_s)


def test_only_the_guard_of_a_searched_limit_has_no_margin() -> None:
    stated = budget_of(guard_s=None)
    searched = budget_of(guard_s=None, rate="auto", requests="9/1s", tokens="99/1s")
    assert (stated.is_searched, searched.is_searched) == (False, True)
    assert stated.guard_s == searched.guard_s == pytest.approx(0.055)
    searched.set_rates("requests", [Rate(9, 1.0), Rate(200, 10.0)], 0.0)
    guards_s = {line.stated: line.window.guard_s for line in searched.lines}
    assert guards_s == pytest.approx(
        {Rate(9, 1.0): 0.055, Rate(99, 1.0): 0.055, Rate(200, 10.0): 0.050}
    )
    own = budget_of(guard_s=0.2, rate="auto")
    own.set_rates("requests", [Rate(9, 1.0)], 0.0)
    assert [line.window.guard_s for line in own.lines] == [0.2]
    searched.end_search()
    assert not searched.is_searched
    assert all(line.window.guard_s == stated.guard_s for line in searched.lines)


def test_a_share_is_of_what_is_left_by_the_headroom() -> None:
    rules = budget_of(requests="100/1s", headroom=0.5)
    rules.set_share(0.5)
    assert str(rules.lines[0].window.rate) == "25/1s"
    rules.set_rates("requests", [Rate(200, 1.0)], 0.0)
    assert str(rules.lines[0].window.rate) == "50/1s"
    rules.set_share(1.0)
    assert str(rules.lines[0].window.rate) == "100/1s"


def test_a_share_refuses_nobody_whom_the_limit_allows() -> None:
    """It is lowered for a while only."""
    rules = budget_of(tokens="1000/60s")
    rules.set_share(0.5)
    rules.check(Cost(600))
    assert rules.wait_s(Cost(600), 0.0) == 0


def change(rules: Rules, profile: str) -> None:
    """As a bucket that has become too small for its guard changes to even pacing."""
    for line in rules.lines:
        line.window.reshape(line.window.rate, profile, 0.05)


def test_another_profile_keeps_what_was_sent() -> None:
    rules = budget_of(requests="4/1s")
    for _ in range(4):
        send(rules, Cost(), 0.0)
    change(rules, "any")
    assert rules.wait_s(Cost(), 0.5) >= 0.5
    assert list(used(rules, 0.5).values()) == [4]


@pytest.mark.parametrize("after", ["any", "moving", "bucket"])
@pytest.mark.parametrize("before", ["any", "moving", "bucket"])
def test_no_change_of_profile_lets_a_second_limit_go_at_once(before: str, after: str) -> None:
    rules = budget_of(requests="10/60s", profile=before)
    sent, now_s = fill(rules, 0.0)
    change(rules, after)
    assert sent + fill(rules, now_s)[0] <= 10


@pytest.mark.parametrize("guard_s", [None, 0.0])
def test_a_reply_that_states_its_usage_settles_the_call(guard_s: float | None) -> None:
    rules = budget_of(requests="9/60s", tokens="100/60s", input_tokens="90/60s", guard_s=guard_s)
    bookings = send(rules, Cost(50, 20), 0.0)
    rules.replied(bookings, 0.03, 0.0)
    assert list(used(rules, 1.0).values()) == [1, 70, 50]
    rules.replied(bookings, 0.03, 0.0, Cost(40, 5))
    assert list(used(rules, 1.0).values()) == [1, 45, 40]


def test_tokens_that_a_busy_queue_sends_late_are_caught_up() -> None:
    rules = budget_of(tokens="1000/1s", profile="any")
    send(rules, Cost(10), 0.0)
    rules.book(Cost(10), 0.05, busy_s=0.04)
    # The pace goes on from where it would have been.
    assert rules.wait_s(Cost(10), 0.05) == 0
    rules.book(Cost(10), 0.2)
    assert rules.wait_s(Cost(10), 0.2) == pytest.approx(0.01)


def test_room_for_calls_is_there_when_all_their_tokens_fit() -> None:
    rules = budget_of(requests="10/60s", tokens="1000/60s", input_tokens="500/60s")
    amounts: dict[Any, float] = {"tokens": 99.9, "input_tokens": 20.0}
    send(rules, Cost(10, 290), 0.0)
    send(rules, Cost(10, 90), 30.0)
    assert rules.room_for_s(6, amounts, 31.0) == 0
    # 700 tokens have to wait for the first call, 1000 for both.
    assert rules.room_for_s(7, amounts, 31.0) == pytest.approx(29.0)
    assert rules.room_for_s(99, amounts, 31.0) == pytest.approx(59.0)
    assert rules.room_for_s(9, {}, 31.0) == pytest.approx(29.0)
    assert rules.room_for_s(8, {}, 31.0) == 0
    # What is booked and not sent counts for a window from now on.
    rules.book(Cost(10, 590), 31.0)
    assert rules.room_for_s(1, amounts, 31.0) == pytest.approx(29.0)
    assert rules.room_for_s(5, amounts, 31.0) == 60.0
    assert budget_of().room_for_s(99, amounts, 0.0) == 0


@pytest.mark.parametrize("profile", ["any", "moving"])
def test_a_booking_notes_what_a_server_counts_of_this_process_alone(profile: str) -> None:
    rules = budget_of(requests="10/20s", tokens="1000/20s", profile=profile)
    send(rules, Cost(100), 0.0)
    rules.watch(0.0)
    calls, tokens = send(rules, Cost(300), 4.0)
    # What a bucket has refilled by then is not missing from it.
    assert calls.alone == (2, pytest.approx(1.0), 0)
    assert tokens.alone == (400, pytest.approx(300.0), 0)
    rules.lines[0].take(2, 4.0)
    rules.lines[0].take(1, 4.0)
    calls, tokens = send(rules, Cost(200), 5.0)
    assert calls.alone == (6, pytest.approx(4.5), 3)
    assert tokens.alone == (600, pytest.approx(450.0), 0)


def test_a_limit_that_is_dropped_leaves_no_file_and_the_others_hold(tmp_path: Path) -> None:
    rules = budget_of(requests=("5/1s", "8/60s"), tokens="100/60s")
    rules.keep_in(RecentSends(tmp_path, "gpu-1", ManualClock()))
    rules.drop([rules.lines[1]])
    send(rules, Cost(30), 0.0)
    assert used(rules, 0.0) == {"requests 5/1s": 1, "tokens 100/60s": 30}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"gpu-1-requests-1s.sends", "gpu-1-tokens-60s.sends"}
    rules.drop(rules.lines)
    assert rules.wait_s(Cost(1000), 0.0) == 0
    assert not list(tmp_path.iterdir())


# Bounds in place of estimates.

LARGE = {"requests": "1m/1s", "tokens": "100m/1s", "profile": "any"}


def test_a_bound_is_for_limits_whose_pace_it_does_not_show_in() -> None:
    assert budget_of(**LARGE).easy_tokens == pytest.approx(100_000, rel=0.01)
    small = budget_of(**LARGE, input_tokens="1m/1s")
    assert small.easy_tokens == pytest.approx(1000, rel=0.01)
    assert budget_of(requests="1m/1s", profile="any").easy_tokens == 0
    # Of a limit with a burst every amount is looked at.
    for profile in ("moving", "bucket"):
        assert budget_of(**{**LARGE, "profile": profile}).easy_tokens == 0
    # What is noted beside a server's own count is not settled later.
    rules = budget_of(**LARGE)
    rules.watch(0.0)
    assert rules.easy_tokens == 0


def test_a_bound_is_granted_only_while_the_limits_are_free() -> None:
    rules = budget_of(**LARGE)
    bound = Cost(60_000, is_bound=True)
    assert rules.take_now(bound, 0.0)
    # The pace has not paid for the first one.
    assert rules.take_now(bound, 0.0) is None
    assert rules.take_now(bound, 0.01)
    send(rules, Cost(25_000_000), 1.0)
    # A quarter is used: a bound might take what an estimate leaves to others.
    assert rules.wait_s(Cost(60_000), 1.5) == 0
    assert rules.take_now(bound, 1.5) is None
    assert rules.take_now(Cost(60_000), 1.5)


def test_a_bound_is_granted_again_once_a_crowded_limit_is_calm() -> None:
    rules = budget_of(**LARGE)
    bound = Cost(60_000, is_bound=True)
    send(rules, Cost(90_000_000), 0.0)
    assert rules.wait_s(Cost(60_000), 3.0) == 0
    assert rules.take_now(bound, 3.0) is None
    # No window in which much was used is near any more.
    assert rules.wait_s(Cost(60_000), 10.0) == 0
    assert rules.take_now(bound, 10.0)


def test_tokens_are_sent_at_once_when_a_longer_limit_is_added() -> None:
    minute, day = Rate(600_000, 60.0), Rate(10_000_000, 86_400.0)
    rules = budget_of(tokens=minute, profile="any")
    send(rules, Cost(10), 0.0)
    rules.set_rates("tokens", [minute, day], 1.0)
    assert rules.wait_s(Cost(10), 1.0) == 0


def test_a_bound_follows_a_limit_that_is_changed() -> None:
    rules = budget_of(**LARGE)
    rules.set_share(0.5)
    assert rules.easy_tokens == pytest.approx(50_000, rel=0.01)
    rules.set_rates("tokens", [Rate(1_000_000, 1.0)], 0.0)
    assert rules.easy_tokens == pytest.approx(500, rel=0.01)
