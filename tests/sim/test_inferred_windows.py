"""A window that no header states is found from what the server counts, and the limit is used.

Virtual time: a client that always has work, and a server that keeps one limit.
"""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any

import pytest

from redline.limits import Cost, Limits, Rate
from redline.limits.rule import Rules
from redline.limits.server import Feedback, HeaderReader, retry_after_s
from redline.sim import Admission, Charge, limit_headers, retry_headers
from redline.testing import ManualClock

WALL_S = ManualClock().wall_s()
STYLES = ("openai", "azure", "anthropic", "envoy", "ietf", "slowapi")
ALGORITHMS = ("fixed", "moving", "counter", "bucket")
WINDOWS_S = (1.0, 2.0, 10.0, 60.0)
# A sliding-window counter is full again after two windows, so a round takes three.
ROUND, LEAST_S = 3, 40.0


class World:
    """A client with `rate="auto"` and a server, in discrete events."""

    def __init__(
        self,
        rate: Rate,
        algorithm: str,
        style: str,
        latency_s: float = 0.02,
        kind: str = "requests",
    ) -> None:
        self.rate, self._kind = rate, kind
        self.rules = Rules(Limits(rate="auto"))
        self.admitted: list[tuple[float, int]] = []
        self.rejected: list[float] = []
        self._style, self._latency_s = style, latency_s
        self._feedback = Feedback(self.rules)
        self._server = Admission({kind: [rate]}, algorithm)
        self._reader = HeaderReader()
        self._chance = random.Random(1)
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._due_s = self._parked_s = -1.0
        self._next = self._new_call()
        # The search for a rate begins so, and ends with the first headers.
        self.rules.set_rates("requests", [Rate(2, 1.0)], 0.0)
        self._at(0.0, self._pump)

    def run(self, until_s: float) -> World:
        while self._events and self._events[0][0] <= until_s:
            now_s, _, action, given = heapq.heappop(self._events)
            action(now_s, *given)
        return self

    def used(self, since_s: float, until_s: float) -> float:
        """The share of the limit that was admitted, of what the guard leaves of it."""
        admitted = sum(amount for at_s, amount in self.admitted if since_s <= at_s < until_s)
        return admitted * (self.rate.window_s + self.rules.guard_s) / (
            self.rate.count * (until_s - since_s)
        )  # fmt: skip

    def _new_call(self) -> Cost:
        return Cost(0 if self._kind == "requests" else self._chance.randint(50, 950))

    def _at(self, at_s: float, action: Any, *given: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), action, given))

    def _pump(self, now_s: float) -> None:
        while True:
            wait_s = max(self.rules.wait_s(self._next, now_s), self._parked_s - now_s)
            if wait_s > 0:
                if not now_s < self._due_s <= now_s + wait_s:
                    self._due_s = now_s + wait_s
                    self._at(self._due_s, self._pump)
                return
            cost, self._next = self._next, self._new_call()
            bookings = self.rules.book(cost, now_s)
            for booking in bookings:
                booking.window.sent(booking, now_s)
            arrives_s = now_s + self._chance.uniform(0, 0.002)
            self._at(arrives_s, self._arrived, cost, bookings, now_s)

    def _arrived(self, now_s: float, cost: Cost, bookings: Any, sent_s: float) -> None:
        rejection = self._server.ask(Charge(cost.input_tokens), now_s)
        if rejection is None:
            self.admitted.append((now_s, cost.input_tokens or 1))
        else:
            self.rejected.append(now_s)
        headers = limit_headers(self._style, self._server.readings(now_s), WALL_S + now_s)
        takes_s = 0.0
        if rejection is None:
            takes_s = self._chance.uniform(1, 1.5) * self._latency_s
        else:
            headers |= retry_headers(self._style, rejection.wait_s)
        is_limited = rejection is not None
        self._at(now_s + takes_s, self._answered, bookings, sent_s, headers, is_limited)

    def _answered(
        self, now_s: float, bookings: Any, sent_s: float, headers: Any, is_limited: bool
    ) -> None:
        rules, wall_s = self.rules, WALL_S + now_s
        rules.replied(bookings, now_s - sent_s, sent_s)
        searched = rules.searched
        self._feedback.heard(self._reader.read(headers, wall_s), bookings, now_s)
        if rules.is_searched:
            rules.end_search()
            rules.drop(searched)
        if is_limited:
            self._parked_s = now_s + (retry_after_s(headers, wall_s) or 0.0)
        self._feedback.answered(now_s, is_limited=is_limited)
        self._pump(now_s)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_limit_is_used_whatever_its_window(algorithm: str, style: str) -> None:
    for window_s in WINDOWS_S:
        rate = Rate(40, window_s)
        since_s = max(LEAST_S, ROUND * window_s)
        until_s = since_s + max(LEAST_S / 2, 2 * window_s)
        world = World(rate, algorithm, style).run(until_s)
        found = [str(line.stated) for line in world.rules.lines]
        assert world.used(since_s, until_s) >= 0.95, f"{rate} was taken for {found}"
        assert not world.rejected, f"{rate} was taken for {found}"


@pytest.mark.parametrize("rate", [Rate(60, 1.0), Rate(10, 1.0), Rate(30, 2.0)], ids=str)
@pytest.mark.parametrize("style", ["openai", "azure"])
def test_a_window_that_looks_like_a_bucket_of_a_minute_is_found(rate: Rate, style: str) -> None:
    world = World(rate, "fixed", style).run(30.0)
    assert [line.stated for line in world.rules.lines] == [rate]
    assert not world.rejected


@pytest.mark.parametrize("rate", [Rate(60, 60.0), Rate(500, 60.0), Rate(100, 3600.0)], ids=str)
@pytest.mark.parametrize("latency_s", [0.02, 5.0])
def test_a_bucket_is_not_taken_for_a_window(rate: Rate, latency_s: float) -> None:
    until_s = 2 * rate.window_s
    world = World(rate, "bucket", "openai", latency_s).run(until_s)
    assert [line.stated for line in world.rules.lines] == [rate]
    assert world.used(0.0, until_s) >= 0.95
    assert not world.rejected


def test_slow_answers_do_not_hide_the_window() -> None:
    world = World(Rate(40, 2.0), "moving", "openai", 2.0).run(90.0)
    assert world.used(60.0, 90.0) >= 0.9
    assert not world.rejected


@pytest.mark.parametrize(("count", "kind"), [(40, "requests"), (20_000, "tokens")])
def test_slow_answers_do_not_shorten_a_known_window(count: int, kind: str) -> None:
    rate = Rate(count, 10.0)
    world = World(rate, "fixed", "openai", 6.0, kind=kind).run(60.0)
    assert [line.stated for line in world.rules.lines] == [rate]
    assert not world.rejected


@pytest.mark.parametrize("style", ["openai", "anthropic"])
@pytest.mark.parametrize("rate", [Rate(40_000, 2.0), Rate(200_000, 60.0)], ids=str)
def test_the_window_of_a_token_limit_is_corrected(rate: Rate, style: str) -> None:
    # Calls differ in size, so the first rounds may measure too much.
    since_s = max(LEAST_S, 3 * ROUND * rate.window_s)
    until_s = since_s + max(LEAST_S / 2, 2 * rate.window_s)
    world = World(rate, "counter", style, 0.5, kind="tokens").run(until_s)
    assert world.used(since_s, until_s) >= 0.9
    assert not world.rejected
