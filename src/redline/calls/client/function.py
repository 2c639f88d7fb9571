"""Makes a user's own coroutine function a backend."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from redline.calls.client.user_errors import call_error_of
from redline.calls.http import Shared
from redline.calls.wire import Stops, TaskTimeout, do_nothing
from redline.clock import SYSTEM, Clock
from redline.errors import CallError, ConfigError, NoEndpoint, Rejected, TimedOut
from redline.limits import Cost, Grant, Limits, RateLimiter, Slots, open_limiter
from redline.limits.rule import AUTO
from redline.process import counted, first_of
from redline.waist import (
    Attempt,
    Attempts,
    Call,
    Load,
    Outcome,
    Reply,
    Request,
    Sink,
    failed,
)

_NO_COST = Cost()
# If calls keep one turn of the event loop going for longer, the next call waits for _PAUSE_S.
_LONGEST_TURN_S = 0.05
# Timers that are due fire before the end of a pause. uvloop's timers count whole milliseconds.
_PAUSE_S = 0.001


class _Waits(msgspec.Struct):
    """The times of a call's waits; see Attempt."""

    eligible_s: float | None = None
    slot_s: float | None = None
    granted_s: float | None = None


class FunctionBackend:
    """A backend that calls `function(row)` within limits; the function's result is the output.

    If the function raises a CallError, this error determines whether the row is retried. A
    TimeoutError or ConnectionError is retried. Any other exception rejects the row and is quoted in
    the outcome's error. If the function returns an Outcome, an error in it counts as raised. If the
    function blocks the event loop, the loop still gets turns between the calls.

    timeout_s: the timeout of one call, above 0 and at most 86,400 s. shared: the limiter, and the
    store of its sends. before_write: called before each call begins. attempts: counts the attempts.
    Raises ConfigError for a timeout out of range, for token limits and for the limit `auto`.
    """

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        limits: Limits | None = None,
        timeout_s: float = 600.0,
        shared: Shared | None = None,
        before_write: Callable[[], None] = do_nothing,
        attempts: Attempts | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        check_timeout(timeout_s)
        self.label = label_of(function)
        shared = shared or Shared()
        limits = limits if limits is not None else Limits()
        self.slots = Slots(limits.slots())
        self._function = function
        self.limiter = shared.limiter or function_limiter(limits, self.label, clock)
        if shared.stores.recent is not None:
            self.limiter.keep_sends(shared.stores.recent, self.label)
        self._timeout_s = timeout_s
        self._clock = clock
        self._stops = Stops(clock)
        self._before_write = before_write
        self._attempts = attempts or Attempts()
        # When the first call began in this turn of the event loop; None if none has begun in it.
        self._turn_s: float | None = None
        self._turn_ended = asyncio.Event()

    def load(self, now_s: float, request: Request | None = None) -> Load:
        limiter, slots = self.limiter, self.slots
        room_s, binds = limiter.room_s(_NO_COST, now_s), ""
        if not slots.is_free:
            room_s, binds = max(room_s, math.ulp(0.0)), f"{counted(slots.count, 'call')} in flight"
        elif room_s > 0:
            binds = limiter.binds(_NO_COST, now_s)
        return Load(
            in_flight=slots.in_use,
            waiting=slots.waiting + limiter.waiting,
            queued=slots.waiting,
            slots=slots.count,
            room_s=room_s,
            parked_until_s=limiter.parked_until_s,
            next_s=limiter.next_s,
            binds=binds,
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        try:
            return await self._in_slot(request, call)
        except (CallError, NoEndpoint) as error:
            return failed(error, endpoint=self.label)

    async def aclose(self) -> None:
        """Closes the limiter; the function belongs to the user."""
        await self.limiter.aclose()

    async def _in_slot(self, request: Request, call: Call) -> Outcome:
        clock = self._clock
        begun_s = clock.now_s()
        if begun_s >= call.deadline_s:
            raise TimedOut("row")
        waits = _Waits()
        if not self.slots.take_free():
            waits.eligible_s = begun_s
            await call.in_time(self.slots.acquire(call.priority), clock)
            waits.slot_s = clock.now_s()
        try:
            grant = self.limiter.acquire_now(_NO_COST)
            if grant is None:
                waits.eligible_s = begun_s
                turn: Coroutine[Any, Any, Grant] = self.limiter.acquire(priority=call.priority)
                grant = await call.in_time(turn, clock)
                waits.granted_s = clock.now_s()
            return await self._granted(request, call, grant, waits)
        finally:
            self.slots.release()

    async def _granted(self, request: Request, call: Call, grant: Grant, waits: _Waits) -> Outcome:
        try:
            while self._is_turn_long():
                self._turn_ended.clear()
                await call.in_time(self._turn_ended.wait(), self._clock)
            self._before_write()
            while grant.until_s < self._clock.now_s():
                # Saving results took so long that the grant of a shared limit has expired.
                grant.release()
                turn: Coroutine[Any, Any, Grant] = self.limiter.acquire(priority=call.priority)
                grant = await call.in_time(turn, self._clock)
                waits.granted_s = self._clock.now_s()
                self._before_write()
            if call.on_write is not None:
                call.on_write()
        except BaseException:
            grant.release()
            raise
        sent_s = call.sent_s = self._clock.now_s()
        grant.sent(sent_s)
        if call.requests:
            self._attempts.retried()
        call.requests += 1
        self._attempts.started()
        outcome: Outcome | None = None
        try:
            outcome = await self._call(request, call)
            grant.replied(self._clock.now_s() - sent_s)
        except CallError as error:
            # Other rows may fail with the same object, and each row adds its place to its error.
            own = copy.copy(error).with_traceback(error.__traceback__)
            own.__cause__, own.__context__ = error.__cause__, error.__context__
            own.__suppress_context__ = error.__suppress_context__
            outcome = failed(own, endpoint=self.label)
        finally:
            call.sent_s = None
            self._tell_end(sent_s, outcome, waits)
        return outcome

    def _is_turn_long(self) -> bool:
        """Whether calls have kept the current turn of the event loop going for too long."""
        now_s = self._clock.now_s()
        if self._turn_s is None:
            self._turn_s = now_s
            asyncio.get_running_loop().call_soon(self._after_turn)
        return now_s - self._turn_s > _LONGEST_TURN_S

    def _after_turn(self) -> None:
        if self._is_turn_long():
            asyncio.get_running_loop().call_later(_PAUSE_S, self._end_turn)
        else:
            self._end_turn()

    def _end_turn(self) -> None:
        self._turn_s = None
        self._turn_ended.set()

    async def _call(self, request: Request, call: Call) -> Outcome:
        until_s = min(self._timeout_s, call.deadline_s - self._clock.now_s())
        try:
            async with TaskTimeout(self._stops, until_s) as alarm:
                result = self._function(copy.deepcopy(request.body))
                if not inspect.isawaitable(result):
                    raise Rejected(
                        f"{self.label} is not a coroutine function",
                        hint="write `async def`, and run blocking code with asyncio.to_thread",
                    )
                output = await result
            if isinstance(output, Outcome):
                # Such as that of a Client's call, which returns its failure and raises nothing.
                if output.error is not None:
                    raise output.error
                output = output.output
        except BaseException as raised:
            error = first_of(raised)
            is_row = alarm.has_rung and until_s < self._timeout_s
            if is_row and isinstance(error, TimeoutError):
                raise TimedOut("row") from error
            # The function's own timeout may have expired before this one.
            after_s = until_s if alarm.has_rung else None
            found = call_error_of(error, self.label, after_s=after_s)
            if found is None and error is raised:
                raise
            raise found or error from raised
        return Outcome(status="succeeded", reply=Reply(output=output), endpoint=self.label)

    def _tell_end(self, sent_s: float, outcome: Outcome | None, waits: _Waits) -> None:
        now_s = self._clock.now_s()
        kind: str | None = "cancelled"
        if outcome is not None:
            outcome.latency_s = now_s - sent_s
            attempt = Attempt(
                endpoint=self.label,
                error=outcome.error,
                sent_s=sent_s,
                first_byte_s=None,
                complete_s=now_s,
                eligible_s=waits.eligible_s,
                slot_s=waits.slot_s,
                granted_s=waits.granted_s,
            )
            outcome.tried = (attempt,)
            kind = outcome.error.kind if outcome.error is not None else None
        self._attempts.ended(now_s, now_s - sent_s, kind)


def label_of(function: Callable[..., Any]) -> str:
    """Returns the name of the function or of its type: its label in messages and results."""
    return getattr(function, "__name__", type(function).__name__)


def check_timeout(timeout_s: float) -> None:
    """Raises ConfigError unless the timeout is above 0 and at most 86,400 s."""
    if not 0 < timeout_s <= 86_400:
        raise ConfigError(f"timeout_s must be above 0 and at most 86,400 s, not {timeout_s:g}")


def function_limiter(limits: Limits, label: str, clock: Clock) -> RateLimiter:
    """Opens the limiter of a function. Raises ConfigError for token limits and for `auto`."""
    if limits.counts_tokens:
        raise ConfigError(
            "a token limit cannot be enforced for a function of your own",
            hint="limit its requests, or give an endpoint instead of a function",
        )
    if AUTO in (limits.rate, limits.concurrency):
        raise ConfigError(
            "redline cannot search for the limits of your own function",
            hint="set the limits, or pass an endpoint instead of a function",
        )
    return open_limiter(limits, label, clock)
