"""A limit that no header states is found, used, and found again after it has changed.

The small form of bench/search.py, whose driver and bars these are. Virtual time throughout.
"""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any

import pytest

from redline.limits import Rate
from redline.limits.discover import RateSearch
from redline.sim import FixedWindow, MovingWindow
from support.scripts import script

script("bench/record.py")
bench = script("bench/search.py")
PER_SECOND, PER_MINUTE = Rate(20, 1.0), Rate(600, 60.0)
SERVERS = ("fixed", "moving", "bucket")
# Their second halves have the 3,000 calls that can be judged, see bench/search.py.
SHORT_S = {PER_SECOND: 400.0, PER_MINUTE: 640.0}


def drive(case: Any, kind: Any = RateSearch, start: Rate | None = None) -> tuple[Any, Any]:
    search = kind(start)
    return bench.Driver(case, search).run(), search


def check_bars(kind: Any, server: str, rate: Rate, lasts_s: float = 900.0, **world: Any) -> None:
    case = bench.Case(bench.SERVERS[server](rate), lasts_s=lasts_s, **world)
    seen, search = drive(case, kind)
    used, rejected = seen.share(rate, lasts_s / 2, lasts_s)
    assert used >= bench.LEAST_USED, f"{used:.2%} used, found {search.found}"
    assert rejected <= bench.MOST_REJECTED, f"{rejected:.3%} rejected, found {search.found}"
    assert search.found is not None


@pytest.mark.slow
@pytest.mark.parametrize("rate", [PER_SECOND, PER_MINUTE], ids=str)
@pytest.mark.parametrize("server", SERVERS)
def test_an_unknown_limit_is_used_to_the_full(server: str, rate: Rate) -> None:
    check_bars(RateSearch, server, rate)


@pytest.mark.parametrize("rate", [Rate(3, 1.0), Rate(500, 60.0)], ids=str)
def test_other_limits_are_found_as_well(rate: Rate) -> None:
    check_bars(RateSearch, "moving", rate, 1500.0)


@pytest.mark.parametrize("server", SERVERS)
def test_the_search_is_over_in_a_few_windows_and_costs_little(server: str) -> None:
    seen, _ = drive(bench.Case(bench.SERVERS[server](PER_MINUTE), 2, 200.0))
    assert seen.found_s is not None
    assert seen.found_s <= 3 * PER_MINUTE.window_s
    assert seen.between(0, seen.found_s)[1] <= 0.3 * PER_MINUTE.count


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_slow_verdicts_with_many_calls_in_flight(server: str) -> None:
    case = bench.Case(bench.SERVERS[server](PER_SECOND), 3, 900.0, latency_s=(5.0, 5.0))
    seen, _ = drive(case)
    used, rejected = seen.share(PER_SECOND, 450.0, 900.0)
    assert used >= bench.LEAST_USED
    assert rejected <= 2 * bench.MOST_REJECTED


@pytest.mark.parametrize("server", SERVERS)
def test_verdicts_of_a_server_next_door(server: str) -> None:
    quick: dict[str, Any] = {"jitter_s": 0.002, "guard_s": 0.007, "latency_s": (0.004, 0.008)}
    check_bars(RateSearch, server, PER_SECOND, SHORT_S[PER_SECOND], **quick)


@pytest.mark.parametrize("rate", [PER_SECOND, PER_MINUTE], ids=str)
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_says_when_to_come_back(server: str, rate: Rate) -> None:
    check_bars(RateSearch, server, rate, SHORT_S[rate], is_told=True)


class Aligned(FixedWindow):
    """Its windows begin at whole multiples of their length, not with a call."""

    def take(self, amount: int, now_s: float) -> None:
        super().take(amount, now_s)
        self._ends_s = (now_s // self._window_s + 1) * self._window_s


@pytest.mark.parametrize("seed", [2, 7, 9, 11])
def test_a_window_that_began_before_the_first_call_is_found(seed: int) -> None:
    case = bench.Case(Aligned(PER_MINUTE), seed, 640.0, is_told=True)
    seen, search = drive(case)
    assert seen.share(PER_MINUTE, 320.0, 640.0)[0] >= bench.LEAST_USED, f"found {search.found}"


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("now", [Rate(10, 1.0), Rate(40, 1.0)], ids=str)
def test_a_limit_that_changes_is_found_again(server: str, now: Rate) -> None:
    make = bench.SERVERS[server]
    shares = []
    for seed in range(1, 9):
        case = bench.Case(make(PER_SECOND), seed, 450.0, changes=[(150.0, make(now))])
        seen, search = drive(case)
        used, rejected = seen.share(now, 350.0, 450.0)
        assert used >= 0.93, f"found {search.found}"
        # Refusals that continue for long may be due to other clients: they are then accepted.
        assert rejected <= 0.05
        shares.append(rejected)
        if now.count < PER_SECOND.count:
            # Being refused shows at once; that there is more must be asked for now and then.
            assert seen.share(now, 160.0, 220.0)[1] <= 0.01
    assert median(shares) <= 0.002


class UsedUp(MovingWindow):
    """A limit that other clients use up until `until_s`."""

    def __init__(self, rate: Rate, until_s: float) -> None:
        super().__init__(rate)
        self._until_s = until_s

    def wait_s(self, amount: int, now_s: float) -> float:
        return max(self._until_s - now_s, super().wait_s(amount, now_s))


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("rate", [PER_SECOND, PER_MINUTE], ids=str)
def test_a_limit_that_was_used_up_at_the_start_is_found(rate: Rate, is_told: bool) -> None:
    case = bench.Case(UsedUp(rate, 130.0), 1, 500.0, is_told=is_told)
    seen, search = drive(case)
    assert seen.calls[0][1], "the first call is refused"
    assert seen.share(rate, 300.0, 500.0)[0] >= bench.LEAST_USED, f"found {search.found}"
    assert search.found == rate


@pytest.mark.parametrize("server", SERVERS)
def test_a_limit_that_was_used_up_for_a_while_is_used_again(server: str) -> None:
    make = bench.SERVERS[server]
    changes = [(150.0, UsedUp(PER_SECOND, math.inf)), (180.0, make(PER_SECOND))]
    seen, search = drive(bench.Case(make(PER_SECOND), 1, 500.0, changes=changes))
    assert seen.share(PER_SECOND, 200.0, 500.0)[0] >= 0.93, f"found {search.found}"


class Shared(MovingWindow):
    """A limit that others use up for a moment now and then."""

    def __init__(self, rate: Rate, share: float) -> None:
        super().__init__(rate)
        self._share = share
        self._random = random.Random(1)

    def wait_s(self, amount: int, now_s: float) -> float:
        return 1.0 if self._random.random() < self._share else super().wait_s(amount, now_s)


class Overloading(RateSearch):
    """Gets each refusal as an overload, as of a server that answers 503 above its limit."""

    def answered(
        self,
        now_s: float,
        sent_s: float,
        is_limited: bool,
        retry_after_s: float | None = None,
        **given: Any,
    ) -> bool:
        return super().answered(now_s, sent_s, False, retry_after_s, is_overload=is_limited)


def test_an_overload_is_a_refusal() -> None:
    seen, search = drive(bench.Case(MovingWindow(PER_SECOND), 1, 300.0), Overloading)
    used, rejected = seen.share(PER_SECOND, 150.0, 300.0)
    assert used >= bench.LEAST_USED, f"found {search.found}"
    assert rejected <= 0.4, "if they do not count, 0.6 are refused"


def test_failures_at_any_rate_do_not_bring_the_rate_down() -> None:
    case = bench.Case(Shared(PER_SECOND, 0.1), 1, 300.0)
    assert drive(case, Overloading)[0].share(PER_SECOND, 150.0, 300.0)[0] >= 0.9


def test_refusals_that_others_cause_do_not_bring_the_rate_down() -> None:
    seen, _ = drive(bench.Case(Shared(PER_SECOND, 0.001), 1, 500.0))
    assert seen.share(PER_SECOND, 250.0, 500.0)[0] >= 0.85


def test_a_server_without_a_limit_gives_all_that_the_caller_can_use() -> None:
    case = bench.Case(bench.Unlimited(), 1, 20.0, slots=50, latency_s=(0.2, 0.2))
    seen, _ = drive(case)
    admitted, refused = seen.between(10.0, 20.0)
    assert refused == 0
    assert admitted >= 0.98 * 10.0 * 50 / 0.2


def test_nothing_is_concluded_while_there_is_little_to_do() -> None:
    def is_wanted(now_s: float) -> bool:
        return now_s >= 100.0 or now_s % 1 < 0.02

    seen, _ = drive(bench.Case(MovingWindow(PER_SECOND), 1, 400.0, is_wanted=is_wanted))
    used, rejected = seen.share(PER_SECOND, 200.0, 400.0)
    assert used >= bench.LEAST_USED
    assert rejected <= bench.MOST_REJECTED


def test_a_remembered_rate_needs_no_search() -> None:
    seen, _ = drive(bench.Case(MovingWindow(PER_MINUTE), 1, 300.0), start=PER_MINUTE)
    used, _ = seen.share(PER_MINUTE, 0.0, 300.0)
    assert used >= bench.LEAST_USED
    assert seen.between(0.0, 300.0)[1] <= 3


class Untold(RateSearch):
    """Does not hear when it may come back."""

    def answered(
        self, now_s: float, sent_s: float, is_limited: bool, retry_after_s: float | None = None
    ) -> bool:
        return super().answered(now_s, sent_s, is_limited)


class Hasty(RateSearch):
    """Takes each verdict for one on what is sent now."""

    def answered(
        self, now_s: float, sent_s: float, is_limited: bool, retry_after_s: float | None = None
    ) -> bool:
        return super().answered(now_s, now_s, is_limited, retry_after_s)


@pytest.mark.parametrize(("wrong", "is_told"), [(Untold, True), (Hasty, False)])
def test_a_wrong_search_is_noticed(wrong: Any, is_told: bool) -> None:
    """By the very cases in which the right one passes above."""
    with pytest.raises(AssertionError, match=r" (rejected|used), found "):
        check_bars(
            wrong, "fixed", PER_MINUTE, SHORT_S[PER_MINUTE] if is_told else 900.0, is_told=is_told
        )
