"""What a search asks for next after each verdict."""

from __future__ import annotations

from redline.limits import Rate
from redline.limits.discover import RateSearch

LATENCY_S = 0.001


def per_s(search: RateSearch) -> float:
    (rate,) = search.rates()
    return rate.count / rate.window_s


def ask(search: RateSearch, now_s: float, *, is_limited: bool = False) -> bool:
    """One call, written now and answered LATENCY_S later."""
    search.sent(now_s)
    return search.answered(now_s + LATENCY_S, now_s, is_limited)


def use_up(search: RateSearch, now_s: float, lasts_s: float) -> float:
    """Sends all that the search allows, all admitted; the time afterwards."""
    ends_s = now_s + lasts_s
    while now_s < ends_s:
        ask(search, now_s)
        now_s += 1 / per_s(search)
    return now_s


def full(search: RateSearch) -> float:
    """Grows until 20 calls a second are refused; the time of the refusal."""
    now_s = 0.0
    while per_s(search) <= 20:
        ask(search, now_s)
        now_s += 1 / per_s(search)
    ask(search, now_s, is_limited=True)
    return now_s


def test_it_begins_slowly_and_speeds_up_as_long_as_nothing_is_refused() -> None:
    search = RateSearch()
    first = per_s(search)
    assert first <= 2
    use_up(search, 0.0, 6.0)
    assert per_s(search) > 100 * first
    assert search.found is None


def test_a_server_without_a_limit_is_not_held_back() -> None:
    search = RateSearch()
    now_s = 0.0
    while search.rates():
        now_s += 1 / per_s(search)
        ask(search, now_s)
    assert search.rates() == ()


def test_a_caller_that_does_not_use_its_rate_proves_nothing() -> None:
    search = RateSearch()
    now_s = use_up(search, 0.0, 5.0)
    before = search.rates()
    for second in range(50):
        assert not ask(search, now_s + second)
    assert search.rates() == before


def test_idle_time_does_not_count_against_later_use() -> None:
    search = RateSearch()
    now_s = use_up(search, 0.0, 3.0) + 1000.0
    before = per_s(search)
    use_up(search, now_s, 3.0)
    assert per_s(search) > 2 * before


def test_a_refusal_stops_it_at_once_and_only_once_a_round_trip() -> None:
    search = RateSearch()
    now_s = use_up(search, 0.0, 3.0)
    stamps = [now_s + 0.001 * number for number in range(50)]
    for sent_s in stamps:
        search.sent(sent_s)
    assert search.answered(now_s + 0.2, stamps[0], True)
    resting = search.rates()
    assert resting[0].count == 1
    for sent_s in stamps[1:]:
        # They were sent before the change, so they are old news.
        assert not search.answered(now_s + 0.21, sent_s, True)
    assert search.rates() == resting


def test_resting_calls_lie_further_apart_after_every_refusal() -> None:
    search = RateSearch()
    now_s = full(search)
    gaps_s = []
    for _ in range(5):
        now_s += search.rates()[0].window_s + LATENCY_S
        assert ask(search, now_s, is_limited=True)
        gaps_s.append(search.rates()[0].window_s)
    assert gaps_s == sorted(gaps_s)
    assert gaps_s[-1] > 3 * gaps_s[0]


def test_what_the_server_asks_for_is_waited_for() -> None:
    search = RateSearch()
    now_s = use_up(search, 0.0, 3.0)
    search.sent(now_s)
    search.answered(now_s + 0.1, now_s, True, retry_after_s=7.0)
    assert search.rates() == (Rate(1, 7.0),)


def test_the_first_admitted_call_ends_the_rest() -> None:
    search = RateSearch()
    now_s = full(search)
    resting = search.rates()[0]
    assert ask(search, now_s + resting.window_s + LATENCY_S)
    assert search.rates() != (resting,)


def test_a_remembered_rate_is_held_from_the_first_call() -> None:
    search = RateSearch(Rate(20, 1.0))
    assert search.rates() == (Rate(20, 1.0),)
    assert search.found is None
    now_s = use_up(search, 5000.0, 3.0)
    assert search.found == Rate(20, 1.0)
    # One refusal may be anybody's.
    assert not ask(search, now_s, is_limited=True)
    assert search.rates() == (Rate(20, 1.0),)


def test_a_remembered_rate_that_is_no_longer_true_is_given_up() -> None:
    search = RateSearch(Rate(20, 1.0))
    for number in range(4):
        ask(search, 100.0 + number, is_limited=True)
    assert search.found is None
    assert per_s(search) < 20
