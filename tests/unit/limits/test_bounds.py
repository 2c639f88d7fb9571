"""What refusals leave possible: windows, and the refill of a bucket."""

from __future__ import annotations

import pytest

from redline.limits import Rate
from redline.limits.discover import Bucket, Evidence, likeliest, named


def evidence(calls: list[float], refused: list[float]) -> Evidence:
    found = Evidence()
    for at_s in sorted(calls + refused):
        found.sent(at_s)
    for at_s in refused:
        found.refuse(at_s)
    return found


def at_rate(per_s: float, from_s: float, count: int) -> list[float]:
    return [from_s + number / per_s for number in range(count)]


def test_a_refusal_bounds_the_count_of_every_window() -> None:
    # 20 calls within 0.4 s, and nothing more until a second after the first of them.
    found = evidence([*at_rate(50, 100.0, 20), 101.06], [100.5, 100.7, 100.95])
    windows = {rate.window_s: rate.count for rate in found.windows(101.06)}
    assert windows[1.0] == 20
    assert likeliest(found.windows(101.06)) == Rate(20, 1.0)


def test_a_window_in_which_nothing_was_admitted_is_none() -> None:
    # Refused for 55 s after a burst: a window shorter than that would have been empty.
    found = evidence([*at_rate(200, 0.0, 600), 61.0], [10.0, 30.0, 58.0])
    windows = found.windows(61.0)
    assert min(rate.window_s for rate in windows) > 54.0
    assert likeliest(windows) == Rate(600, 60.0)


def test_without_a_refusal_nothing_is_known() -> None:
    found = evidence([0.0, 1.0], [])
    assert found.windows(1.0) == []
    assert found.bucket(1.0).most_per_s == float("inf")


def test_a_bucket_admits_what_it_was_refilled_with() -> None:
    calls = at_rate(10, 0.0, 100)
    found = evidence(calls, [at_s + 0.05 for at_s in calls[::10]])
    bucket = found.bucket(calls[-1])
    assert bucket.is_narrow
    assert bucket.least_per_s <= 10 <= bucket.most_per_s
    assert named(bucket) == Rate(10, 1.0)


def test_fill_and_block_is_no_bucket() -> None:
    calls = [at_s for second in range(5) for at_s in at_rate(40, second, 20)]
    refused = [second + late_s for second in range(5) for late_s in (0.5, 0.7, 0.9)]
    assert not evidence(calls, refused).bucket(calls[-1]).is_possible


@pytest.mark.parametrize(
    ("least", "most", "rate"),
    [(19.0, 20.5, Rate(20, 1.0)), (0.48, 0.51, Rate(1, 2.0)), (8.3, 8.36, Rate(25, 3.0))],
)
def test_a_refill_is_named_by_a_whole_number_of_calls(
    least: float, most: float, rate: Rate
) -> None:
    found = named(Bucket(least, most, 100))
    assert found is not None
    assert found.count / found.window_s == pytest.approx(rate.count / rate.window_s, rel=0.02)
    assert found.window_s <= 60


def test_after_a_burst_a_rate_begins_when_the_burst_leaves() -> None:
    found = evidence(at_rate(100, 0.0, 60), [0.7])
    # All 60 were sent within 0.6 s: evenly sent calls fit once the first of them is 60 s old.
    assert found.room_at_s(Rate(60, 60.0), 1.0) == pytest.approx(60.0, abs=0.1)
    # Calls that came evenly leave evenly: room is there at once.
    even = evidence(at_rate(1, 0.0, 60), [])
    assert even.room_at_s(Rate(60, 60.0), 60.0) <= 60.0


def test_old_calls_do_not_speak_for_a_limit_that_has_changed() -> None:
    found = evidence(at_rate(20, 0.0, 4000), [200.0])
    assert max(rate.window_s for rate in found.windows(200.2)) > 60
    found.restart(1.0)
    assert max(rate.window_s for rate in found.windows(200.2)) <= 1.1


def test_memory_is_bounded() -> None:
    found = Evidence()
    for number in range(200_000):
        found.sent(number * 0.001)
    assert found.count(0.0, 1000.0) <= 65_536
    assert found.count(199.0, 200.0) == 1000
