"""Applies the limits of one tenant: a call starts at once or is refused; it never waits.

  limit             counts                                     is freed
  requests, tokens  amounts admitted in the last window        as the window passes
  concurrency       calls that have started and not ended      when a call ends
  money per day     money spent and reserved on this day, UTC  at the end of the day

When a call starts, an estimate of its tokens and money is reserved; when the call ends, it is
settled. An unused amount is given back. An amount beyond the estimate counts once it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from redline.calls.cost import dollars_text
from redline.clock import SYSTEM, Clock
from redline.limits import Rate
from redline.limits.rule import limit_text
from redline.process import counted
from redline.serve.http import Refusal, come_back
from redline.serve.keys.day_money import DAY_S
from redline.serve.keys.limit_store import OWN, CountedWindow, LimitStore
from redline.serve.keys.tenant_settings import TenantSettings
from redline.serve.keys.window import GiveBack
from redline.structs import mutable

# The mean duration of calls is taken over about this many recent calls.
_RECENT_CALLS = 8
_FIRST_CALL_S = 1.0
# Calls that yield, such as lines of batches, leave a tenth of each rate and of the concurrency
# free, and at least 1, unless the call itself needs it.
_SPARED_PART = 10
# More than any number of tokens or picodollars.
_NO_LIMIT = 2**63
_OVER_LIMIT = "over_limit"


class Refused(msgspec.Struct, frozen=True):
    """The reason why a call may not start. what: the reason as a sentence.

    retry_after_s: seconds until the call may start; inf if it never may. code: the error code for
    an OpenAI client.
    """

    what: str
    retry_after_s: float
    code: str = "rate_limit_exceeded"

    @property
    def is_too_large(self) -> bool:
        """Whether the call by itself is larger than a limit."""
        return self.code == _OVER_LIMIT

    def refusal(self) -> Refusal:
        """Returns the response: 429 with Retry-After, or 400 if no retry can succeed.

        If the rest of the day's money is too little, the response also makes OpenAI's SDK raise at
        once.
        """
        if self.retry_after_s == math.inf:
            return Refusal(self.what, code=self.code)
        headers = come_back(self.retry_after_s)
        if self.code == "insufficient_quota":
            # Any client would have given up before the end of the day.
            headers["x-should-retry"] = "false"
        return Refusal(self.what, status=429, code=self.code, headers=headers)


@mutable
class Started(msgspec.Struct, eq=False):
    """A call that has started. It ends once: by `settle`, `cancel` or the end of a `with` block."""

    _limits: TenantLimits
    _of_requests: list[GiveBack]
    _of_tokens: list[GiveBack]
    _since_s: float
    _tokens: int
    _picodollars: int
    _day: int
    _is_over: bool = False

    def settle(
        self, now_s: float, tokens: int | None = None, picodollars: int | None = None
    ) -> None:
        """Settles the call at its usage; None for an amount settles it at its reservation."""
        if self._is_over:
            return
        self._is_over = True
        limits = self._limits
        cost = self._picodollars if picodollars is None else picodollars
        with limits.alone:
            limits.ended(now_s - self._since_s)
            if tokens is not None:
                if tokens > self._tokens:
                    for window in limits.of_tokens:
                        window.take(tokens - self._tokens, now_s)
                elif tokens < self._tokens:
                    for give_back in self._of_tokens:
                        give_back(self._tokens - tokens)
            limits.money.settle(self._day, self._picodollars, cost)

    def cancel(self) -> None:
        """Ends a call that was not sent, so that it does not count at all."""
        if self._is_over:
            return
        self._is_over = True
        limits = self._limits
        with limits.alone:
            limits.flights.add(-1)
            for give_back in self._of_requests:
                give_back(1)
            for give_back in self._of_tokens:
                give_back(self._tokens)
            limits.money.settle(self._day, self._picodollars, 0)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        """Settles the call at its reservation, unless it has already ended."""
        self.settle(self._limits.now_s())


class TenantLimits:
    """The limits of one tenant, and the usage that counts against them; for one event loop.

    store: where usage is counted. alone: a lock to hold during every change; it excludes other
    processes if they share the store and any limit is set. of_tokens: the windows that count
    tokens.
    """

    def __init__(
        self,
        tenant: str,
        settings: TenantSettings,
        clock: Clock = SYSTEM,
        store: LimitStore = OWN,
    ) -> None:
        self._tenant = tenant
        self._store = store
        self.now_s = clock.now_s
        self._wall_s = clock.wall_s
        self._call_s = _FIRST_CALL_S
        self.flights = store.flights(tenant)
        self.money = store.money(tenant)
        self._requests: tuple[CountedWindow, ...] = ()
        self.of_tokens: tuple[CountedWindow, ...] = ()
        self.reshape(settings)

    @property
    def most(self) -> tuple[int, int]:
        """The most tokens and the most picodollars that a single call may have."""
        tokens = min((window.rate.count for window in self.of_tokens), default=_NO_LIMIT)
        return tokens, _NO_LIMIT if self._allowance is None else self._allowance

    @property
    def in_flight(self) -> int:
        """The number of calls that have started and not ended."""
        return self.flights.count

    def reshape(self, settings: TenantSettings) -> None:
        """Replaces the limits. Calls that have started still count."""
        self._most = settings.concurrency
        self._requests = self._windows("requests", settings.requests, self._requests)
        self.of_tokens = self._windows("tokens", settings.tokens, self.of_tokens)
        self._allowance = settings.picodollars_per_day
        limits = (settings.requests, settings.tokens, self._most, self._allowance)
        self.alone = self._store.alone if any(limits) else OWN.alone

    def try_start(
        self,
        now_s: float,
        tokens: int = 0,
        picodollars: int | None = 0,
        *,
        yields: bool = False,
    ) -> Started | Refused:
        """Starts a call of this size, or returns the refusal with the longest wait.

        now_s: monotonic, never decreasing. tokens: of input and output together. picodollars: None
        if no price is known. yields: whether the call leaves a part of the rates and of the
        concurrency free for calls that do not yield. A refused call counts against no limit.
        """
        money = self.money
        cost = picodollars or 0
        with self.alone:
            # The day never goes back, so setting the clock back does not restore a day's money.
            day = max(int(self._wall_s() // DAY_S), money.day)
            if day != money.day:
                money.begin(day)
            most = self._most
            has_room = most is None or self.flights.count < most - _spared(most, 1, yields)
            for window in self._requests:
                has_room = window.has_room(_wanted(window, 1, yields), now_s) and has_room
            for window in self.of_tokens:
                has_room = window.has_room(_wanted(window, tokens, yields), now_s) and has_room
            if self._allowance is not None:
                has_room = has_room and self._can_pay(picodollars)
            if not has_room:
                return self._refused(now_s, tokens, picodollars, yields)
            self.flights.add(1)
            money.reserve(cost)
            of_requests = [window.take(1, now_s) for window in self._requests]
            of_tokens = [window.take(tokens, now_s) for window in self.of_tokens]
        return Started(self, of_requests, of_tokens, now_s, tokens, cost, day)

    def ended(self, took_s: float) -> None:
        """Counts the end of a call that took this many seconds."""
        self.flights.add(-1)
        self._call_s += (took_s - self._call_s) / _RECENT_CALLS

    def _refused(self, now_s: float, tokens: int, picodollars: int | None, yields: bool) -> Refused:
        reasons = [
            *self._window_refusals("requests", self._requests, 1, now_s, yields),
            *self._window_refusals("tokens", self.of_tokens, tokens, now_s, yields),
            *self._money_refusals(picodollars),
        ]
        most = self._most
        if most is not None and self.in_flight >= most - _spared(most, 1, yields):
            reasons.append(
                self._because(
                    f"it has {counted(most, 'call')} in flight, the most allowed",
                    self._call_s / most,
                )
            )
        return max(reasons, key=lambda reason: reason.retry_after_s)

    def _window_refusals(
        self,
        kind: str,
        windows: Iterable[CountedWindow],
        amount: int,
        now_s: float,
        yields: bool,
    ) -> Iterable[Refused]:
        for window in windows:
            wait_s = window.wait_s(_wanted(window, amount, yields), now_s)
            limit = limit_text(kind, window.rate)
            if wait_s == math.inf:
                yield self._because(
                    f"the call may use {amount:,} {kind}, more than the limit of {limit} allows",
                    wait_s,
                    _OVER_LIMIT,
                )
            elif wait_s > 0:
                yield self._because(f"it has reached its limit of {limit}", wait_s)

    def _money_refusals(self, picodollars: int | None) -> Iterable[Refused]:
        money, allowance = self.money, self._allowance
        if allowance is None or self._can_pay(picodollars):
            return
        limit = f"{dollars_text(allowance)} a day"
        if picodollars is None:
            what = f"its spending is limited to {limit}, and the price of the model is not known"
            yield self._because(what, math.inf, "unpriced")
        elif picodollars > allowance:
            cost = dollars_text(picodollars)
            what = f"the call may cost {cost}, more than the limit of {limit}"
            yield self._because(what, math.inf, _OVER_LIMIT)
        elif money.spent + money.others + picodollars <= allowance:
            what = f"its calls in flight may use up the rest of its limit of {limit}"
            yield self._because(what, self._call_s / max(1, self.in_flight))
        else:
            wait_s = (money.day + 1) * DAY_S - self._wall_s()
            what = f"the rest of its limit of {limit} (UTC) does not cover the call"
            yield self._because(what, max(0.0, wait_s), "insufficient_quota")

    def _can_pay(self, picodollars: int | None) -> bool:
        """Whether the rest of the day's money covers the cost; never for an unknown cost, None."""
        if self._allowance is None:
            return True
        return picodollars is not None and self.money.committed + picodollars <= self._allowance

    def _because(
        self, what: str, retry_after_s: float, code: str = "rate_limit_exceeded"
    ) -> Refused:
        return Refused(f"Tenant {self._tenant}: {what}.", retry_after_s, code)

    def _windows(
        self, kind: str, rates: Iterable[Rate], before: Sequence[CountedWindow]
    ) -> tuple[CountedWindow, ...]:
        """Returns a window for each rate, with the usage that counted in the windows `before`.

        Of several rates with the same window length, only the lowest can bind.
        """
        lowest = {rate.window_s: rate for rate in sorted(rates, key=lambda rate: -rate.count)}
        old = {window.rate.window_s: window for window in before}
        longest = max(before, key=lambda window: window.rate.window_s, default=None)
        made = []
        for rate in lowest.values():
            window = old.pop(rate.window_s, None)
            if window is not None:
                window.reshape(rate)
            else:
                window = self._store.window(self._tenant, kind, rate, longest)
            made.append(window)
        return tuple(made)


def _wanted(window: CountedWindow, amount: int, yields: bool) -> int:
    """Returns the room that a call of this amount needs in the window."""
    return amount + _spared(window.rate.count, amount, yields)


def _spared(most: int, amount: int, yields: bool) -> int:
    """Returns the part of a limit that a call leaves free; less if the call itself needs it."""
    return max(0, min(max(1, most // _SPARED_PART), most - amount)) if yields else 0
