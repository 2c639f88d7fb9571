"""Retries failed calls: decides which failures are retried, and after how long.

  failure                              counts against        waits
  429                                  10 x max_retries      Retry-After above 0, see below, or
                                                             back-off
  no connection (endpoint down)        nothing               the endpoint's pause, and up to 1 s
  an answer that cannot be read        2, and max_retries    back-off
  any other Retryable                  max_retries           the longer of Retry-After and back-off

A back-off also waits until the retry budget allows the retry. If `Call.avoid` contains the failed
endpoint, another endpoint of the pool is available. After a 429, and after the first two failures
of any kind, the call then waits for the retry budget alone. A row whose last five failures are
ServerFailed with the same status, while nearly all other rows succeed, is not retried. If
max_retries is 0, nothing is retried. If another endpoint of a pool may take the call before a
Retry-After has passed, the call waits only until then. After more than max_retries 429s, it always
waits for the Retry-After and a random time: up to this Retry-After for each further 429, at most
`cap_s`, and at most half of the time that is then left before the deadline.

Back-off is exponential with full jitter (Brooker, AWS Architecture Blog, 2015): uniform in
0..min(cap, base 2^k). A waiting row holds no slot, no connection and no tokens.
"""

from __future__ import annotations

import asyncio
import math
import random

import msgspec

from redline.calls.http import Wait, is_unreachable, wait_of_this_task
from redline.clock import SYSTEM, Clock
from redline.errors import (
    BadReply,
    ConfigError,
    NoEndpoint,
    RateLimited,
    Rejected,
    Retryable,
    ServerFailed,
    TimedOut,
    Withdrawn,
)
from redline.events import SILENCE, Listener, RetryScheduled, RetryStarted
from redline.structs import check_types
from redline.waist import (
    MORE_TIME,
    MOST_TRIED,
    Around,
    Attempt,
    Backend,
    Call,
    Outcome,
    Request,
    Sink,
    failed,
)

_BAD_REPLY_RETRIES = 2
# Only the first two failures are retried without back-off: if all endpoints of a pool fail for a
# moment, a row must not use up its retries in that moment.
_FAILOVERS = 2
# A 429 says that the endpoint is full, not that the row is bad.
_RATE_LIMITED_FACTOR = 10
# A row is to blame if its last five failures are ServerFailed with the same status, and since its
# first failure at least 20 attempts of other rows, and nine in ten of their attempts, have
# succeeded. At a fault rate of 5 %, this happens by chance to one row in three million.
_SAME_FAULT_MOST = 5
_NEIGHBOURS_LEAST = 20
_NEIGHBOURS_SHARE = 0.9


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The number and the pace of retries.

    max_retries: attempts after the first, 0 to 100, 0 for none at all. Retries after HTTP 429 count
    separately, up to ten times as many; those after a failed connection do not count; at most two
    follow answers that cannot be read. base_s, cap_s: the longest back-off after the first failure,
    and after any failure; above 0 and at most 86,400 s. A back-off is uniform in
    0..min(cap_s, base_s 2^k) after k retries (full jitter: Brooker, AWS Architecture Blog, 2015).
    share: the most retries as a share of first attempts, 0 to 1, in addition to `floor_per_s`
    retries per second, above 0 and at most 86,400; further retries wait. Retries that wait for an
    endpoint, after a failed connection or a 429 with a Retry-After, are outside this share.
    Raises ConfigError for a value out of range.
    """

    max_retries: int = 8
    base_s: float = 0.5
    cap_s: float = 30.0
    share: float = 0.25
    floor_per_s: float = 10.0

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.max_retries <= 100:
            raise ConfigError(f"max_retries must be 0 to 100, not {self.max_retries}")
        for name in ("base_s", "cap_s", "floor_per_s"):
            value = getattr(self, name)
            if not 0 < value <= 86_400:
                raise ConfigError(f"{name} must be above 0 and at most 86,400, not {value:g}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share must be 0 to 1, not {self.share:g}")

    def pause_s(self, retries: int) -> float:
        """Returns the longest back-off after `retries` retries, in seconds; at most `cap_s`."""
        # 2^30 exceeds any cap; a larger exponent would only overflow.
        return min(self.cap_s, self.base_s * 2.0 ** min(retries, 30))


class RetryBudget:
    """Limits retries to a share of the traffic, so that they do not overwhelm a struggling server.

    Each first attempt earns `share` of a retry, and each second earns `floor_per_s` retries. The
    balance is at most `10 x floor_per_s`, or 10 if that is more. A retry beyond the balance waits
    until it is earned.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._most = max(10.0, 10 * policy.floor_per_s)
        self._balance = self._most
        self._at_s = 0.0
        self._calls = 0

    def spend_s(self, now_s: float, calls: int) -> float:
        """Takes one retry and returns the seconds until it is earned, 0 if it already is.

        calls: the number of first attempts so far. Their earnings are added here and not at each
        call, since the cap on the balance matters only when a retry is taken.
        """
        earned = (calls - self._calls) * self._policy.share
        earned += (now_s - self._at_s) * self._policy.floor_per_s
        self._balance = min(self._most, self._balance + earned) - 1
        self._at_s, self._calls = now_s, calls
        return max(0.0, -self._balance) / self._policy.floor_per_s

    def take(self, now_s: float, calls: int) -> bool:
        """Takes one retry if it is earned; returns whether it was. calls: as for `spend_s`."""
        if not self.spend_s(now_s, calls):
            return True
        self._balance += 1
        return False


class _History(msgspec.Struct):
    """The failures of one row so far.

    since: how many attempts of all rows had succeeded, and how many had failed, before the row's
    first failure. blamed, limited, outages: its failed attempts that count against `max_retries`,
    its 429s, and its failed connections. fault, fault_count: the status of its last failure if that
    was a ServerFailed, and how many times in succession it has had this status.
    """

    since: tuple[int, int]
    tried: tuple[Attempt, ...] = ()
    blamed: int = 0
    limited: int = 0
    bad_replies: int = 0
    outages: int = 0
    fault: int | None = None
    fault_count: int = 0

    def note(self, error: Retryable) -> None:
        status = error.status if isinstance(error, ServerFailed) else None
        self.fault_count = self.fault_count + 1 if status == self.fault else 1
        self.fault = status
        if is_unreachable(error):
            self.outages += 1
        elif isinstance(error, RateLimited):
            self.limited += 1
        else:
            self.blamed += 1
            self.bad_replies += isinstance(error, BadReply)

    @property
    def tries(self) -> int:
        """The number of failures so far, which determines the exponent of the back-off."""
        return self.blamed + self.limited + self.outages


class Retry(Around):
    """A backend that retries transient failures of another backend."""

    def __init__(
        self,
        backend: Backend,
        policy: RetryPolicy | None = None,
        *,
        clock: Clock = SYSTEM,
        listener: Listener = SILENCE,
        seed: int | None = None,
    ) -> None:
        super().__init__(backend)
        self._policy = policy if policy is not None else RetryPolicy()
        self._clock = clock
        self._listener = listener
        self._random = random.Random(seed)
        self._budget = RetryBudget(self._policy)
        self._calls = 0
        self._succeeded = 0
        self._failed = 0
        self._pauses: dict[int, Wait] = {}  # of calls between two attempts, by id(call)
        self._is_closed = False

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self._calls += 1
        if call.requests:
            call.requests, call.billed_at = 0, ""
        history: _History | None = None
        tried: tuple[Attempt, ...] = ()
        while not self._is_closed:
            attempts = call.attempts = call.attempts + 1
            outcome = await self._inner.send(request, call, sink)
            outcome.attempts = attempts
            if history is not None:
                outcome.tried = (history.tried + outcome.tried)[-MOST_TRIED:]
            error = outcome.error
            if error is None:
                self._succeeded += 1
                return outcome
            if isinstance(error, Withdrawn):
                # A withdrawn call does not count as an attempt.
                outcome.attempts = call.attempts = attempts - 1
            if self._is_closed and isinstance(error, NoEndpoint | Retryable | Withdrawn):
                tried = outcome.tried
                break
            if isinstance(error, Withdrawn):
                return outcome
            since = self._succeeded, self._failed
            self._failed += 1
            if call.committed or not isinstance(error, Retryable):
                return outcome
            history = history or _History(since)
            history.note(error)
            if self._is_final(error, history):
                return outcome
            is_elsewhere = outcome.endpoint in call.avoid
            wait_s = self._wait_s(error, history, call, is_elsewhere=is_elsewhere)
            if self._clock.now_s() + wait_s >= call.deadline_s:
                return self._out_of_time(outcome, error, call)
            tried = history.tried = outcome.tried
            call.is_last = history.blamed >= self._policy.max_retries
            error.keep_body(b"")
            now_s = self._clock.now_s()
            self._listener.on_event(RetryScheduled(now_s, error.kind, wait_s, error.what))
            is_asked = error.retry_after_s and not is_elsewhere
            call.again_s = now_s + wait_s if is_asked else -math.inf
            if call.on_wait is not None:
                call.on_wait()
            pause = self._pauses[id(call)] = wait_of_this_task(now_s)
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                if not pause.take_cancellation_back():
                    raise
            finally:
                del self._pauses[id(call)]
                call.again_s = -math.inf
                self._listener.on_event(RetryStarted(self._clock.now_s()))
        return _closed(call, tried)

    async def aclose(self) -> None:
        """Ends all calls without further retries, and closes the backend."""
        self._is_closed = True
        for pause in self._pauses.values():
            pause.withdraw()
        await super().aclose()

    def _is_final(self, error: Retryable, history: _History) -> bool:
        """Whether no retry follows. Adds the reason to the error if the row is to blame."""
        most = self._policy.max_retries
        if is_unreachable(error):
            return most == 0
        if isinstance(error, RateLimited):
            return history.limited > most * _RATE_LIMITED_FACTOR
        if isinstance(error, BadReply) and history.bad_replies > _BAD_REPLY_RETRIES:
            return True
        if self._is_to_blame(history):
            error.what = (
                f"HTTP {history.fault} {history.fault_count} times while other rows succeeded, "
                f"so this row is the likely cause: {error.what}"
            )
            error.hint = error.hint or "check this row's content"
            return True
        return history.blamed > most

    def _is_to_blame(self, history: _History) -> bool:
        if history.fault is None or history.fault_count < _SAME_FAULT_MOST:
            return False
        succeeded = self._succeeded - history.since[0]
        others_failed = self._failed - history.since[1] - history.tries
        return (
            succeeded >= _NEIGHBOURS_LEAST
            and succeeded >= (succeeded + others_failed) * _NEIGHBOURS_SHARE
        )

    def _wait_s(
        self, error: Retryable, history: _History, call: Call, *, is_elsewhere: bool
    ) -> float:
        now_s = self._clock.now_s()
        if is_elsewhere and (history.tries <= _FAILOVERS or isinstance(error, RateLimited)):
            return self._budget.spend_s(now_s, self._calls)
        ceiling_s = self._policy.pause_s(history.tries - 1)
        jitter_s = self._random.uniform(0, ceiling_s)
        if is_unreachable(error):
            # The endpoint's load says when to try another connection; jitter spreads the rows.
            pause_s = self._inner.load(now_s).parked_until_s - now_s
            return min(max(0.0, pause_s), self._policy.cap_s) + min(jitter_s, 1.0)
        asked_s = error.retry_after_s or 0.0
        excess = max(0, history.limited - self._policy.max_retries)
        if not excess and call.again_s > -math.inf:
            # With more 429s, the whole time counts: otherwise, all rows would return at once to an
            # endpoint that, if it is broken, takes only one of them.
            asked_s = min(asked_s, max(0.0, call.again_s - now_s))
        if isinstance(error, RateLimited) and error.retry_after_s:
            # Of all rows that return at that moment, a token bucket admits one.
            left_s = max(0.0, call.deadline_s - now_s - asked_s)
            spread_s = min(self._policy.cap_s, excess * error.retry_after_s, left_s / 2)
            return asked_s + self._random.uniform(0, spread_s)
        return max(jitter_s, asked_s) + self._budget.spend_s(now_s, self._calls)

    def _out_of_time(self, outcome: Outcome, error: Retryable, call: Call) -> Outcome:
        if isinstance(error, TimedOut) and error.phase == "row":
            error.hint = error.hint or MORE_TIME
            return outcome
        late = TimedOut(
            "row",
            where=error.where,
            hint=f"{MORE_TIME}; attempt {call.attempts}, the last, ended with: {error.what}",
        )
        ended = failed(late, endpoint=outcome.endpoint, latency_s=outcome.latency_s)
        ended.attempts, ended.tried = call.attempts, outcome.tried
        return ended


def _closed(call: Call, tried: tuple[Attempt, ...]) -> Outcome:
    """Returns the outcome of a call that `aclose` has ended."""
    ended = failed(
        Rejected(
            "the client was closed before the call ended",
            hint="await all calls before `aclose`, or inside the client's `async with`",
        )
    )
    ended.attempts, ended.tried = call.attempts, tried
    return ended
