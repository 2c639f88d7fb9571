"""How a rate is kept, trimmed, given up, and tried for more."""

from __future__ import annotations

from collections.abc import Callable

from redline.limits import Rate
from redline.limits.discover import Hold, Word, plain_above, scaled

LATENCY_S = 0.05


def never(number: int, rate: Rate) -> bool:
    return False


class Caller:
    """Sends all that a hold allows, one call after the other."""

    def __init__(self, rate: Rate, burst: int = 20) -> None:
        self.now_s = 100.0
        self.hold = Hold(rate, self.now_s, burst)
        self.refused = 0

    def calls(
        self, count: int, is_refused: Callable[[int, Rate], bool] = never, *, pause_s: float = 0.0
    ) -> list[Word]:
        words = []
        for number in range(count):
            rate = self.hold.rate
            is_limited = is_refused(number, rate)
            self.refused += is_limited
            self.hold.sent()
            words.append(self.hold.answered(self.now_s + LATENCY_S, self.now_s, is_limited))
            self.now_s += rate.window_s / rate.count + pause_s
        return words


def proven() -> Caller:
    """A caller that holds 20 calls a second, and has tried in vain for more."""
    caller = Caller(Rate(20, 1.0))
    caller.calls(400, above(20.5))
    assert caller.hold.is_proven
    assert caller.hold.rate == Rate(20, 1.0)
    caller.refused = 0
    return caller


def above(limit: float) -> Callable[[int, Rate], bool]:
    return lambda number, rate: rate.count / rate.window_s > limit and number % 10 == 9


def test_a_rate_is_proven_by_one_and_a_half_windows_without_refusals() -> None:
    caller = Caller(Rate(600, 60.0))
    caller.calls(800)
    assert not caller.hold.is_proven
    caller.calls(200)
    assert caller.hold.is_proven


def test_a_lone_refusal_changes_nothing() -> None:
    caller = proven()
    words = caller.calls(30, lambda number, rate: number == 15)
    assert set(words) == {Word.KEEP}
    assert caller.hold.rate == Rate(20, 1.0)


def test_two_refusals_far_apart_trim_the_rate_by_a_call() -> None:
    caller = proven()
    caller.calls(40, lambda number, rate: number in (5, 25))
    assert caller.hold.rate == Rate(19, 1.0)


def test_refusals_that_no_trim_ends_are_borne() -> None:
    caller = proven()
    # One in 100, whatever is sent; the rate never falls much below nine tenths for it.
    least = 20.0
    for _ in range(200):
        caller.calls(100, lambda number, rate: number == 50)
        held = caller.hold.sure
        least = min(least, held.count / held.window_s)
    assert least >= 0.85 * 20


def test_a_block_is_waited_out_and_a_second_one_ends_the_rate() -> None:
    caller = proven()
    assert caller.calls(3, lambda *_: True)[-1] is Word.BLOCKED
    caller.calls(10)
    assert caller.calls(3, lambda *_: True)[-1] is Word.LOST


def test_a_block_long_after_another_is_a_new_one() -> None:
    caller = proven()
    for _ in range(2):
        caller.calls(200)
        assert Word.LOST not in caller.calls(3, lambda *_: True)


def test_what_was_found_a_little_low_is_raised_to_the_limit() -> None:
    caller = Caller(Rate(17, 1.0))
    caller.calls(4_000, above(20.5))
    assert caller.hold.sure == Rate(20, 1.0)


def test_a_limit_that_was_raised_is_found_again() -> None:
    caller = proven()
    caller.calls(10_000, above(20.5))
    assert caller.hold.sure == Rate(20, 1.0)
    caller.calls(30_000, above(40.5))
    held = caller.hold.sure
    assert held.count / held.window_s >= 38


def test_climbs_cost_at_most_one_call_in_a_thousand() -> None:
    caller = proven()
    caller.calls(50_000, above(20.5))
    assert 0 < caller.refused <= 50


def test_a_caller_that_does_not_use_its_rate_tries_for_no_more() -> None:
    caller = proven()
    caller.calls(20_000, above(20.5), pause_s=0.5)
    assert caller.refused == 0
    assert caller.hold.rate == Rate(20, 1.0)


def test_old_verdicts_say_nothing_about_a_new_rate() -> None:
    hold = Hold(Rate(20, 1.0), 100.0, 20)
    for _ in range(10):
        assert hold.answered(101.0, 99.9, True) is Word.KEEP


def test_rates_are_scaled_in_whole_calls_where_that_is_possible() -> None:
    assert scaled(Rate(20, 1.0), 1.05) == Rate(21, 1.0)
    assert scaled(Rate(3, 1.0), 1.25).count == 3
    assert scaled(Rate(3, 1.0), 1.25).window_s == 0.8


def test_the_plain_rate_next_to_an_odd_one() -> None:
    assert plain_above(Rate(23, 1.1667)) == Rate(20, 1.0)
    assert plain_above(Rate(20, 1.0)) is None
