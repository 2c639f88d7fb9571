"""Collects single requests and sends them as lists to a backend that takes lists."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec

from redline.calls.batching import functions, lists
from redline.calls.batching.batch import Batch, ended_early
from redline.calls.batching.figures import BatchFigures
from redline.calls.batching.functions import ListFunction, is_async
from redline.calls.batching.parts import Lists, Member, Part
from redline.calls.batching.rule import BatchBounds, Queue, Rule, Why
from redline.calls.http import HttpBackend
from redline.calls.wire import Endpoint
from redline.clock import SYSTEM, Clock
from redline.errors import CallError, ConfigError, RateLimited, TimedOut
from redline.limits.wait import sole_loop
from redline.process import counted
from redline.waist import Backend, Call, Health, Load, Outcome, Request, Sink, failed, is_backend

# Batches in flight to an endpoint or a coroutine function. A plain function is called by one thread
# at a time unless the caller asks for more: few models support several threads.
_IN_FLIGHT = 8
_FORM = "pass an endpoint, a backend, or a function that takes a list"


class DynamicBatcher:
    """A backend that collects single requests and sends them as one list.

    answers: a function that takes a list and returns one answer per item; or an Endpoint, its base
    URL, or a backend, if its API takes lists of inputs. The backend is closed with the batcher.
    max_batch_size: the most items in a call, 1 to 65,536; a request with a longer list is sent
    alone, unchanged. max_wait_s: the longest time that a request waits for others, 0 to 60 seconds.
    max_in_flight: the most batches at once, at least 1; None for 8, or 1 for a plain function.
    bounds: None for the defaults. executor: runs a plain function; None for the batcher's own
    threads. Raises ConfigError for an argument that cannot be used.

    Each request gets its own part of the answer; see batch.py for failures. Put retries around the
    batcher: it returns a transient error to every member of the batch.
    """

    def __init__(
        self,
        answers: Endpoint | str | Backend | Callable[[list[Any]], Any],
        max_batch_size: int = 32,
        max_wait_s: float = 0.01,
        *,
        max_in_flight: int | None = None,
        bounds: BatchBounds | None = None,
        executor: Executor | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._bounds = bounds or BatchBounds()
        self._rule = Rule(max_batch_size, max_wait_s, self._bounds.max_batch_bytes)
        function = _function_of(answers)
        if max_in_flight is None:
            is_plain = function is not None and not is_async(function)
            max_in_flight = 1 if is_plain else _IN_FLIGHT
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight must be at least 1, not {max_in_flight}")
        self._most = max_in_flight
        self._is_function = function is not None
        if function is not None:
            self._inner: Backend = ListFunction(
                function,
                executor=executor,
                threads=max_in_flight,
                call_s=self._bounds.call_s,
                clock=clock,
            )
            self._lists = Lists(self._inner, functions.part_of, functions.joined, functions.split)
        else:
            self._inner = _backend_of(answers)
            self._lists = Lists(self._inner, lists.part_of, lists.joined, lists.split)
        self.label = self.__name__ = getattr(self._inner, "label", type(self._inner).__name__)
        self._clock = clock
        self._queue = Queue(self._rule)
        self._flying: set[Batch] = set()
        self._numbers = itertools.count()
        # The counts so far; `figures` adds the current state.
        self._figures = BatchFigures()
        # The scheduled call of `_send_due`, and its time by the loop's clock.
        self._turn: asyncio.TimerHandle | None = None
        self._turn_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def __call__(self, item: Any) -> Any:
        """Returns the answer to one item, for `redline.run(rows, call=batcher)`.

        item: an element of the lists that the function takes, or a Request; without a function,
        only a Request. Raises the call's error if the call fails.
        """
        if not isinstance(item, Request):
            if not self._is_function:
                raise ConfigError(
                    f"{item!r:.100} is not a Request", hint=f"{self.label} takes only a Request"
                )
            item = Request(body=item)
        call = Call()
        try:
            outcome = await self.send(item, call)
        finally:
            call.let_go()
        if outcome.error is not None:
            raise outcome.error
        return outcome.output

    def figures(self) -> BatchFigures:
        """Returns the current state and the counts so far."""
        counts = self._figures
        return msgspec.structs.replace(
            counts,
            waiting=self._queue.items,
            in_flight=len(self._flying),
            sizes=dict(sorted(counts.sizes.items())),
            closed=dict(counts.closed),
        )

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load = self._inner.load(now_s, request)
        room_s, binds, state = load.room_s, load.binds, load.state
        if self._is_closed:
            room_s, state = math.inf, Health.GONE
        elif len(self._flying) >= self._most:
            room_s = max(room_s, math.ulp(0.0))
            binds = binds or f"{self._most} batches in flight"
        return msgspec.structs.replace(
            load,
            state=state,
            in_flight=sum(len(batch.members) for batch in self._flying),
            waiting=self._queue.waiting,
            slots=self._most * self._rule.size,
            steady=0,
            room_s=room_s,
            binds=binds,
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        if self._is_closed:
            return ended_early()
        is_whole = sink is None or self._is_function
        try:
            part = self._lists.part_of(request, call) if is_whole else None
            if part is None:
                self._figures.alone += 1
                return await self._inner.send(request, call, sink)
            self._check_room([part], call)
            member = self._enter(part, call)
        except CallError as error:
            return failed(error, endpoint=self.label)
        try:
            return await call.in_time(member.answer, self._clock)
        except TimedOut as late:
            return failed(late, endpoint=self.label)
        finally:
            self._leave(member)

    async def send_all(self, requests: Sequence[Request], calls: Sequence[Call]) -> list[Outcome]:
        """Answers requests that are useful only together, by calls of the batcher's function.

        The body of each request is one item. Returns their outcomes in order, up to the first
        failure; later requests are cancelled. Queues none of them and raises RateLimited if the
        queue has no room for all, or TimedOut if the deadline of the first call has passed.
        """
        if self._is_closed:
            return [ended_early()]
        parts = [functions.part_of(*asked) for asked in zip(requests, calls, strict=True)]
        self._check_room(parts, calls[0])
        members = [self._enter(*asked) for asked in zip(parts, calls, strict=True)]
        outcomes: list[Outcome] = []
        try:
            for member in members:
                outcomes.append(await member.call.in_time(member.answer, self._clock))
                if outcomes[-1].error is not None:
                    break
        except TimedOut as late:
            outcomes.append(failed(late, endpoint=self.label))
        finally:
            for member in members:
                member.answer.cancel()
                self._leave(member)
        return outcomes

    async def aclose(self) -> None:
        """Ends all calls, answers waiting requests with an error, and closes the backend."""
        self._is_closed = True
        self._stop_timer()
        for member in self._queue.all():
            self._queue.remove(member)
            if not member.answer.done():
                member.answer.set_result(ended_early())
        flying = list(self._flying)
        for batch in flying:
            batch.cancel()
        try:
            for batch in flying:
                await batch.ended()
        finally:
            await self._inner.aclose()

    def _check_room(self, parts: Sequence[Part], call: Call) -> None:
        """Raises RateLimited if the parts do not fit in the queue, TimedOut after the deadline.

        An empty queue takes parts of any size.
        """
        if self._clock.now_s() >= call.deadline_s:
            raise TimedOut("row")
        queue, bounds = self._queue, self._bounds
        has_room = queue.items + sum(part.count for part in parts) <= bounds.max_waiting
        size = queue.size + sum(part.size for part in parts)
        if queue.items and not (has_room and size <= bounds.max_waiting_bytes):
            self._figures.refused += 1
            raise RateLimited(
                f"the queue of the batcher is full: {counted(queue.items, 'item')} to be sent",
                hint="try again later, or send fewer items at once",
                status=429,
            )

    def _enter(self, part: Part, call: Call) -> Member:
        """Queues a request."""
        now_s = self._clock.now_s()
        loop = sole_loop(self._loop, "DynamicBatcher")
        if loop is not self._loop:
            # Each run may have an event loop of its own, and the timer of an old loop never fires.
            self._turn, self._loop = None, loop
        member = Member(part, call, next(self._numbers), now_s, loop.create_future())
        self._queue.add(member)
        # Not at once, so that requests that arrive in the same turn of the loop join the batch.
        self._come_back(0.0)
        return member

    def _leave(self, member: Member) -> None:
        """Removes a member whose caller no longer waits, with or without an answer."""
        member.call.sent_s = None
        if self._queue.remove(member):
            if not self._queue.waiting:
                self._stop_timer()
        elif member.on_leave is not None:
            member.on_leave()

    def _send_due(self) -> None:
        """Sends the batches that are due, and sets the timer for the next one."""
        self._turn = None
        now_s = self._clock.now_s()
        in_flight = len(self._flying)
        for members, why in self._queue.take(now_s, in_flight, self._most - in_flight):
            self._start(members, why, now_s)
        if len(self._flying) < self._most and self._queue.waiting:
            self._come_back(max(0.0, self._queue.next_s() - now_s))

    def _start(self, members: list[Member], why: Why, now_s: float) -> None:
        figures, most = self._figures, self._rule.size
        items = sum(member.part.count for member in members)
        size = min(most, items)
        figures.batches += 1
        figures.items += items
        figures.places += max(most, items)
        figures.sizes[size] = figures.sizes.get(size, 0) + 1
        figures.closed[why] += 1
        waits = ((now_s - member.at_s) * member.part.count for member in members)
        figures.waited_s += sum(waits)
        batch = Batch(members, self._lists, self._clock, figures)
        self._flying.add(batch)
        batch.start(self._end)

    def _end(self, batch: Batch) -> None:
        self._flying.discard(batch)
        if self._queue.waiting and not self._is_closed:
            self._come_back(0.0)

    def _come_back(self, after_s: float) -> None:
        """Schedules `_send_due` in `after_s` seconds, unless it is scheduled for an earlier time.

        after_s: 0 for the loop's next turn.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time() + after_s
        if self._turn is None or due_s < self._turn_s:
            self._stop_timer()
            self._turn_s = due_s
            self._turn = loop.call_later(after_s, self._send_due)

    def _stop_timer(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.cancel()


def _function_of(answers: object) -> Callable[..., Any] | None:
    """Returns `answers` if it is a function, None if it is an endpoint or a backend.

    Raises ConfigError for any other object.
    """
    if isinstance(answers, Endpoint | str) or is_backend(answers):
        return None
    if isinstance(answers, type) or not callable(answers):
        raise ConfigError(f"{answers!r:.100} cannot answer lists", hint=_FORM)
    return answers


def _backend_of(answers: Any) -> Backend:
    if isinstance(answers, str):
        answers = Endpoint(base_url=answers)
    backend: Backend = HttpBackend(answers) if isinstance(answers, Endpoint) else answers
    return backend
