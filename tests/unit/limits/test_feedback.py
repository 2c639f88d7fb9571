"""What a server's answers change: limits that are told, others at the same limit, and 429s."""

from __future__ import annotations

import functools
import gc
import heapq
import itertools
import random
import weakref
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from redline.errors import OverLimit
from redline.limits import Cost, Limits, Rate
from redline.limits.rule import Rules
from redline.limits.server import Feedback, HeaderReader, Stated
from redline.sim import Admission, Charge, limit_headers
from redline.testing import ManualClock
from support.catching import assert_caught

WALL_S = ManualClock().wall_s()
LINES = list[tuple[str, str]]


def openai(limit: int, remaining: int, reset: str, kind: str = "requests") -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{kind}": str(limit),
        f"x-ratelimit-remaining-{kind}": str(remaining),
        f"x-ratelimit-reset-{kind}": reset,
    }


class Told:
    """A rules whose server tells headers, one call after the other."""

    def __init__(self, **limits: Any) -> None:
        self.rules = Rules(Limits(**limits))
        self.feedback = Feedback(self.rules)
        self.reader = HeaderReader()
        self.now_s = 0.0

    def tell(self, headers: dict[str, str]) -> bool:
        """Whether the headers in answer to one call, sent a second later, changed anything."""
        self.now_s += 1.0
        bookings = self.rules.book(Cost(10), self.now_s)
        for booking in bookings:
            booking.window.sent(booking, self.now_s)
        stated = self.reader.read(headers, WALL_S + self.now_s)
        return self.feedback.heard(stated, bookings, self.now_s)

    @property
    def lines(self) -> LINES:
        return sorted((line.kind, str(line.stated)) for line in self.rules.lines)


TOLD: dict[str, tuple[dict[str, str], LINES]] = {
    "openai, per minute": (
        {
            **openai(500, 499, "120ms"),
            **openai(200_000, 199_900, "30ms", "tokens"),
        },
        [("requests", "500/60s"), ("tokens", "200000/60s")],
    ),
    "openai, per day": (openai(200, 199, "7m12s"), [("requests", "200/86400s")]),
    "openai, a fixed minute": (openai(60, 59, "1m0s"), [("requests", "60/60s")]),
    "a bucket of an hour": (openai(100, 99, "36s"), [("requests", "100/3600s")]),
    "a fixed minute that a bucket of a day would fill": (
        openai(1440, 1439, "1m0s"),
        [("requests", "1440/60s")],
    ),
    "openai, nothing used yet": (openai(500, 500, "0s"), [("requests", "500/60s")]),
    "groq, minutes and days": (
        {**openai(14_400, 14_399, "6s"), **openai(18_000, 17_997, "10ms", "tokens")},
        [("requests", "14400/86400s"), ("tokens", "18000/60s")],
    ),
    "anthropic": (
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:02Z",
            "anthropic-ratelimit-input-tokens-limit": "40000",
            "anthropic-ratelimit-output-tokens-limit": "8000",
        },
        [("input_tokens", "40000/60s"), ("output_tokens", "8000/60s"), ("requests", "50/60s")],
    ),
    "azure, with its window": (
        {
            "x-ratelimit-limit-requests": "10",
            "x-ratelimit-remaining-requests": "9",
            "x-ratelimit-renewalperiod-requests": "10",
        },
        [("requests", "10/10s")],
    ),
    "ietf, with its window": (
        {"ratelimit": '"default";r=99;t=60', "ratelimit-policy": '"default";q=100;w=60'},
        [("requests", "100/60s")],
    ),
    "ietf, two policies": (
        {
            "ratelimit": '"second";r=9;t=1',
            "ratelimit-policy": '"second";q=10;w=1, "hour";q=1000;w=3600',
        },
        [("requests", "10/1s"), ("requests", "1000/3600s")],
    ),
    "ietf, without a window": (
        {"ratelimit": '"requests";r=59;t=1', "ratelimit-policy": '"requests";q=60'},
        [("requests", "60/60s")],
    ),
    "slowapi, per second": (
        {
            "x-ratelimit-limit": "20",
            "x-ratelimit-remaining": "19",
            "x-ratelimit-reset": str(WALL_S + 2),
        },
        [("requests", "20/1s")],
    ),
    "slowapi, per minute": (
        {
            "x-ratelimit-limit": "100",
            "x-ratelimit-remaining": "99",
            "x-ratelimit-reset": str(WALL_S + 61),
        },
        [("requests", "100/60s")],
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_limits_that_headers_tell_are_adopted_where_they_are_to_be_found(name: str) -> None:
    headers, lines = TOLD[name]
    told = Told(rate="auto")
    assert told.tell(headers)
    assert told.lines == lines
    assert not told.tell(headers), "the same headers again are no news"
    assert told.lines == lines


@pytest.mark.parametrize("name", TOLD)
def test_and_nowhere_else(name: str) -> None:
    headers, _ = TOLD[name]
    told = Told(requests="7/3s")
    assert not told.tell(headers)
    assert told.lines == [("requests", "7/3s")]


def test_a_limit_beside_the_stated_ones_is_adopted_and_they_stay() -> None:
    told = Told(rate="auto", requests="2/1s")
    assert told.tell(TOLD["anthropic"][0])
    assert told.lines[2:] == [("requests", "2/1s"), ("requests", "50/60s")]


def test_a_window_that_was_taken_for_a_short_one_is_corrected() -> None:
    told = Told(rate="auto")
    # The end of a minute, and the beginning of the next one.
    told.tell(openai(60, 3, "4s"))
    assert told.lines == [("requests", "60/10s")]
    assert told.tell(openai(60, 59, "1m0s"))
    assert told.lines == [("requests", "60/60s")]
    assert not told.tell(openai(60, 3, "4s"))


def test_a_minute_that_was_taken_for_a_bucket_of_an_hour_is_corrected_soon() -> None:
    told = Told(rate="auto")
    for second in range(24, 180):
        used = second % 60 - 21 if second < 60 else second % 60
        told.tell(openai(300, 300 - used, f"{60 - second % 60}s"))
        if second == 24:
            assert told.lines == [("requests", "300/3600s")]
    assert told.lines == [("requests", "300/60s")]


def test_an_hour_whose_end_looks_like_that_of_a_minute_is_not_taken_for_one() -> None:
    told = Told(rate="auto")
    # From twenty seconds before the end of an hour.
    for second in range(-20, 200):
        used = second % 3600 if second >= 0 else 900 + second
        told.tell(openai(1000, 1000 - used, f"{3600 - second % 3600}s"))
    assert told.lines == [("requests", "1000/3600s")]


@pytest.mark.parametrize("ahead_s", [-600, -55, 0, 55, 600])
def test_moments_are_those_of_the_servers_clock(ahead_s: int) -> None:
    """ahead_s: of the server's clock before ours."""
    told = Told(rate="auto")
    for second in range(1, 125):
        now_s = WALL_S + ahead_s + second
        told.tell({**moments(second, now_s), "date": formatdate(now_s, usegmt=True)})
    assert told.lines == [("requests", "300/60s")]


def test_moments_that_are_always_past_show_no_window() -> None:
    told = Told(rate="auto")
    for second in range(1, 125):
        told.tell(moments(second, WALL_S - 600 + second))
    assert told.lines == [("requests", "300/60s")]


def moments(second: int, now_s: float) -> dict[str, str]:
    """What a fixed window states that begins each minute and gets a call a second."""
    used = second % 60
    return {
        "x-ratelimit-limit": "300",
        "x-ratelimit-remaining": str(300 - used),
        "x-ratelimit-reset": str(round(1000 * (now_s + 60 - used))),
    }


@pytest.mark.parametrize(("is_auto", "raised"), [(True, "500/60s"), (False, "500/60s")])
def test_limits_that_change_take_effect_up_to_the_users_own(is_auto: bool, raised: str) -> None:
    told = Told(requests="500/60s", rate="auto" if is_auto else "stated")
    assert not told.tell(openai(500, 499, "120ms"))
    assert told.tell(openai(250, 249, "240ms"))
    assert told.lines == [("requests", "250/60s")]
    assert told.rules.most("requests") == 500
    told.tell(openai(900, 899, "66ms"))
    assert told.lines == [("requests", raised)]


@pytest.mark.parametrize("limits", [{"tokens": "20k/1s"}, {"rate": "auto"}])
def test_a_count_in_headers_refuses_no_call_that_an_earlier_one_allows(limits: Any) -> None:
    """Another model at the endpoint has a lower limit, and its headers name no model."""
    told = Told(**limits)
    told.tell(openai(20_000, 19_000, "1s", "tokens"))
    assert told.tell(openai(1000, 900, "1s", "tokens"))
    assert told.rules.lines[0].stated.count == 1000
    told.rules.check(Cost(3000))
    assert told.rules.wait_s(Cost(3000), told.now_s + 300) == 0
    with pytest.raises(OverLimit, match="limit of 20000/"):
        told.rules.check(Cost(20_001))


SEVERAL: dict[str, tuple[dict[str, str], str, LINES]] = {
    "envoy": (
        {"x-ratelimit-limit": '10, 10;w=60;name="user", 1000;w=60;name="org"'},
        '1000;w=60;name="org", 20;w=60;name="user"',
        [("requests", "10/60s"), ("requests", "1000/60s")],
    ),
    "ietf": (
        {"ratelimit-policy": '"user";q=10;w=60, "org";q=1000;w=60'},
        '"org";q=1000;w=60, "user";q=20;w=60',
        [("requests", "10/60s"), ("requests", "1000/60s")],
    ),
    "openai, without a window": (
        {"x-ratelimit-limit-requests": "1000", "x-ratelimit-limit-project-requests": "10"},
        "20",
        [("requests", "10/60s"), ("requests", "1000/60s")],
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_limits_of_one_kind_and_window_hold_beside_each_other(name: str) -> None:
    headers, changed, lines = SEVERAL[name]
    told = Told(rate="auto")
    assert told.tell(headers)
    assert told.lines == sorted(lines)
    assert not told.tell(headers)
    # The lower one is raised, in another order.
    header = [*headers][-1]
    assert told.tell({header: changed, **{key: headers[key] for key in [*headers][:-1]}})
    assert told.lines == sorted([("requests", "20/60s"), ("requests", "1000/60s")])


def test_one_of_several_limits_that_changes_alone_is_found_by_its_name() -> None:
    told = Told(rate="auto")
    told.tell({"ratelimit-policy": '"user";q=10;w=60, "org";q=1000;w=60'})
    assert told.tell({"ratelimit-policy": '"org";q=800;w=60'})
    assert told.lines == [("requests", "10/60s"), ("requests", "800/60s")]


@pytest.mark.parametrize("policy", ['"user";q=10;w=60', '"org";q=1000;w=60'])
def test_of_several_limits_within_the_users_own_the_strictest_counts(policy: str) -> None:
    told = Told(requests="100/60s")
    for _ in range(3):
        told.tell({"ratelimit-policy": f'{policy}, "user";q=10;w=60, "org";q=1000;w=60'})
        assert told.lines == [("requests", "10/60s")]


def test_what_was_sent_before_a_change_still_counts() -> None:
    told = Told(requests="8/60s", guard_s=0.0, profile="moving")
    for _ in range(4):
        told.tell(openai(8, 4, "1m0s"))
    assert told.rules.wait_s(Cost(), told.now_s) <= 0.05
    told.tell(openai(4, 0, "1m0s"))
    # Five are out: it takes until the second of them has left the window.
    assert told.rules.wait_s(Cost(), told.now_s) == pytest.approx(57, abs=0.1)


ANOTHER: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "per minute, of a user who states a second": (
        {"requests": "2/1s"},
        openai(500, 100, "48s"),
    ),
    "a lower count, without a window": ({"requests": "600/60s"}, openai(300, 299, "200ms")),
    "with a window, of another length": (
        {"requests": "60/6s"},
        {
            "anthropic-ratelimit-requests-limit": "60",
            "anthropic-ratelimit-requests-remaining": "0",
        },
    ),
    "a slice of a second of a minute's limit": (
        {"requests": "600/60s"},
        {
            "x-ratelimit-limit-requests": "10",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-renewalperiod-requests": "1",
        },
    ),
    "of tokens, where only requests are stated": (
        {"requests": "2/1s"},
        openai(2, 0, "1m0s", "tokens"),
    ),
    "-1, which is unknown": (
        {"requests": "2/1s"},
        {"x-ratelimit-limit-requests": "-1", "x-ratelimit-remaining-requests": "-1"},
    ),
    "0, which is unenforced": (
        {"requests": "2/1s"},
        {"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0"},
    ),
    "no number": (
        {"requests": "2/1s"},
        {"x-ratelimit-limit-requests": "many", "x-ratelimit-remaining-requests": "0"},
    ),
    "no limit": ({"requests": "2/1s"}, {"x-ratelimit-remaining-requests": "0"}),
    "more left than there is": ({"requests": "2/1s"}, openai(2, 900, "1s")),
}


@pytest.mark.parametrize("name", ANOTHER)
def test_headers_that_speak_of_something_else_change_nothing(name: str) -> None:
    limits, headers = ANOTHER[name]
    told = Told(**limits)
    stated = told.lines
    for _ in range(200):
        assert not told.tell(headers)
    assert told.lines == stated
    assert told.rules.share == 1


def test_nonsense_is_not_adopted_and_does_not_fill_the_memory() -> None:
    told = Told(rate="auto")
    for name in ("-1, which is unknown", "0, which is unenforced", "no number", "no limit"):
        assert not told.tell(ANOTHER[name][1])
    assert told.lines == []
    for window_s in range(1, 200):
        told.tell({"ratelimit-policy": f'"each time another";q=5000;w={window_s}'})
    assert len(told.lines) <= 8


def test_a_limit_that_is_dropped_leaves_the_memory() -> None:
    told = Told(rate="auto")
    for _ in range(3):
        told.tell(openai(60, 3, "4s"))
    dropped = weakref.ref(told.rules.lines[0].window)
    told.rules.set_rates("requests", [], told.now_s)
    gc.collect()
    assert dropped() is None


# One client at full speed, and whoever else there is, in discrete events.


class World:
    """A server, one client that always has work, and others who ask steadily for `others` of it.

    told: headers are written when a call is let in, or with its answer.
    """

    def __init__(
        self,
        rate: Rate,
        algorithm: str,
        *,
        feedback: Any = Feedback,
        told: str = "admission",
        jitter_s: float = 0.05,
        latency_s: tuple[float, float] = (0.1, 0.5),
        others: float = 0.0,
        faults: float = 0.0,
        in_flight: int = 1000,
        style: str = "openai",
        **limits: Any,
    ) -> None:
        self.rate = rate
        self.rules = Rules(Limits(requests=rate, **limits))
        self.feedback = feedback(self.rules) if feedback is not None else None
        self.server = Admission({"requests": [rate]}, algorithm)
        self.others = others
        self.faults = faults
        self.paused_until_s = 0.0
        self.sent: list[float] = []
        self.admitted: list[float] = []
        self.rejected: list[float] = []
        self._chance = random.Random(1)
        self._reader = HeaderReader()
        self._told, self._style = told, style
        self._jitter_s, self._latency_s = jitter_s, latency_s
        self._in_flight, self._most_in_flight = 0, in_flight
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._due_s = -1.0
        self._at(0.0, self._pump)
        if others:
            self._at(0.0, self._somebody_else)

    def run(self, until_s: float) -> World:
        while self._events and self._events[0][0] <= until_s:
            now_s, _, action, given = heapq.heappop(self._events)
            action(now_s, *given)
        return self

    def used(self, since_s: float, until_s: float) -> float:
        """The share of the limit that the client was admitted for between these times."""
        admitted = sum(since_s <= at_s < until_s for at_s in self.admitted)
        return admitted / (self.rate.count * (until_s - since_s) / self.rate.window_s)

    def _at(self, at_s: float, action: Any, *given: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), action, given))

    def _pump(self, now_s: float) -> None:
        while self._in_flight < self._most_in_flight:
            wait_s = max(self.rules.wait_s(Cost(), now_s), self.paused_until_s - now_s)
            if wait_s > 0:
                if not now_s < self._due_s <= now_s + wait_s:
                    self._due_s = now_s + wait_s
                    self._at(self._due_s, self._pump)
                return
            bookings = self.rules.book(Cost(), now_s)
            for booking in bookings:
                booking.window.sent(booking, now_s)
            self.sent.append(now_s)
            self._in_flight += 1
            arrives_s = now_s + self._chance.uniform(0, self._jitter_s)
            self._at(arrives_s, self._arrived, bookings)

    def _arrived(self, now_s: float, bookings: Any) -> None:
        if self._chance.random() < self.faults:
            self._at(now_s, self._answered, bookings, {}, True)
            return
        is_limited = self.server.ask(Charge(), now_s) is not None
        (self.rejected if is_limited else self.admitted).append(now_s)
        takes_s = 0.0 if is_limited else self._chance.uniform(*self._latency_s)
        headers = self._headers(now_s) if is_limited or self._told == "admission" else None
        self._at(now_s + takes_s, self._answered, bookings, headers, is_limited)

    def _headers(self, now_s: float) -> dict[str, str]:
        return limit_headers(self._style, self.server.readings(now_s), WALL_S + now_s)

    def _answered(self, now_s: float, bookings: Any, headers: Any, is_limited: bool) -> None:
        self._in_flight -= 1
        if self.feedback is not None:
            headers = self._headers(now_s) if headers is None else headers
            stated = self._reader.read(headers, WALL_S + now_s)
            if stated:
                self.feedback.heard(stated, bookings, now_s)
            self.feedback.answered(now_s, is_limited=is_limited)
        self._pump(now_s)

    def _somebody_else(self, now_s: float) -> None:
        self.server.ask(Charge(), now_s)
        if self.others:
            gap_s = self.rate.window_s / (self.rate.count * self.others)
            self._at(now_s + self._chance.uniform(0.5, 1.5) * gap_s, self._somebody_else)


ALONE = [
    # Bursts, and answers that take as long as a window.
    (Rate(20, 1.0), "moving", {"profile": "moving", "latency_s": (0.1, 0.1), "told": "answer"}),
    (Rate(20, 1.0), "fixed", {"profile": "fixed", "latency_s": (0.1, 0.1), "told": "answer"}),
    (Rate(60, 6.0), "fixed", {"latency_s": (0.1, 5.0), "told": "answer"}),
    (Rate(60, 6.0), "counter", {"latency_s": (0.1, 5.0), "told": "answer"}),
    (Rate(60, 6.0), "moving", {"profile": "fixed", "latency_s": (5.0, 5.0)}),
    (Rate(60, 6.0), "bucket", {"latency_s": (0.1, 5.0), "in_flight": 25}),
    (Rate(60, 6.0), "moving", {"headroom": 0.5, "style": "ietf"}),
    (Rate(300, 60.0), "fixed", {"latency_s": (0.5, 5.0), "told": "answer"}),
    (Rate(300, 60.0), "moving", {"style": "anthropic"}),
    # Hundreds in flight that overtake each other.
    (Rate(200, 1.0), "fixed", {"profile": "fixed", "latency_s": (0.1, 5.0), "told": "answer"}),
    (Rate(200, 1.0), "moving", {"latency_s": (0.1, 5.0), "told": "answer"}),
    (Rate(200, 1.0), "moving", {"profile": "moving", "latency_s": (0.1, 0.1)}),
    (Rate(200, 1.0), "counter", {"latency_s": (1.0, 5.0)}),
    (Rate(200, 1.0), "bucket", {"told": "answer"}),
    (Rate(200, 1.0), "bucket", {"profile": "bucket", "latency_s": (0.1, 5.0)}),
]


@functools.cache
def unsteered(number: int, until_s: float) -> int:
    rate, algorithm, given = ALONE[number]
    return len(World(rate, algorithm, feedback=None, **given).run(until_s).sent)


@functools.cache
def check_alone(feedback: Any) -> None:
    for number, (rate, algorithm, given) in enumerate(ALONE):
        until_s = 4 * rate.window_s if rate.window_s > 10 else 10 * rate.window_s
        without = unsteered(number, until_s)
        world = World(rate, algorithm, feedback=feedback, **given).run(until_s)
        assert len(world.sent) >= 0.99 * without, (rate, algorithm, given)


def test_who_is_alone_at_full_speed_sees_nobody_else() -> None:
    check_alone(Feedback)


@pytest.mark.parametrize("algorithm", ["fixed", "moving", "counter", "bucket"])
def test_a_client_that_paused_does_not_take_itself_for_another(algorithm: str) -> None:
    world = World(Rate(60, 6.0), algorithm).run(16.0)
    world.paused_until_s = 19.0
    world.run(60.0)
    assert world.used(19.0, 60.0) > 0.95


OTHERS = [
    (algorithm, told) for algorithm in ("fixed", "moving", "counter", "bucket")
    for told in ("admission", "answer")
]  # fmt: skip


@functools.cache
def check_others(feedback: Any) -> None:
    rate = Rate(60, 6.0)
    for algorithm, told in OTHERS:
        where = f"{algorithm}, told with the {told}"
        world = World(rate, algorithm, feedback=feedback, others=0.3, told=told).run(120.0)
        late = sum(at_s > 30 for at_s in world.rejected)
        assert late <= 0.02 * len(world.sent), where
        assert world.used(30.0, 120.0) > 0.85 * 0.7, where
        # They go away, and all is used again.
        world.others = 0.0
        world.run(240.0)
        assert world.used(160.0, 240.0) > 0.95, where


def test_others_are_yielded_to_and_what_they_leave_is_used_again() -> None:
    check_others(Feedback)


@pytest.mark.parametrize("algorithm", ["fixed", "counter"])
def test_who_sends_less_because_of_429s_still_notices_others(algorithm: str) -> None:
    world = World(Rate(300, 6.0), algorithm, others=0.3).run(60.0)
    assert world.rejected
    assert max(world.rejected) < 2 * world.rate.window_s


def test_what_others_took_of_a_bucket_once_holds_nothing_back() -> None:
    world = World(Rate(1000, 3600.0), "bucket")
    for _ in range(400):
        world.server.ask(Charge(), 0.0)
    world.run(3600.0)
    assert not world.rejected
    assert world.used(0.0, 3600.0) > 0.97


def test_half_of_a_bucket_is_kept_for_what_others_go_on_taking() -> None:
    world = World(Rate(300, 60.0), "bucket", others=0.5).run(600.0)
    assert not world.rejected
    assert world.used(240.0, 600.0) > 0.95 * 0.5


def test_what_headroom_leaves_free_is_theirs() -> None:
    for algorithm in ("fixed", "moving", "counter", "bucket"):
        world = World(Rate(60, 6.0), algorithm, others=0.35, headroom=0.6).run(120.0)
        assert world.used(30.0, 120.0) > 0.95 * 0.6, algorithm


@functools.cache
def check_random_429s(feedback: Any) -> None:
    rate = Rate(50, 1.0)
    whole = World(rate, "fixed", feedback=feedback).run(100.0)
    some = World(rate, "fixed", feedback=feedback, faults=0.007).run(100.0)
    assert len(some.sent) >= 0.98 * len(whole.sent)
    many = World(rate, "fixed", feedback=feedback, faults=0.3)
    # A tenth is kept: 429s do not have to come of our number.
    assert 0.05 <= many.run(60.0).used(20.0, 60.0) <= 0.5
    many.faults = 0.0
    assert many.run(120.0).used(100.0, 120.0) > 0.9


def test_a_few_429s_at_random_do_not_slow_a_run_and_many_do_until_they_end() -> None:
    check_random_429s(Feedback)


def check_a_wrong_limit(feedback: Any) -> None:
    # The user states twice what there is, and no header tells.
    world = World(Rate(60, 6.0), "moving", feedback=feedback, style="none")
    world.server.change({"requests": [Rate(30, 6.0)]}, 0.0)
    world.run(180.0)
    late = [at_s for at_s in world.rejected if at_s > 60]
    assert len(late) <= 0.04 * sum(at_s > 60 for at_s in world.admitted)
    assert world.used(60.0, 180.0) > 0.85 * 0.5


def test_where_nothing_is_told_429s_alone_find_what_there_is() -> None:
    check_a_wrong_limit(Feedback)


def answers(feedback: Feedback, now_s: float, count: int, limited: int) -> float:
    """`count` answers within a second of which the first `limited` are 429s; the time after it."""
    for number in range(count):
        feedback.answered(now_s + number / count, is_limited=number < limited)
    return now_s + 1.0


def test_a_few_429s_again_double_the_guard_once() -> None:
    rules = Rules(Limits(requests="100/1s"))
    feedback = Feedback(rules)
    begun_s = rules.guard_s
    now_s = answers(feedback, 0.0, 101, 6)
    assert rules.guard_s == begun_s, "once is chance"
    now_s = answers(feedback, now_s, 101, 6)
    now_s = answers(feedback, now_s, 101, 0)
    assert begun_s * 1.8 < rules.guard_s < begun_s * 2.2
    assert rules.share == 1
    longer_s = rules.guard_s
    for _ in range(6):
        now_s = answers(feedback, now_s, 101, 6)
    assert rules.guard_s == longer_s
    assert rules.share < 0.9


def test_a_flood_of_429s_is_answered_at_once_and_once_a_window() -> None:
    rules = Rules(Limits(requests="600/60s"))
    feedback = Feedback(rules)
    for number in range(40):
        feedback.answered(number / 10, is_limited=number % 2 == 0)
    # Half of them were rejected: so much is cut, and no more for a window.
    assert 0.4 < rules.share < 0.6
    assert rules.guard_s == Rules(Limits(requests="600/60s")).guard_s


def test_the_whole_limit_is_used_again_soon_after_a_block() -> None:
    rules = Rules(Limits(requests="100/1s"))
    feedback, now_s = Feedback(rules), 0.0
    for _ in range(3):
        now_s = answers(feedback, now_s, 60, 60)
    assert rules.share < 0.1
    # The end of the block lies within the window.
    now_s = answers(feedback, now_s, 30, 5)
    answers(feedback, now_s, 101, 0)
    assert rules.share == 1


def test_a_limit_that_is_far_too_high_is_taken_for_a_block_only_once() -> None:
    rules = Rules(Limits(requests="100/1s"))
    feedback, now_s = Feedback(rules), 0.0
    for _ in range(2):
        now_s = answers(feedback, now_s, 101, 91)
        for _ in range(3):
            now_s = answers(feedback, now_s, 30, 0)
    assert rules.share < 0.2


def test_limits_of_tokens_alone_are_watched_for_429s_too() -> None:
    rules = Rules(Limits(tokens="100k/1s"))
    feedback = Feedback(rules)
    now_s = answers(feedback, 0.0, 101, 50)
    answers(feedback, now_s, 101, 50)
    assert rules.share < 0.7


def test_without_limits_429s_change_nothing() -> None:
    rules = Rules(Limits())
    assert not Feedback(rules).answered(0.0, is_limited=True)
    assert not Feedback(rules).heard((Stated("requests", 9, 0, 1.0, 1.0),), [], 0.0)
    assert rules.lines == []


def test_a_limit_that_others_crowd_does_not_cut_one_that_they_leave() -> None:
    rules = Rules(Limits(requests="60/6s", tokens="1000/6s", guard_s=0.0))
    steered = Feedback(rules)
    now_s = 0.0
    while now_s < 60:
        bookings = rules.book(Cost(4), now_s)
        for booking in bookings:
            booking.window.sent(booking, now_s)
        ours = rules.lines[1].window.used(now_s)
        steered.heard((Stated("tokens", 1000, max(0, 400 - ours)),), bookings, now_s + 0.01)
        now_s += max(0.01, rules.wait_s(Cost(4), now_s))
    # Others use most of the tokens, and 240 of the 400 left are all that the requests allow.
    assert rules.share > 0.9


class Deaf(Feedback):
    """Headers say nothing to it."""

    def heard(self, stated: Any, bookings: Any, now_s: float) -> bool:
        return False


class Suspicious(Feedback):
    """Takes a third of the limit for used by others, whatever the headers say."""

    def heard(self, stated: Any, bookings: Any, now_s: float) -> bool:
        fewer = [
            msgspec.structs.replace(each, remaining=max(0, each.remaining - each.limit // 3))
            for each in stated
        ]
        return super().heard(fewer, bookings, now_s)


class Unmoved(Feedback):
    """429s change nothing."""

    def answered(self, now_s: float, *, is_limited: bool) -> bool:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (check_others, Deaf),
        (check_alone, Suspicious),
        (check_random_429s, Unmoved),
        (check_a_wrong_limit, Unmoved),
    ],
)
def test_a_wrong_feedback_is_noticed(check: Any, wrong: Any) -> None:
    assert_caught(check, Feedback, wrong)
