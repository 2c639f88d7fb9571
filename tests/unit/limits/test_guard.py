"""The guard: what it converges to, and what each reply proves."""

from __future__ import annotations

import random

import pytest

from redline.limits.rule import FIRST_GUARD_S, MARGIN_S, PRIOR_S, Jitter


def replied(jitter: Jitter, took_s: list[float], every_s: float = 0.05) -> list[float]:
    """Replies to calls that were written `every_s` apart; how late each was at most."""
    lates_s = []
    for number, took in enumerate(took_s):
        jitter.replied(took, number * every_s)
        lates_s.append(jitter.proved_s(took))
    return lates_s


def drawn(seed: int, count: int, least_s: float, most_s: float) -> list[float]:
    chance = random.Random(seed)
    return [chance.uniform(least_s, most_s) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("base_s", [0.001, 0.05, 3.0])
def test_without_jitter_the_guard_falls_to_the_noise(seed: int, base_s: float) -> None:
    jitter = Jitter()
    replied(jitter, drawn(seed, 100, base_s + 0.001, base_s + 0.003))
    assert 0.002 <= jitter.guard_s <= 0.010


@pytest.mark.parametrize("seed", range(20))
def test_the_guard_follows_the_jitter_within_five_milliseconds_and_some_noise(seed: int) -> None:
    jitter = Jitter()
    replied(jitter, drawn(seed, 400, 0.02, 0.02 + PRIOR_S))
    assert 0.05 <= jitter.guard_s <= 0.06
    smaller = Jitter()
    replied(smaller, drawn(seed, 400, 0.02, 0.04))
    assert 0.02 <= smaller.guard_s <= 0.03


@pytest.mark.parametrize(("least_s", "most_s"), [(0.3, 4.0), (0.02, 0.2), (1.0, 1.09)])
def test_times_of_generation_say_nothing_of_the_way(least_s: float, most_s: float) -> None:
    jitter = Jitter()
    lates_s = replied(jitter, drawn(1, 300, least_s, most_s))
    assert jitter.guard_s == jitter.unproven_s == FIRST_GUARD_S
    assert set(lates_s) == {FIRST_GUARD_S}


def test_it_begins_above_zero_and_a_few_replies_do_not_change_it() -> None:
    jitter = Jitter()
    assert jitter.guard_s == FIRST_GUARD_S
    assert set(replied(jitter, [0.02] * 7)) == {FIRST_GUARD_S}
    assert jitter.guard_s == FIRST_GUARD_S


def test_one_burst_is_one_moment_however_many_replies_it_has() -> None:
    """All of a burst may be equally late, so that its replies look alike."""
    jitter = Jitter()
    replied(jitter, [0.07] * 200, every_s=0.0001)
    assert jitter.guard_s == FIRST_GUARD_S
    jitter.replied(0.02, 1.0)
    replied(jitter, [0.07] * 200, every_s=0.0001)
    assert jitter.guard_s >= PRIOR_S


@pytest.mark.parametrize("seed", range(10))
def test_each_reply_proves_at_least_how_late_its_call_was(seed: int) -> None:
    chance = random.Random(seed)
    jitter = Jitter()
    for number in range(400):
        delay_s = chance.choice([chance.uniform(0, 0.05), chance.expovariate(500)])
        took_s = delay_s + chance.uniform(0.02, 0.023)
        jitter.replied(took_s, number * 0.05)
        late_s = jitter.proved_s(took_s)
        assert min(delay_s, 0.05) <= late_s <= jitter.unproven_s
        if number > 100:
            # And hardly more than that: what else took time, the margin, and the unsure minimum.
            assert late_s <= delay_s + 0.003 + MARGIN_S + 0.006


def test_a_slow_reply_among_quick_ones_is_as_late_as_any_may_be() -> None:
    jitter = Jitter()
    replied(jitter, [0.02] * 100)
    jitter.replied(4.0, 10.0)
    assert jitter.proved_s(4.0) == FIRST_GUARD_S
    assert jitter.guard_s < 0.01


def test_a_server_that_becomes_slow_takes_the_guard_back_to_the_start() -> None:
    jitter = Jitter()
    replied(jitter, [0.02] * 100)
    assert jitter.guard_s < 0.01
    replied(jitter, drawn(3, 100, 0.5, 4.0))
    assert jitter.guard_s == FIRST_GUARD_S


def test_a_guard_that_was_short_is_doubled_and_replies_are_not_believed_again() -> None:
    jitter = Jitter()
    replied(jitter, [0.02] * 100)
    for expected_s in (0.105, 0.205, 0.405, 0.405):
        jitter.was_short()
        assert jitter.guard_s == jitter.unproven_s == pytest.approx(expected_s)
        assert replied(jitter, [0.02] * 100)[-1] == pytest.approx(expected_s)
        assert jitter.guard_s == pytest.approx(expected_s)


def test_handshakes_show_the_network_alone() -> None:
    jitter = Jitter()
    replied(jitter, [0.02] * 100)
    quick_s = jitter.guard_s
    for _ in range(7):
        jitter.shook_hands(0.01)
    assert jitter.guard_s == quick_s
    for _ in range(20):
        jitter.shook_hands(0.01)
    assert jitter.guard_s == quick_s
    for took_s in drawn(4, 200, 0.01, 0.13):
        jitter.shook_hands(took_s)
    # Nine in ten are within 108 ms of the fastest.
    assert 0.095 <= jitter.guard_s <= 0.125
    assert jitter.unproven_s == jitter.guard_s


def test_a_lost_packet_or_two_do_not_raise_the_guard() -> None:
    jitter = Jitter()
    for number in range(64):
        jitter.shook_hands(1.2 if number % 20 == 7 else 0.01)
    assert jitter.guard_s == FIRST_GUARD_S


def test_handshakes_never_pass_the_most() -> None:
    jitter = Jitter()
    for took_s in drawn(5, 64, 0.1, 9.0):
        jitter.shook_hands(took_s)
    assert jitter.guard_s == pytest.approx(0.405)


def test_the_guard_is_the_spread_and_what_the_fastest_reply_may_be_off() -> None:
    jitter = Jitter()
    replied(jitter, [0.02, *[0.04] * 15])
    # Of 16 replies: 5 % more than the spread, and a quarter of it.
    assert jitter.guard_s == pytest.approx(0.02 * 1.05 + 0.02 / 4 + MARGIN_S)
    assert jitter.proved_s(0.03) == pytest.approx(0.01 + 0.02 / 4 + MARGIN_S)


def test_timers_that_ring_late_lengthen_the_guard_at_every_eighth_of_them() -> None:
    jitter = Jitter()
    for number in range(1, 17):
        jitter.rang(0.02 if number <= 8 else 0.03)
        late_s = 0.03 if number == 16 else 0.02 if number >= 8 else MARGIN_S
        assert jitter.catch_up_s == late_s
        assert jitter.guard_s == PRIOR_S + late_s
    # It says nothing of the way to the server.
    assert jitter.unproven_s == FIRST_GUARD_S


def test_the_lag_of_timers_is_that_of_nineteen_in_twenty_and_bounded() -> None:
    jitter = Jitter()
    for number in range(40):
        jitter.rang(number / 1000)
    assert jitter.catch_up_s == 0.038
    for _ in range(200):
        jitter.rang(3.0)
    assert jitter.catch_up_s == PRIOR_S
    for _ in range(300):
        jitter.rang(0.001)
    assert jitter.catch_up_s == MARGIN_S
    assert jitter.guard_s == FIRST_GUARD_S


def test_a_stated_guard_is_kept_whatever_is_measured() -> None:
    jitter = Jitter(stated_s=0.2)
    replied(jitter, [0.02] * 100)
    for _ in range(100):
        jitter.rang(0.03)
        jitter.shook_hands(0.3)
    jitter.was_short()
    assert jitter.guard_s == jitter.unproven_s == jitter.proved_s(0.02) == 0.2
    assert jitter.catch_up_s == MARGIN_S
