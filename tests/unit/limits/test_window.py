"""One window: what it counts, for how long, and what that costs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from redline.limits import Rate
from redline.limits.rule import CERTAIN, Cost, Spread, Window, bucket, prove
from redline.limits.rule.shape import paid_at_s
from support.held import held

HARD = ("any", "counter", "fixed", "moving")
ALL = (*HARD, "bucket")


def window_of(count: int, window_s: float = 1.0, **more: Any) -> Window:
    more.setdefault("profile", "moving")
    more.setdefault("guard_s", 0.05)
    return Window(Rate(count, window_s), **more)


def send(window: Window, amount: int, now_s: float) -> Any:
    booking = window.book(amount, now_s)
    window.sent(booking, now_s)
    return booking


@pytest.mark.parametrize("profile", ALL)
def test_a_new_window_lets_a_whole_limit_go_at_once(profile: str) -> None:
    window = window_of(100, profile=profile, kind="tokens", guard_s=0.0)
    assert window.wait_s(100, 5.0) == 0


@pytest.mark.parametrize("profile", HARD)
def test_a_send_counts_for_the_window_and_the_guard(profile: str) -> None:
    window = window_of(1, profile=profile)
    send(window, 1, 10.0)
    assert window.wait_s(1, 10.0) == pytest.approx(1.05)
    assert window.wait_s(1, 11.04) == pytest.approx(0.01)
    assert window.wait_s(1, 11.05 + 1e-6) == 0


def test_what_is_booked_waits_for_its_write_without_end() -> None:
    window = window_of(1)
    booking = window.book(1, 0.0)
    assert window.wait_s(1, 500.0) == math.inf
    assert window.used(500.0) == 1
    window.sent(booking, 500.0)
    assert window.wait_s(1, 500.5) == pytest.approx(0.55)


def test_a_reply_proves_its_own_send_and_no_other() -> None:
    window = window_of(20)
    window.believe(0.02)
    first, second = send(window, 10, 0.0), send(window, 10, 0.1)
    prove([first], 0.022)
    prove([first], 0.06)  # it is proved only once
    assert window.wait_s(10, 1.0) == pytest.approx(0.002)
    assert window.wait_s(20, 1.0) == pytest.approx(0.15, abs=0.06)
    assert window.used(1.003) == 10
    prove([second], 0.05)
    assert window.used(1.129) == 10
    assert window.used(1.131) == 0


def test_sends_of_one_moment_count_as_late_as_the_latest_of_them() -> None:
    window = window_of(3)
    window.believe(0.0)
    bookings = [send(window, 1, 0.0) for _ in range(3)]
    for booking, took_s in zip(bookings, (0.01, 0.03), strict=False):
        prove([booking], took_s)
    assert window.used(1.049) == 3
    prove([bookings[2]], 0.02)
    assert window.used(1.029) == 3
    assert window.used(1.031) == 0


def test_what_a_reply_proves_is_found_by_what_is_known_when_its_send_is_to_leave() -> None:
    window = window_of(1, guard_s=0.0, unproven_s=0.05)
    prove([send(window, 1, 0.0)], 0.03)
    for base_s, late_s in ((-math.inf, 0.05), (0.02, 0.01), (0.005, 0.025), (-0.1, 0.05)):
        window.believe(base_s)
        assert window.wait_s(1, 1.0) == pytest.approx(late_s)
    window.believe(0.02)
    assert window.used(1.009) == 1
    assert window.used(1.011) == 0


def test_an_unproven_send_is_as_late_as_any_may_be() -> None:
    window = window_of(1, guard_s=0.01, unproven_s=0.06)
    send(window, 1, 0.0)
    assert window.wait_s(1, 1.0) == pytest.approx(0.06)
    assert window.used(1.059) == 1


@pytest.mark.parametrize("profile", ALL)
def test_a_release_gives_back_once_and_only_what_was_not_written(profile: str) -> None:
    window = window_of(100, profile=profile, kind="tokens", guard_s=0.0)
    kept = window.book(60, 0.0)
    for _ in range(3):
        gone = window.book(40, 0.0)
        window.release(gone, 0.0)
        window.release(gone, 0.0)
    window.sent(kept, 0.0)
    window.release(kept, 0.0)
    window.sent(gone, 0.0)
    plain = window_of(100, profile=profile, kind="tokens", guard_s=0.0)
    send(plain, 60, 0.0)
    for amount in (40, 41, 100):
        assert window.wait_s(amount, 0.0) == pytest.approx(plain.wait_s(amount, 0.0))


@pytest.mark.parametrize("profile", ALL)
def test_a_settlement_replaces_the_estimate_and_the_one_before(profile: str) -> None:
    window = window_of(100, profile=profile, kind="tokens", guard_s=0.0)
    booking = send(window, 90, 0.0)
    for used in (20, 20, 70, 20):
        window.settle(booking, used)
        window.settle(booking, used)
    assert window.wait_s(80, 0.9) == 0
    assert window.wait_s(100, 0.1) > 0


@pytest.mark.parametrize("profile", ALL)
def test_what_was_not_sent_is_not_settled(profile: str) -> None:
    window, plain = (window_of(100, profile=profile, kind="tokens") for _ in range(2))
    send(window, 60, 0.0)
    send(plain, 60, 0.0)
    released = window.book(40, 0.0)
    window.settle(released, 1)
    window.release(released, 0.0)
    window.settle(released, 0)
    for amount in (1, 40, 41, 100):
        assert window.wait_s(amount, 0.2) == pytest.approx(plain.wait_s(amount, 0.2), abs=1e-6)


def test_more_than_a_window_is_never_owed() -> None:
    window = window_of(100, kind="tokens")
    window.settle(send(window, 10, 0.0), 10**12)
    assert window.wait_s(100, 1.0) < 1.2


def test_a_settlement_after_the_window_changes_nothing_in_it() -> None:
    window = window_of(100, kind="tokens")
    old = send(window, 90, 0.0)
    send(window, 50, 2.0)
    window.settle(old, 10)
    assert window.used(2.0) == 50
    window.settle(old, 100)
    assert window.used(2.0) == 50


def test_a_late_timer_is_caught_up_and_a_pause_is_not() -> None:
    window = window_of(10, profile="any")
    send(window, 1, 0.0)
    booking = window.book(1, 0.109, late_s=0.004)
    window.sent(booking, 0.109)
    assert 0.109 + window.wait_s(1, 0.109) == pytest.approx(0.21)
    send(window, 1, 5.0)
    assert window.wait_s(1, 5.0) == pytest.approx(0.105)


def test_other_rates_take_over_what_was_sent() -> None:
    window = window_of(10)
    for _ in range(10):
        send(window, 1, 0.0)
    window.reshape(Rate(4, 1.0), "moving", 0.05)
    assert window.wait_s(1, 0.5) == pytest.approx(0.55)
    window.reshape(Rate(20, 1.0), "moving", 0.05)
    assert window.used(0.5) == 10


def test_a_bucket_too_small_for_the_guard_keeps_it_in_time() -> None:
    window = window_of(1, profile="bucket")
    send(window, 1, 0.0)
    assert window.wait_s(1, 0.0) == pytest.approx(1.05)


def test_a_bucket_counts_from_the_write_and_not_from_the_grant() -> None:
    """Its connection had gone, and a new one took 50 ms."""
    window = window_of(1, 0.016, profile="bucket", guard_s=0.0)
    booking = window.book(1, 10.0)
    window.sent(booking, 10.05)
    assert window.wait_s(1, 10.05) == pytest.approx(0.016)
    assert window.wait_s(1, 10.066 + 1e-6) == 0


def test_a_bucket_refunds_nothing_that_it_could_not_have_held() -> None:
    """Full from 0.1 on: the 90 given back at 1.0 had been refilled by then already."""
    window = window_of(100, profile="bucket", kind="tokens", guard_s=0.0)
    booking = send(window, 100, 0.0)
    window.settle(booking, 10)
    assert window.wait_s(100, 1.0) == 0
    send(window, 100, 1.0)
    assert window.wait_s(1, 1.0) > 0


def test_a_bucket_stops_doubting_a_call_that_is_never_settled() -> None:
    window = window_of(1000, 60.0, profile="bucket", kind="tokens", guard_s=0.0)
    spread = Spread(100.0**2, 0.0, 400.0)
    for number in range(50):
        booking = window.book(10, number * 60.0, 0.0, spread)
        window.sent(booking, number * 60.0)
    # The last one may have taken 400 more; of those before it nothing is free any longer.
    window.take(500, 2941.0)
    assert window.wait_s(490, 2941.0) == pytest.approx((500 + 490 + 400 - 1000) * 0.06)
    window.take(500, 3000.5)
    assert window.wait_s(490, 3000.5) == 0
    window.settle(booking, 10)
    assert window.wait_s(490, 3000.5) == 0


@pytest.mark.parametrize("profile", ["fixed", "moving", "bucket"])
def test_a_settlement_ends_the_doubt_about_its_own_call_and_no_other(profile: str) -> None:
    window, plain = (
        window_of(1000, 60.0, profile=profile, kind="tokens", guard_s=0.0) for _ in range(2)
    )
    spread = Spread(100.0**2, 0.0, 300.0)
    first, second = (window.book(400, 0.0, 0.0, spread) for _ in range(2))
    window.sent(first, 0.0)
    window.sent(second, 0.0)
    for booking in (send(plain, 400, 0.0), send(plain, 400, 0.0)):
        plain.settle(booking, 300)
    window.settle(first, 300)
    window.settle(first, 300)
    plain.settle(send(plain, 400, 0.0), 100)
    # The second one, of 400, may take 300 more, not 600.
    plain.take(300, 0.0)
    for amount in (1, 100, 300, 301):
        assert window.wait_s(amount, 30.0) == pytest.approx(plain.wait_s(amount, 30.0), abs=0.5)
    window.settle(second, 400)
    assert window.wait_s(300, 30.0) == 0


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("sent", [0, 600])
def test_a_doubtful_amount_waits_as_a_certain_one_that_is_larger_by_its_margin(
    profile: str, sent: int
) -> None:
    window = window_of(1000, 60.0, profile=profile, kind="tokens")
    for number in range(sent // 10):
        send(window, 10, number * 0.05)
    spread = Spread(100.0**2, 0.0, 50.0)
    for now_s in (3.0, 20.0, 50.0):
        for amount in (1, 100, 400, 900):
            waited_s = window.wait_s(amount, now_s, spread)
            assert waited_s == pytest.approx(window.wait_s(amount + 50, now_s))


def test_a_doubtful_amount_may_not_catch_up_more_than_a_certain_one() -> None:
    """Time was lost long ago, so that of what has left the window not all is free."""
    window = window_of(1000, 60.0, profile="any", kind="tokens", guard_s=0.0)
    for number in range(250):
        send(window, 10, number * 0.606 + (3.0 if number >= 200 else 0.0))
    spread = Spread(100.0**2, 0.0, 55.0)
    waits_s = [window.wait_s(amount, 154.5) for amount in (10, 65)]
    assert waits_s[0] == 0
    assert window.wait_s(10, 154.5, spread) == waits_s[1] > 0


def test_what_is_booked_at_once_leaves_room_for_what_is_in_doubt() -> None:
    def booked(amount: int, spread: Spread, before: Spread = CERTAIN) -> bool:
        window = window_of(1000, 60.0, profile="any", kind="tokens", guard_s=0.0)
        window.sent(window.book(10, 0.0, 0.0, before), 0.0)
        return window.book_now(1.0, Cost(0, amount, spread)) is not None

    # A quarter of the limit, where nothing else needs to be looked at.
    doubtful = Spread(100.0**2, 0.0, 20.0)
    assert [booked(amount, CERTAIN) for amount in (240, 241)] == [True, False]
    assert [booked(amount, doubtful) for amount in (220, 221)] == [True, False]
    assert [booked(amount, CERTAIN, doubtful) for amount in (220, 221)] == [True, False]
    assert [booked(amount, doubtful, doubtful) for amount in (200, 201)] == [True, False]


def test_a_limit_of_input_tokens_ignores_the_uncertainty_of_outputs() -> None:
    for kind, most in (("input_tokens", 250), ("tokens", 230)):
        window = window_of(1000, 60.0, profile="any", kind=kind, guard_s=0.0)
        doubtful = Spread(100.0**2, 0.0, 20.0)
        assert window.book_now(0.0, Cost(most + 1, 0, doubtful)) is None
        assert window.book_now(0.0, Cost(most, 0, doubtful)) is not None


def test_an_undone_booking_leaves_nothing_behind() -> None:
    window = window_of(1000, 60.0, profile="any", kind="tokens", guard_s=0.0)
    booking = window.book_now(0.0, Cost(100, 100, Spread(100.0**2, 0.0, 50.0)))
    assert booking is not None
    window.undo(booking)
    assert window.used(0.0) == 0
    assert window.wait_s(1000, 0.0) == 0


@pytest.mark.parametrize("sends", [1, 2, 3])
def test_calls_that_have_left_the_window_keep_no_room_though_never_settled(sends: int) -> None:
    """They were sent at one moment and so have one record."""
    window = window_of(1000, 60.0, kind="tokens", guard_s=0.0)
    bookings = [window.book(100, 0.0, 0.0, Spread(100.0**2, 0.0, 300.0)) for _ in range(sends)]
    for booking in bookings:
        window.sent(booking, 0.0)
    assert window.wait_s(1000 - 100 * sends, 1.0) > 1
    window.wait_s(1, 100.0)
    send(window, 1, 100.0)
    assert window.wait_s(999, 101.0) == 0


@pytest.mark.parametrize("profile", ["any", "moving"])
def test_a_limit_that_is_a_bucket_again_is_full_when_it_would_have_been(profile: str) -> None:
    window = window_of(100, 60.0, profile="bucket", guard_s=0.0)
    send(window, 50, 0.0)
    window.reshape(Rate(100, 60.0), profile, 0.0)
    assert window.wait_s(1, 1.0) == pytest.approx(29.0)
    send(window, 40, 40.0)
    window.reshape(Rate(100, 60.0), "bucket", 0.0)
    # The calls of a burst are a few milliseconds apart.
    assert window.wait_s(60, 40.0) == pytest.approx(0.0, abs=0.006)
    assert window.wait_s(100, 40.0) == pytest.approx(24.0)


def test_what_a_bucket_sent_is_settled_in_no_later_window() -> None:
    window = window_of(100, kind="tokens", guard_s=0.0)
    early = window.book(10, 0.0)
    window.reshape(Rate(100, 1.0), "bucket", 0.0)
    late = window.book(10, 0.0)
    for booking in (early, late):
        window.sent(booking, 0.0)
    window.reshape(Rate(100, 1.0), "moving", 0.0)
    send(window, 50, 1.0)
    for booking in (early, late):
        window.settle(booking, 2)
    assert window.used(1.0) == 50


@pytest.mark.parametrize("left_out", [(), (5,), (5, 400, 401)])
def test_calls_of_a_bucket_that_are_settled_late_or_never_cost_no_time(
    monkeypatch: pytest.MonkeyPatch, left_out: tuple[int, ...]
) -> None:
    steps = 0

    def paid(*given: Any) -> float:
        nonlocal steps
        steps += 1
        return paid_at_s(*given)

    monkeypatch.setattr(bucket, "paid_at_s", paid)
    window = window_of(100_000, 60.0, profile="bucket", kind="tokens", guard_s=0.0)
    bookings, full_at_s = [], 0.0
    for number in range(2000):
        booking = window.book(100, number * 0.05, 0.0, Spread(100.0, 0.0, 50.0))
        window.sent(booking, number * 0.05)
        full_at_s = max(full_at_s, number * 0.05) + (100 if number in left_out else 90) * 0.0006
        if number not in left_out:
            window.settle(booking, 90)
        bookings.append(booking)
        assert window.wait_s(1, number * 0.05) == 0
    assert steps < 20 * 2000
    assert window.full_at_s == pytest.approx(full_at_s)
    for number in left_out:
        window.settle(bookings[number], 90)
        full_at_s -= 10 * 0.0006
    # The bucket was never full, so each refund is whole.
    assert window.full_at_s == pytest.approx(full_at_s)


def test_others_take_their_part() -> None:
    window = window_of(10)
    window.take(0, 0.0)
    assert window.wait_s(10, 0.0) == 0
    window.take(8, 0.0)
    assert window.used(0.0) == 8
    assert window.wait_s(2, 0.1) == 0
    assert window.wait_s(3, 0.1) == pytest.approx(0.95)


@pytest.mark.parametrize("profile", ALL)
def test_what_is_recalled_counts_as_if_it_had_been_sent_here(profile: str) -> None:
    live, recalled = (window_of(10, profile=profile) for _ in range(2))
    sends = [(0.0, 1), (0.5, 1), (0.9, 2)]
    for at_s, amount in sends:
        send(live, amount, at_s)
    recalled.recall(sends, 0.9)
    for now_s in (0.9, 1.0, 1.06, 1.5, 2.0):
        waits = [window.wait_s(7, now_s) for window in (live, recalled)]
        # The calls of a burst that has just been sent are kept a few milliseconds apart.
        assert waits[1] == pytest.approx(waits[0], abs=0.011)
        assert recalled.wait_s(1, now_s) == pytest.approx(live.wait_s(1, now_s), abs=0.011)


def test_a_bucket_owes_what_it_recalls_for_one_window_at_most() -> None:
    window = window_of(10, 10.0, profile="bucket", guard_s=0.0)
    window.recall([(0.0, 4)], 1.0)
    assert window.wait_s(10, 1.0) == pytest.approx(3.0)
    window.recall([(1.0, 50)], 1.0)
    assert window.wait_s(10, 1.0) == pytest.approx(10.0)


@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_what_is_recalled_by_a_crowded_counter_counts_in_every_phase(kind: Any) -> None:
    live, recalled = (
        window_of(1000, 60.0, profile="counter", kind=kind, guard_s=0.0) for _ in range(2)
    )
    sends = [(float(second), 45) for second in range(20)]
    for at_s, amount in sends:
        for window in (live, recalled):
            send(window, amount, at_s)
    more = [(20.0 + second, 5) for second in range(8)]
    for at_s, amount in more:
        send(live, amount, at_s)
    recalled.recall(more, 27.0)
    for now_s in (27.0, 40.0, 60.5, 80.0):
        for amount in (1, 100, 900):
            assert recalled.wait_s(amount, now_s) == pytest.approx(
                live.wait_s(amount, now_s), abs=0.2
            )


@pytest.mark.parametrize("profile", ALL)
@pytest.mark.parametrize("is_settled", [False, True])
def test_memory_is_bounded_whatever_is_sent(profile: str, is_settled: bool) -> None:
    """Ten million a day: two days of sends, settled or never."""
    window = window_of(10_000_000, 86_400.0, profile=profile, kind="tokens")
    for number in range(30_000):
        at_s = number * 5.76
        booking = window.book(
            1, at_s, 0.0, Spread(1.0, 0.0, 9.0) if profile == "bucket" else CERTAIN
        )
        window.sent(booking, at_s)
        window.wait_s(1, at_s)
        if is_settled:
            window.settle(booking, 1)
    del booking
    assert held(window) <= 8 * 4100
    # What is counted is true to 1/4096 of the window.
    if profile != "bucket":
        assert window.used(at_s) == pytest.approx(15_000, rel=0.001)


def test_sends_that_count_as_one_stay_as_long_as_the_last_of_them() -> None:
    window = window_of(3, 4096.0, guard_s=0.0)
    for at_s in (0.0, 0.4, 0.9):
        send(window, 1, at_s)
    assert window.used(4096.8) == 3
    assert window.used(4097.0) == 0


def test_calls_are_settled_after_their_window_got_another_length() -> None:
    """Phases of one length know nothing of the steps of another."""
    window = window_of(100, 10.0, kind="tokens", profile="any")
    now_s, bookings = 1000.0, []
    for rate, calls in ((Rate(100, 10.0), 8), (Rate(500, 60.0), 30)):
        window.reshape(rate, "any", 0.05)
        for _ in range(calls):
            while wait_s := window.wait_s(10, now_s):
                now_s += wait_s
            bookings.append(send(window, 10, now_s))
    for booking in bookings:
        window.settle(booking, 5)
    assert 0 < window.used(now_s) <= 5 * len(bookings)
    window.reshape(Rate(100, 10.0), "any", 0.05)
    for booking in bookings:
        window.settle(booking, 4)
    assert 0 < window.used(now_s) <= 4 * len(bookings)
    assert window.used(now_s + 11.0) == 0
    assert window.wait_s(100, now_s + 30.0) == 0.0


def test_a_longer_window_allows_nothing_that_it_would_not_have_allowed_before() -> None:
    always, longer = (
        window_of(1000, window_s, profile="any", kind="tokens", guard_s=0.0)
        for window_s in (20.0, 10.0)
    )
    for number in range(60):
        for window in (always, longer):
            send(window, 15, 0.2 * number)
    longer.reshape(Rate(1000, 20.0), "any", 0.0)
    for now_s in (12.0, 15.0, 20.0, 25.0, 30.0):
        for amount in (10, 400, 900):
            assert longer.wait_s(amount, now_s) > 0 or always.wait_s(amount, now_s) == 0


def test_an_idle_queue_catches_nothing_up() -> None:
    idle, busy = (
        window_of(1000, 60.0, profile="any", kind="tokens", guard_s=0.0) for _ in range(2)
    )
    for window, busy_s in ((idle, {}), (busy, {"busy_s": 30.0})):
        window.sent(window.book(100, 0.0), 0.0)
        window.book(100, 8.0, **busy_s)
    # Each 100 take the pace 6 s; the second came 2 s after it had paid for the first.
    assert idle.wait_s(1, 8.0) == pytest.approx(6.0)
    assert busy.wait_s(1, 8.0) == pytest.approx(4.0)


def test_a_window_keeps_its_attributes_as_cpython_keeps_few() -> None:
    """With more, an object has a dict of its own, which is slower and takes a kilobyte more."""
    assert len(vars(Window(Rate(1, 1.0)))) <= 29
