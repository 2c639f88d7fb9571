"""The states of a breaker, line by line of its table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from redline.route import Breaker
from redline.route.health import (
    BAD_FACTOR,
    BAD_PAGES,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MEMORY,
    MOST_SHARE,
    MOST_TRIES,
    USUAL_SHARE,
    WARM_CALLS,
    usual_share,
)
from redline.waist import Health


def breaker_of(*, usual: float = USUAL_SHARE, is_probed: bool = False) -> Breaker:
    return Breaker(lambda breaker: usual, is_probed=is_probed)


def call(breaker: Breaker, now_s: float, *, is_success: bool) -> bool:
    """Makes one call of no length; whether it changed the state."""
    epoch = breaker.began(now_s)
    return breaker.succeeded(epoch) if is_success else breaker.failed(epoch, now_s)


def fails_until_degraded(breaker: Breaker, now_s: float = 0.0) -> int:
    """How many failures in a row that takes."""
    for count in range(1, 1000):
        if call(breaker, now_s, is_success=False):
            assert breaker.state is Health.DEGRADED
            return count
    raise AssertionError("1,000 failures in a row do not degrade it")


def degraded(now_s: float = 0.0) -> Breaker:
    breaker = breaker_of()
    fails_until_degraded(breaker, now_s)
    return breaker


def warm(breaker: Breaker, now_s: float) -> None:
    """Makes the calls that bring it back."""
    for count in range(WARM_CALLS):
        assert breaker.allows(now_s)
        changes = call(breaker, now_s, is_success=True)
        assert changes == (count in (0, WARM_CALLS - 1))
    assert breaker.state is Health.READY
    assert breaker.allows(now_s)


class TestReady:
    def test_it_gets_all_calls_though_some_have_failed(self) -> None:
        breaker = breaker_of()
        assert breaker.state is Health.READY
        assert breaker.is_working
        assert breaker.is_settled
        assert breaker.allows(0.0, 1000)
        assert not call(breaker, 0.0, is_success=False)
        assert not breaker.is_settled
        assert breaker.is_working
        assert breaker.allows(0.0, 1000)

    def test_seven_failures_in_a_row_degrade_it_if_nothing_else_fails(self) -> None:
        assert fails_until_degraded(breaker_of()) == 7

    def test_if_others_fail_often_it_takes_more(self) -> None:
        # The likelihood ratio of a failure is 0.5 / 0.1, so 1,000,000 takes log(10^6) / log(5).
        assert fails_until_degraded(breaker_of(usual=0.1)) == 9

    def test_if_all_others_fail_it_is_never_degraded(self) -> None:
        breaker = breaker_of(usual=MOST_SHARE)
        assert not any(call(breaker, 0.0, is_success=False) for _ in range(1000))
        assert breaker.state is Health.READY

    def test_successes_take_evidence_back_until_it_is_settled(self) -> None:
        breaker = breaker_of()
        call(breaker, 0.0, is_success=False)
        # A failure is 0.18 / 0.02 = 9 to 1, a success 0.82 / 0.98.
        needed = math.ceil(math.log(9) / -math.log(0.82 / 0.98))
        for _ in range(needed - 1):
            assert not call(breaker, 0.0, is_success=True)
        assert not breaker.is_settled
        call(breaker, 0.0, is_success=True)
        assert breaker.is_settled

    def test_a_refused_connection_needs_no_other_evidence(self) -> None:
        breaker = breaker_of()
        assert breaker.failed(breaker.began(5.0), 5.0, is_down=True)
        assert breaker.state is Health.DEGRADED
        assert breaker.again_s == 5.0 + FIRST_PAUSE_S


class TestLate:
    """Results of calls that began before the state changed."""

    def test_they_change_nothing(self) -> None:
        breaker = breaker_of()
        early = breaker.began(0.0)
        assert breaker.failing_s == 0
        fails_until_degraded(breaker)
        assert not breaker.succeeded(early)
        assert not breaker.failed(early, 0.5)
        assert (breaker.state, breaker.failing_s) == (Health.DEGRADED, 0)
        assert call(breaker, breaker.again_s, is_success=True)
        assert not breaker.succeeded(early)
        assert not breaker.failed(early, 2.0, is_down=True)
        assert breaker.state is Health.WARMING

    def test_bad_pages_leave_no_evidence_from_calls(self) -> None:
        breaker = breaker_of(is_probed=True)
        breaker.probed(0.0, is_well=True)
        for page in range(BAD_PAGES):
            breaker.probed(float(page), is_well=False)
        assert breaker.state is Health.DEGRADED
        assert breaker.evidence == 0


class TestDegraded:
    def test_one_call_at_the_end_of_each_pause_and_pauses_double(self) -> None:
        breaker, now_s, pauses_s = degraded(10.0), 10.0, list[float]()
        for _ in range(6):
            assert not breaker.allows(math.nextafter(breaker.again_s, -math.inf))
            pauses_s.append(breaker.again_s - now_s)
            now_s = breaker.again_s
            assert breaker.allows(now_s)
            assert not breaker.allows(now_s, coming=1)
            assert not call(breaker, now_s, is_success=False)
        assert pauses_s == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]

    def test_tries_that_are_in_flight_are_bounded(self) -> None:
        breaker = degraded()
        for _ in range(MOST_TRIES):
            assert breaker.allows(breaker.again_s)
            breaker.began(breaker.again_s)
        assert not breaker.allows(breaker.again_s)

    def test_a_call_before_the_pause_ends_does_not_lengthen_it(self) -> None:
        breaker = degraded()
        again_s = breaker.again_s
        breaker.began(again_s / 2)
        assert breaker.again_s == again_s

    def test_a_try_that_is_cancelled_is_made_again_at_once(self) -> None:
        breaker = degraded()
        epoch = breaker.began(breaker.again_s)
        assert not breaker.allows(1.5)
        breaker.cancelled(epoch)
        assert breaker.allows(1.5)
        # The place of the cancelled one is free again.
        for _ in range(MOST_TRIES):
            assert breaker.allows(100.0)
            breaker.began(100.0)
            breaker.again_s = 0.0

    def test_tries_that_are_all_cancelled_do_not_follow_each_other_without_a_pause(self) -> None:
        breaker, tries = degraded(), 0
        for now_s in range(2, 100):
            if breaker.allows(now_s):
                breaker.cancelled(breaker.began(now_s))
                tries += 1
        # Two after each pause of up to 15 s.
        assert 10 < tries < 20

    def test_calls_that_began_before_change_nothing(self) -> None:
        breaker = breaker_of()
        early = [breaker.began(0.0) for _ in range(3)]
        fails_until_degraded(breaker)
        again_s = breaker.again_s
        assert not breaker.succeeded(early[0])
        assert not breaker.failed(early[1], 0.5)
        breaker.cancelled(early[2])
        assert breaker.state is Health.DEGRADED
        assert breaker.again_s == again_s
        assert not breaker.allows(0.5)


class TestWarming:
    def test_twice_as_many_at_once_after_each_success(self) -> None:
        breaker = degraded()
        assert call(breaker, 1.0, is_success=True)
        assert breaker.state is Health.WARMING
        for successes in range(1, 6):
            assert breaker.allows(1.0, 2**successes - 1)
            assert not breaker.allows(1.0, 2**successes)
            call(breaker, 1.0, is_success=True)

    def test_it_is_ready_after_all_its_calls_and_the_pause_is_short_again(self) -> None:
        breaker = degraded()
        for _ in range(3):
            call(breaker, breaker.again_s, is_success=False)
        warm(breaker, 50.0)
        fails_until_degraded(breaker, 60.0)
        assert breaker.again_s == 60.0 + FIRST_PAUSE_S

    def test_three_failures_in_a_row_are_enough(self) -> None:
        breaker = degraded()
        call(breaker, 1.0, is_success=True)
        assert fails_until_degraded(breaker, 1.0) == 3

    def test_calls_that_are_under_way_count(self) -> None:
        breaker = degraded()
        call(breaker, 1.0, is_success=True)
        breaker.began(1.0)
        assert breaker.allows(1.0)
        second = breaker.began(1.0)
        assert not breaker.allows(1.0)
        breaker.cancelled(second)
        assert breaker.allows(1.0)


class TestHealthPages:
    def test_it_starts_when_its_page_is_well(self) -> None:
        breaker = breaker_of(is_probed=True)
        assert breaker.state is Health.STARTING
        assert breaker.is_working
        assert not breaker.allows(0.0)
        assert breaker.probed(1.0, is_well=False)
        assert not breaker.is_working
        assert not breaker.probed(2.0, is_well=False)
        assert not breaker.allows(2.0)
        assert breaker.probed(3.0, is_well=True)
        assert breaker.state is Health.WARMING
        assert breaker.is_working
        warm_calls = 0
        while breaker.state is not Health.READY:
            call(breaker, 3.0, is_success=True)
            warm_calls += 1
        assert warm_calls == WARM_CALLS

    def test_pages_that_fail_in_a_row_degrade_it_and_one_that_is_well_brings_it_back(self) -> None:
        breaker = breaker_of(is_probed=True)
        breaker.probed(0.0, is_well=True)
        for _ in range(WARM_CALLS):
            call(breaker, 0.0, is_success=True)
        for round_s in (10.0, 20.0):
            for _ in range(BAD_PAGES - 1):
                assert not breaker.probed(round_s, is_well=False)
            assert not breaker.probed(round_s, is_well=True)
            assert breaker.state is Health.READY
        for bad in range(1, BAD_PAGES + 3):
            assert breaker.probed(30.0, is_well=False) == (bad == BAD_PAGES)
        assert breaker.state is Health.DEGRADED
        assert not breaker.allows(1000.0)
        assert breaker.probed(1001.0, is_well=True)
        assert breaker.state is Health.DEGRADED
        assert breaker.again_s == 1001.0
        assert breaker.allows(1001.0)

    def test_calls_that_fail_hold_it_until_its_page_has_been_asked(self) -> None:
        breaker = breaker_of(is_probed=True)
        breaker.probed(0.0, is_well=True)
        for _ in range(WARM_CALLS):
            call(breaker, 0.0, is_success=True)
        fails_until_degraded(breaker)
        assert not breaker.allows(100.0)
        assert breaker.probed(100.0, is_well=True)
        # Its page has never been bad, so the pause of its calls is kept.
        assert breaker.again_s == FIRST_PAUSE_S
        assert breaker.allows(100.0)
        assert not breaker.probed(101.0, is_well=False)
        assert not breaker.allows(101.0)

    def test_it_is_known_for_how_long_calls_and_pages_have_failed(self) -> None:
        breaker = breaker_of(is_probed=True)
        breaker.probed(0.0, is_well=True)
        fails_until_degraded(breaker, 10.0)
        assert not breaker.failing_s
        breaker.probed(30.0, is_well=False)
        assert breaker.failing_s == 20.0
        breaker.probed(40.0, is_well=True)
        call(breaker, 50.0, is_success=False)
        assert breaker.failing_s == 40.0
        call(breaker, 60.0, is_success=True)
        assert not breaker.failing_s
        for _ in range(BAD_PAGES):
            breaker.probed(70.0, is_well=False)
        assert breaker.state is Health.DEGRADED
        breaker.probed(90.0, is_well=False)
        assert breaker.failing_s == 20.0


def seen(results: Sequence[tuple[int, int]]) -> list[Breaker]:
    """Ready breakers that have seen these numbers of calls and failures."""
    found = list[Breaker]()
    for calls, failures in results:
        breaker = breaker_of(usual=MOST_SHARE)
        for number in range(calls):
            call(breaker, 0.0, is_success=number >= failures)
        found.append(breaker)
    return found


class TestUsualShare:
    def test_it_is_the_share_of_all_with_two_calls_more_of_the_least_share(self) -> None:
        assert usual_share([]) == USUAL_SHARE
        assert usual_share(seen([(10, 0), (8, 0)])) == USUAL_SHARE
        assert usual_share(seen([(10, 5), (8, 1)])) == pytest.approx(6.04 / 20)
        assert usual_share(seen([(50, 40), (50, 40)])) == pytest.approx(80.04 / 102)

    def test_of_those_that_answer_hardly_any_call_few_failures_count(self) -> None:
        assert usual_share(seen([(60, 60), (60, 60)])) == USUAL_SHARE
        counted = BAD_FACTOR * 2 + 0.04
        assert usual_share(seen([(60, 58), (8, 0)])) == pytest.approx(counted / (2 + 8 + 8 + 2))

    def test_those_that_are_degraded_count_as_when_they_were_ready(self) -> None:
        breaker = seen([(50, 20)])[0]
        while breaker.state is Health.READY:
            breaker.failed(breaker.epoch, 0.0, is_down=True)
        assert usual_share([breaker, *seen([(8, 4)])]) == pytest.approx(25.04 / 61)
        for _ in range(60):
            call(breaker, breaker.again_s, is_success=False)
        assert usual_share([breaker, *seen([(8, 4)])]) == pytest.approx(25.04 / 61)

    def test_old_results_count_for_less(self) -> None:
        breaker = seen([(2 * MEMORY - 1, 2 * MEMORY - 1)])[0]
        assert (breaker.calls, breaker.failures) == (127, 127)
        call(breaker, 0.0, is_success=True)
        assert (breaker.calls, breaker.failures) == (MEMORY, (2 * MEMORY - 1) / 2)
        breaker.answered(MEMORY - 1)
        assert breaker.calls == 2 * MEMORY - 1
        breaker.answered(1)
        assert (breaker.calls, breaker.failures) == (MEMORY, (2 * MEMORY - 1) / 4)

    def test_answers_that_are_counted_together_weigh_as_much_as_one_by_one(self) -> None:
        one, other = seen([(100, 50), (100, 50)])
        for _ in range(1_000):
            call(one, 0.0, is_success=True)
        other.answered(1_000)
        assert (one.calls, one.failures) == (other.calls, other.failures)
