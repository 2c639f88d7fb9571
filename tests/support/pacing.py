"""One window or budget driven in virtual time, and what a server makes of its sends."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redline.limits import Cost, Rate
from redline.sim import FixedWindow, MovingWindow, SlidingCounter, TokenBucket

SLACK_S = 1e-6  # float noise of sums of waits
_MOST_STEPS = 200_000


@dataclass(frozen=True)
class Ask:
    """One caller: when it comes, how much it wants, and what becomes of its booking.

    write_s: from the booking to its write, or to its release where `is_released`. used: what it
    is settled to `answer_s` after the write, None for no settling.
    """

    arrival_s: float = 0.0
    amount: int = 1
    write_s: float = 0.0
    is_released: bool = False
    used: int | None = None
    answer_s: float = 1.0


@dataclass
class Sent:
    """A write: its stamp and its amount, which settling changes."""

    at_s: float
    amount: int


@dataclass
class Driven:
    """What came of a run: the writes in order, and the window afterwards."""

    window: Any
    sends: list[Sent] = field(default_factory=list)

    @property
    def stamps(self) -> list[float]:
        return [send.at_s for send in self.sends]


def drive(window: Any, asks: Sequence[Ask], *, late_s: float | Iterable[float] = 0.0) -> Driven:
    """Grants `asks` in order as their time comes, as the limiter does.

    late_s: by how much each timer rings late; one number, or one for each timer in turn.
    """
    lates = (
        itertools.repeat(late_s) if isinstance(late_s, (int, float)) else itertools.cycle(late_s)
    )
    driven = Driven(window)
    events: list[tuple[float, int, Any]] = []
    numbers = itertools.count()
    queue = sorted(asks, key=lambda ask: ask.arrival_s)
    now_s, due_s, position = 0.0, math.inf, 0

    def at(when_s: float, action: Any) -> None:
        heapq.heappush(events, (when_s, next(numbers), action))

    def write(ask: Ask, booking: Any, when_s: float) -> None:
        if ask.is_released:
            window.release(booking, when_s)
            return
        window.sent(booking, when_s)
        send = Sent(when_s, ask.amount)
        driven.sends.append(send)
        if ask.used is not None:
            at(when_s + ask.answer_s, lambda _: settle(send, booking, ask.used))

    def settle(send: Sent, booking: Any, used: int | None) -> None:
        assert used is not None
        window.settle(booking, used)
        send.amount = used

    for _ in range(_MOST_STEPS):
        while events and events[0][0] <= now_s:
            when_s, _, action = heapq.heappop(events)
            action(when_s)
        next_s = events[0][0] if events else math.inf
        if position < len(queue):
            ask = queue[position]
            wait_s = max(ask.arrival_s - now_s, 0.0)
            due_s = math.inf if wait_s > 0 else due_s
            if wait_s == 0.0:
                wait_s = window.wait_s(ask.amount, now_s)
                if wait_s == 0.0:
                    booking = window.book(ask.amount, now_s, max(0.0, now_s - due_s))
                    at(now_s + ask.write_s, lambda t, a=ask, b=booking: write(a, b, t))
                    position += 1
                    continue
                due_s = now_s + wait_s
                wait_s += next(lates)
            next_s = min(next_s, now_s + wait_s)
        if next_s == math.inf:
            assert position == len(queue), "a caller waits for ever"
            return driven
        now_s = next_s
    raise AssertionError("the window keeps its callers waiting without end")


def most_in(sends: Sequence[Sent], span_s: float) -> int:
    """The largest sum of amounts within any `span_s`."""
    ordered = sorted(sends, key=lambda send: send.at_s)
    most = total = first = 0
    for send in ordered:
        total += send.amount
        while ordered[first].at_s <= send.at_s - span_s + SLACK_S:
            total -= ordered[first].amount
            first += 1
        most = max(most, total)
    return most


class SmallBucket:
    """The smallest bucket that `any` is made for: 1 + J N / W, J being the jitter it sees."""

    def __init__(self, rate: Rate, jitter_s: float) -> None:
        self.per_s = rate.count / rate.window_s
        self.level = self.most = 1 + jitter_s * self.per_s
        self.at_s = -math.inf

    def wait_s(self, amount: int, now_s: float) -> float:
        self.level = min(self.most, self.level + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        return max(0.0, amount - self.level) / self.per_s

    def take(self, amount: int, now_s: float) -> None:
        self.level -= amount


class AlignedWindow:
    """A fixed window on the clock's own multiples of W, as Redis counters with an epoch key."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._index = -1
        self._count = 0

    def wait_s(self, amount: int, now_s: float) -> float:
        self._roll(now_s)
        return 0.0 if self._count + amount <= self._rate.count else 1.0

    def take(self, amount: int, now_s: float) -> None:
        self._count += amount

    def _roll(self, now_s: float) -> None:
        index = math.floor(now_s / self._rate.window_s)
        if index != self._index:
            self._index, self._count = index, 0


SERVERS: dict[str, Any] = {
    "fixed": FixedWindow,
    "aligned": AlignedWindow,
    "moving": MovingWindow,
    "counter": SlidingCounter,
    "bucket": TokenBucket,
}
# Of these, those that count by the clock; the others begin with the first call.
_BY_THE_CLOCK = ("aligned", "counter")


def phases_of(kind: str, count: int = 12) -> list[float]:
    """The phases of a server's clock, in windows, that may make a difference to its count."""
    return [number / count for number in range(count)] if kind in _BY_THE_CLOCK else [0.0]


def rejections(
    server: Any, sends: Sequence[Sent], jitters_s: Iterable[float], phase_s: float = 0.0
) -> int:
    """How many sends the server turns away when each arrives its jitter after its stamp.

    phase_s: the server's clock at the client's zero.
    """
    arrivals = sorted(
        (send.at_s + jitter_s + phase_s, send.amount)
        for send, jitter_s in zip(sends, itertools.cycle(jitters_s))
    )
    rejected = 0
    for at_s, amount in arrivals:
        if server.wait_s(amount, at_s) > SLACK_S:
            rejected += 1
        else:
            server.take(amount, at_s)
    return rejected


# A law of times: seconds, drawn for call `number` that is written at `now_s`.
Law = Callable[[random.Random, float, int], float]


@dataclass
class Exchanged:
    """The writes in order, how late each came to the server, and the guard in the end."""

    sends: list[Sent]
    delays_s: list[float]
    guard_s: float


def exchange(
    budget: Any, calls: int, way: Law, answer: Law, chance: random.Random, lag_s: float = 0.0
) -> Exchanged:
    """`calls` calls that all wait from the start; each reply proves how late its call was.

    budget: a Budget. way: from the write to the server's limiter. answer: from there to the first
    byte of the reply. lag_s: by how much a timer rings late at most.
    """
    cost = Cost()
    found = Exchanged([], [], 0.0)
    replies: list[tuple[float, int, Any, float]] = []
    now_s, due_s = 0.0, math.inf
    while len(found.sends) < calls:
        wait_s = budget.wait_s(cost, now_s)
        if wait_s == 0:
            bookings = budget.book(cost, now_s, max(0.0, now_s - due_s))
            due_s = math.inf
            for booking in bookings:
                booking.window.sent(booking, now_s)
            number = len(found.sends)
            delay_s = way(chance, now_s, number)
            took_s = delay_s + answer(chance, now_s, number)
            heapq.heappush(replies, (now_s + took_s, number, bookings, took_s))
            found.sends.append(Sent(now_s, 1))
            found.delays_s.append(delay_s)
            continue
        due_s = now_s + wait_s
        rings_s = due_s + chance.uniform(0, lag_s)
        if replies and replies[0][0] <= rings_s:
            # It may have let the next one go earlier, or have to wait longer.
            at_s, _, bookings, took_s = heapq.heappop(replies)
            budget.replied(bookings, took_s, at_s - took_s)
            now_s = max(now_s, at_s)
        else:
            now_s = rings_s
    found.guard_s = budget.guard_s
    return found
