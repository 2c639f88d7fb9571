"""Makes a backend from a user's function that takes a list.

what the function does             the outcome
returns one answer for each item   each item gets its own answer
returns an Exception for an item   only that item fails, with the error for this exception
raises a Retryable, TimeoutError,  all may be retried
or ConnectionError
raises another CallError           as for an endpoint: see batch.py
raises anything else               Rejected: the batch is split until the items at fault are found
returns too few or too many        BadReply for all: the answers cannot be matched to the items
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import msgspec

from redline.calls.batching.parts import Part
from redline.calls.client import call_error_of
from redline.clock import SYSTEM, Clock
from redline.errors import BadReply, BadRow, CallError, NoEndpoint, Rejected
from redline.process import DaemonThreads, counted, first_of
from redline.waist import Attempt, Call, Load, Outcome, Reply, Request, Sink, failed


class Item(msgspec.Struct, frozen=True):
    """One item for a function, as a request's body. Items with equal options may share a call.

    value: the element of the list. options: keyword arguments of the function. size: the item's
    bytes; 0 if unknown.
    """

    value: Any
    options: Mapping[str, Any] = {}
    size: int = 0


class _Items(msgspec.Struct, frozen=True):
    """The body of a joined request."""

    values: list[Any]
    options: Mapping[str, Any]


class ListFunction:
    """A backend that calls `function(items, **options)`; a plain function runs in `executor`.

    executor: None to start `threads` threads for it. call_s: the timeout of one call, in seconds.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        executor: Executor | None,
        threads: int,
        call_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self.label = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._call_s = call_s
        self._clock = clock
        self._is_async = is_async(function)
        self._threads = DaemonThreads(threads, "redline-batch") if executor is None else None
        self._executor = executor or self._threads

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        """Calls the function for a joined request; the reply's output is the list of answers."""
        body = request.body
        assert isinstance(body, _Items)
        try:
            if call.on_write is not None:
                call.on_write()
        except CallError as error:
            return failed(error, endpoint=self.label)
        sent_s = self._clock.now_s()
        try:
            reply = Reply(output=await self._answers(body))
            outcome = Outcome(status="succeeded", reply=reply, endpoint=self.label)
        except (CallError, NoEndpoint) as error:
            outcome = failed(error, endpoint=self.label)
        now_s = self._clock.now_s()
        outcome.latency_s = now_s - sent_s
        outcome.tried = (Attempt(self.label, outcome.error, sent_s, None, now_s),)
        return outcome

    async def aclose(self) -> None:
        """Ends the threads started here; a thread whose function does not return is abandoned."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answers(self, asked: _Items) -> list[Any]:
        clock = asyncio.timeout(self._call_s)
        try:
            async with clock:
                return await self._called(asked)
        except BaseException as raised:
            error = first_of(raised)
            after_s = self._call_s if clock.expired() else None
            found = call_error_of(error, self.label, after_s=after_s)
            if found is None and error is raised:
                raise
            raise found or error from raised

    async def _called(self, asked: _Items) -> list[Any]:
        # The function may change its items, but the caller's items must stay unchanged.
        items = copy.deepcopy(asked.values)
        if self._is_async:
            result = await self._function(items, **asked.options)
            return listed(result, len(items), self.label)
        loop = asyncio.get_running_loop()
        call = partial(_in_thread, self._function, items, dict(asked.options), self.label)
        result = await loop.run_in_executor(self._executor, call)
        if isinstance(result, Awaitable):
            return listed(await result, len(items), self.label)
        assert isinstance(result, list)
        return result


def is_async(function: Callable[..., Any]) -> bool:
    """Whether `function` is a coroutine function, or an object whose `__call__` is one."""
    if isinstance(function, partial):
        return is_async(function.func)
    method = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(method)


def _in_thread(
    function: Callable[..., Any], items: list[Any], options: dict[str, Any], label: str
) -> Any:
    """Calls the function; returns its answers as a list, or an awaitable of its result."""
    count = len(items)
    try:
        result = function(items, **options)
        return result if isinstance(result, Awaitable) else listed(result, count, label)
    except StopIteration as error:
        # A future cannot hold a StopIteration: the task that awaits it would wait forever.
        raise Rejected(f"{label} raised StopIteration: {error}") from error


def listed(result: Any, count: int, label: str) -> list[Any]:
    """Returns the result as a list of `count` answers; arrays and tensors become plain numbers.

    Raises BadReply for anything but a sequence of that length.
    """
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, Sequence) or isinstance(result, str | bytes | bytearray):
        raise BadReply(
            f"{label} returned {type(result).__name__}, not a list of answers",
            hint=f"return a list with one answer for each item that {label} is called with",
        )
    if len(result) != count:
        raise BadReply(
            f"{label} returned {counted(len(result), 'answer')} for {counted(count, 'item')}",
            hint="return one answer for each item, in the same order; for an item that failed,"
            " return an Exception as its answer",
        )
    return [one.tolist() if hasattr(one, "tolist") else one for one in result]


def part_of(request: Request, call: Call) -> Part:
    """Returns the request as a part whose one item is the request's body."""
    body = request.body
    item = body if isinstance(body, Item) else Item(body)
    key: Hashable = None
    if item.options:
        key = tuple(sorted((name, _canonical(value)) for name, value in item.options.items()))
    size = item.size
    if not size and isinstance(item.value, str | bytes):
        size = len(item.value)
    return Part(request, key, 1, size, (item,))


def _canonical(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow(f"an option of the item cannot be written as JSON: {error}") from error


def joined(parts: Sequence[Part]) -> Request:
    """Returns one request with the items of all parts."""
    items = [item for part in parts for item in part.items]
    return Request(body=_Items([item.value for item in items], items[0].options))


def split(parts: Sequence[Part], outcome: Outcome) -> list[Outcome]:
    """Returns the outcome of each part, in order."""
    assert outcome.reply is not None
    return [_of_answer(outcome, answer) for answer in outcome.reply.output]


def _of_answer(outcome: Outcome, answer: Any) -> Outcome:
    """Returns the outcome of one item. An answer that is a Reply is used as it is."""
    if isinstance(answer, BaseException):
        own = failed(_as_error(answer, outcome.endpoint), endpoint=outcome.endpoint)
        own.latency_s, own.tried = outcome.latency_s, outcome.tried
        return own
    reply = answer if isinstance(answer, Reply) else Reply(output=answer)
    return msgspec.structs.replace(outcome, reply=reply)


def _as_error(returned: BaseException, label: str) -> CallError | NoEndpoint:
    error = first_of(returned)
    if isinstance(error, CallError | NoEndpoint):
        return error
    found = call_error_of(error, label, what="returned")
    rejected = found or Rejected(f"{label} returned {type(error).__name__}: {error}")
    rejected.__cause__ = error
    return rejected
