"""Enforces rate limits as providers do: with four algorithms, and several limits at once.

Nothing here waits, and the time is an argument, `now_s`, so that tests can set it. For a limit of N
requests or tokens, each of which is a hit, per W seconds:

| algorithm | a hit is admitted while                                                              |
|-----------|--------------------------------------------------------------------------------------|
| `fixed`   | the window's count is below N; the first hit after a window begins the next window   |
| `moving`  | the last W seconds contain fewer than N hits                                         |
| `counter` | floor(previous window's count * its share of the last W seconds) + this window's     |
|           | count is below N                                                                     |
| `bucket`  | the bucket holds enough; it refills at N per W seconds, up to N                      |

`fixed`, and the rounding down in `counter`, follow the Python package `limits`, on which slowapi
and flask-limiter are built. Windows of `counter` begin at whole multiples of W.

If answers are counted when they end, a count may exceed its limit. No request fits then until
the count is below the limit again.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from redline.limits.rule import Rate

# Added to the wait of a counter, because it still refuses at the exact end of the wait.
_STRICTLY_AFTER_S = 1e-6
# The kinds of limits, named as in Anthropic's headers. `tokens` is input and output together.
KINDS = ("requests", "tokens", "input-tokens", "output-tokens")
# Allows for the rounding error of a bucket that has refilled for exactly its reported wait.
_DROP = 1e-6


class Window(ABC):
    """One limit. `now_s` never decreases from call to call."""

    def __init__(self, rate: Rate) -> None:
        self._most, self._window_s = rate.count, rate.window_s
        self._count = 0

    def wait_s(self, amount: int, now_s: float) -> float:
        """Returns the seconds until `amount` fits: 0 for now, inf if it exceeds the limit."""
        if amount > self._most:
            return math.inf
        self._roll(now_s)
        return self._wait_s(amount, now_s)

    def take(self, amount: int, now_s: float) -> None:
        """Counts `amount`, even if it does not fit."""
        self._roll(now_s)
        self._count += amount

    def resize(self, rate: Rate, now_s: float) -> None:
        """Sets a new `rate` with the same window_s. Earlier counts remain."""
        self._most = rate.count

    def left(self, now_s: float) -> int:
        """Returns the largest amount that would fit now, 0 to N."""
        self._roll(now_s)
        return max(0, self._most - self._count)

    @abstractmethod
    def reset_s(self, now_s: float) -> float:
        """Returns the seconds until the whole limit is free again without further requests."""

    @abstractmethod
    def _roll(self, now_s: float) -> None:
        """Drops entries that no longer count."""

    @abstractmethod
    def _wait_s(self, amount: int, now_s: float) -> float:
        """Returns the wait in seconds for an amount of at most N; call `_roll` first."""


class FixedWindow(Window):
    """Admits at most N in a window, which lasts W seconds from its first hit."""

    _ends_s = -math.inf

    def _roll(self, now_s: float) -> None:
        if now_s >= self._ends_s:
            self._count = 0

    def _wait_s(self, amount: int, now_s: float) -> float:
        return 0.0 if self._count + amount <= self._most else self._ends_s - now_s

    def take(self, amount: int, now_s: float) -> None:
        super().take(amount, now_s)
        if now_s >= self._ends_s:
            self._ends_s = now_s + self._window_s

    def reset_s(self, now_s: float) -> float:
        return max(0.0, self._ends_s - now_s)


class MovingWindow(Window):
    """Admits at most N in any W seconds: a log keeps every hit for W seconds.

    The log holds at most N hits, plus an entry for each answer that ended in the last W seconds.
    """

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self._log: deque[tuple[float, int]] = deque()

    def _roll(self, now_s: float) -> None:
        while self._log and self._log[0][0] + self._window_s <= now_s:
            self._count -= self._log.popleft()[1]

    def _wait_s(self, amount: int, now_s: float) -> float:
        over = self._count + amount - self._most
        if over <= 0:
            return 0.0
        freed = itertools.accumulate(hit for _, hit in self._log)
        last = next(index for index, total in enumerate(freed) if total >= over)
        return self._log[last][0] + self._window_s - now_s

    def take(self, amount: int, now_s: float) -> None:
        super().take(amount, now_s)
        self._log.append((now_s, amount))

    def reset_s(self, now_s: float) -> float:
        self._roll(now_s)
        return self._log[-1][0] + self._window_s - now_s if self._log else 0.0


class SlidingCounter(Window):
    """Admits while this window's count plus a share of the previous one's is below N.

    That share is the part of the previous window that lies in the last W seconds.
    """

    _index = -1
    _previous = 0

    def _roll(self, now_s: float) -> None:
        index = math.floor(now_s / self._window_s)
        if index > self._index:
            self._previous = self._count if index == self._index + 1 else 0
            self._count = 0
            self._index = index

    def _since_s(self, now_s: float) -> float:
        """Returns the seconds since the current window began; call `_roll` first."""
        return now_s - self._index * self._window_s

    def left(self, now_s: float) -> int:
        self._roll(now_s)
        in_view = 1 - self._since_s(now_s) / self._window_s
        return max(0, self._most - self._count - math.floor(self._previous * in_view))

    def _wait_s(self, amount: int, now_s: float) -> float:
        if amount <= self.left(now_s):
            return 0.0
        window_s, spare = self._window_s, self._most - amount - self._count
        if spare >= 0:
            # floor(previous * in_view) <= spare once in_view is below (spare + 1) / previous.
            at_s = (1 - (spare + 1) / self._previous) * window_s
        else:
            # It fits only in the next window, where the current count is the previous one.
            at_s = window_s + max(0.0, 1 - (self._most - amount + 1) / self._count) * window_s
        return max(at_s - self._since_s(now_s), 0.0) + _STRICTLY_AFTER_S

    def reset_s(self, now_s: float) -> float:
        self._roll(now_s)
        windows = 2 if self._count else 1 if self._previous else 0
        return max(0.0, windows * self._window_s - self._since_s(now_s))


class TokenBucket(Window):
    """A bucket of N that starts full and refills steadily at N per W seconds."""

    _at_s = -math.inf

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self._level = float(rate.count)

    @property
    def _per_s(self) -> float:
        return self._most / self._window_s

    def _roll(self, now_s: float) -> None:
        if now_s > self._at_s:
            gained = (now_s - self._at_s) * self._per_s
            self._level = min(float(self._most), self._level + gained)
            self._at_s = now_s

    def _wait_s(self, amount: int, now_s: float) -> float:
        short = amount - self._level
        return short / self._per_s if short > _DROP else 0.0

    def take(self, amount: int, now_s: float) -> None:
        self._roll(now_s)
        self._level -= amount

    def resize(self, rate: Rate, now_s: float) -> None:
        """Keeps the level, but at most the new size, like Go's x/time/rate."""
        self._roll(now_s)
        self._level = min(float(rate.count), self._level)
        self._most = rate.count

    def left(self, now_s: float) -> int:
        self._roll(now_s)
        return max(0, math.floor(self._level + _DROP))

    def reset_s(self, now_s: float) -> float:
        self._roll(now_s)
        return (self._most - self._level) / self._per_s


_WINDOWS: dict[str, type[Window]] = {
    "fixed": FixedWindow,
    "moving": MovingWindow,
    "counter": SlidingCounter,
    "bucket": TokenBucket,
}


class Rejection(msgspec.Struct, frozen=True):
    """The limit that refused a request, and the time until the request would be admitted.

    what: the kind of the limit. used: the amount counted so far. asked: the amount of the
    request. wait_s: seconds until the request fits; inf if it exceeds the limit by itself.
    """

    what: str
    rate: Rate
    used: int
    asked: int
    wait_s: float

    @property
    def limit(self) -> str:
        """The limit's name in the statistics, such as `requests 2/1s`."""
        return f"{self.what} {self.rate}"


class Reading(msgspec.Struct, frozen=True):
    """A provider's report of one limit: its size, the amount left, seconds until a full reset."""

    what: str
    limit: int
    left: int
    reset_s: float


class Charge(msgspec.Struct, frozen=True, gc=False):
    """The amounts that one request is charged: requests (1 or 0), and input and output tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 1

    def amount(self, what: str) -> int:
        """Returns the part of the charge that a limit of the kind `what` counts."""
        if what == "requests":
            return self.requests
        if what == "tokens":
            return self.input_tokens + self.output_tokens
        return self.input_tokens if what == "input-tokens" else self.output_tokens


Rates = Mapping[str, Sequence[Rate]]


class Admission:
    """All limits of one account: a request is counted by all of them or by none.

    rates: the limits by kind, one of KINDS. algorithm: see the module's table. parked_until_s:
    monotonic; the caller must admit no request before this time.
    """

    def __init__(self, rates: Rates, algorithm: str = "fixed") -> None:
        self.parked_until_s = -math.inf
        self._make = _WINDOWS[algorithm]
        self._limits: list[tuple[str, Rate, Window]] = [
            (what, rate, self._make(rate)) for what in KINDS for rate in rates.get(what, ())
        ]

    def change(self, rates: Rates, now_s: float) -> None:
        """Replaces all limits of the kinds in `rates`; limits of other kinds stay.

        A limit with the same window_s as an earlier limit of its kind keeps that limit's count; if
        several have the same window_s, they are matched in order. Any other limit starts at zero.
        """
        found: list[tuple[str, Rate, Window]] = []
        for what in KINDS:
            old = [limit for limit in self._limits if limit[0] == what]
            if what not in rates:
                found += old
            for rate in rates.get(what, ()):
                for limit in old:
                    if limit[1].window_s == rate.window_s:
                        old.remove(limit)
                        window = limit[2]
                        window.resize(rate, now_s)
                        break
                else:
                    window = self._make(rate)
                found.append((what, rate, window))
        self._limits = found

    def park(self, until_s: float) -> None:
        """Sets `parked_until_s`, the time before which no request may be admitted."""
        self.parked_until_s = until_s

    def ask(self, charge: Charge, now_s: float) -> Rejection | None:
        """Counts the charge and returns None if all limits admit it.

        Otherwise counts nothing and returns the limit with the longest wait.
        """
        worst: Rejection | None = None
        for what, rate, window in self._limits:
            wait_s = window.wait_s(charge.amount(what), now_s)
            if wait_s > (0.0 if worst is None else worst.wait_s):
                used = rate.count - window.left(now_s)
                worst = Rejection(what, rate, used, charge.amount(what), wait_s)
        if worst is None:
            self.count(charge, now_s)
        return worst

    def count(self, charge: Charge, now_s: float) -> None:
        """Counts the charge, even if it does not fit."""
        for what, _, window in self._limits:
            if amount := charge.amount(what):
                window.take(amount, now_s)

    def readings(self, now_s: float) -> list[Reading]:
        """Returns at most one reading per kind, for the limit with the least left."""
        least: dict[str, Reading] = {}
        for what, rate, window in self._limits:
            left = window.left(now_s)
            if what not in least or left < least[what].left:
                least[what] = Reading(what, rate.count, left, window.reset_s(now_s))
        return list(least.values())
