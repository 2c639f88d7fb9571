"""Gives the targets of a load one interface: a backend, a client, or a user's function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

import msgspec

from redline.apis import api_of, read_usage
from redline.calls import Backend, Call, Chunk, Client, Outcome, Reply, Request, Sink
from redline.clock import SYSTEM, Clock
from redline.errors import CallError, ConfigError, RateLimited, RedlineError
from redline.process import DaemonThreads, RaisedStop, counted
from redline.waist import Attempt, is_backend

# The shortest pause of a simulated user after a failure, and after a 429.
_FAILED_S, _LIMITED_S = 0.1, 1.0
_FORM = "pass a Backend, a Client, or a function of one request, async or plain"


class Answer(msgspec.Struct, kw_only=True):
    """The result of one call, with times in seconds of the monotonic clock.

    weight: the number of requests in the call. sent_s: when the call was written, or a function was
    called; None if unknown. held_s: how long its last attempt waited for a slot and for this
    client's limits. first_s: when the first chunk of a backend's stream arrived. texts_s: when each
    chunk with text arrived. kind, example: the kind and the text of the error, without its hint,
    which may name a flag of `redline run`; "" for a success. error: the error of a backend, or the
    CallError of a function. input_tokens, output_tokens: of all requests in the call; None if
    unknown.
    """

    weight: int = 1
    sent_s: float | None = None
    held_s: float = 0.0
    first_s: float | None = None
    texts_s: list[float] = []
    kind: str = ""
    example: str = ""
    error: RedlineError | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reply: Reply | None = None
    endpoint: str = ""


class Caller(Protocol):
    """Makes calls to the target of a load.

    label: the target's name in figures. takes: maximum requests per call.
    """

    label: str
    takes: int

    async def ask(self, requests: Sequence[Any]) -> Answer:
        """Makes one call with these requests, at most `takes`.

        Raises ConfigError for something that a backend cannot send, or if a function returns a
        plain generator; and CancelledError.
        """

    def pause_s(self, answer: Answer, now_s: float) -> float:
        """Returns the pause of a user after a failure, in seconds; 0 or less for no pause."""

    def drop_unsent(self) -> None:
        """Cancels the calls that are known to be waiting to be sent."""

    def close(self) -> None:
        """Releases the resources that the caller created for its calls."""


class _Stamps(Sink):
    """A sink that records when chunks arrive, and drops the chunks."""

    def __init__(self, clock: Clock) -> None:
        self._now_s = clock.now_s
        self.first_s: float | None = None
        self.texts_s: list[float] = []

    async def put(self, chunk: Chunk) -> None:
        now_s = self._now_s()
        if self.first_s is None:
            self.first_s = now_s
        if chunk.text:
            self.texts_s.append(now_s)


class BackendCaller:
    """Calls a backend, which its owner closes.

    is_streamed: request streams if the request's API has them.
    """

    takes = 1

    def __init__(self, backend: Backend, *, is_streamed: bool, clock: Clock) -> None:
        self.label = getattr(backend, "label", type(backend).__name__)
        self._backend = backend
        self._is_streamed = is_streamed
        self._clock = clock
        self._calls: dict[asyncio.Task[Any], Call] = {}
        # Whether the backend reports when it sends a call.
        self._has_stamps = False

    async def ask(self, requests: Sequence[Any]) -> Answer:
        request = _request(requests[0])
        sink = None
        if self._is_streamed and api_of(request.url).is_streamed:
            sink = _Stamps(self._clock)
        call, task = Call(), asyncio.current_task()
        assert task is not None
        self._calls[task] = call
        try:
            outcome = await self._backend.send(request, call, sink)
        finally:
            del self._calls[task]
            call.let_go()
        answer = _answered(outcome)
        self._has_stamps |= answer.sent_s is not None
        if sink is not None and outcome.error is None:
            answer.first_s, answer.texts_s = sink.first_s, sink.texts_s
        return answer

    def pause_s(self, answer: Answer, now_s: float) -> float:
        """Returns the time for which the backend is parked, or a short pause if that is longer.

        The pause keeps users whose requests fail from flooding an endpoint.
        """
        least_s = _LIMITED_S if isinstance(answer.error, RateLimited) else _FAILED_S
        return max(least_s, self._backend.load(now_s).parked_until_s - now_s)

    def drop_unsent(self) -> None:
        for task, call in self._calls.items():
            if self._has_stamps and call.sent_s is None:
                task.cancel()

    def close(self) -> None:
        """Does nothing: the backend's owner closes it."""


def _request(given: Any) -> Request:
    """Returns a Request; makes it from the body of a chat completion, or from a user's message.

    Raises ConfigError for anything else.
    """
    if isinstance(given, Request):
        return given
    if isinstance(given, str):
        given = {"messages": [{"role": "user", "content": given}]}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{given!r:.100} is not a request",
            hint="pass a Request, the body of a chat completion, or a string",
        )
    return Request(body=dict(given))


def _answered(outcome: Outcome) -> Answer:
    answer = Answer(endpoint=outcome.endpoint, reply=outcome.reply)
    if outcome.tried:
        tried = outcome.tried[-1]
        answer.sent_s, answer.held_s = tried.sent_s, _held_s(tried)
    if outcome.error is not None:
        answer.kind, answer.example = outcome.error.kind, _shown(outcome.error)
        answer.error = outcome.error
    elif outcome.reply is not None:
        answer.input_tokens = outcome.reply.input_tokens
        answer.output_tokens = outcome.reply.output_tokens
    return answer


def _held_s(tried: Attempt) -> float:
    """Returns how long an attempt waited for a slot and for limits, but not for a connection."""
    marks = [at_s for at_s in (tried.eligible_s, tried.slot_s, tried.ahead_s) if at_s is not None]
    if not marks:
        return 0.0
    held_s = marks[-1] - marks[0]
    if tried.granted_s is not None:
        held_s += tried.granted_s - (tried.connected_s or marks[-1])
    return held_s


class FunctionCaller:
    """Calls a user's function with one request, or with a list of at most `batch_size` requests.

    A function of lists must return a list of the same length. A coroutine function is awaited. The
    items of an async generator are the pieces of a streamed answer. A plain function runs in one of
    `threads` threads, and may return an awaitable or an async generator. Raises ConfigError for a
    plain generator.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batch_size: int | None,
        threads: int,
        clock: Clock,
    ) -> None:
        self.label = getattr(function, "__qualname__", type(function).__name__)
        self.takes = batch_size or 1
        self._function = function
        self._is_of_lists = batch_size is not None
        self._clock = clock
        # A callable object is async if its `__call__` is.
        method = function if inspect.isroutine(function) else type(function).__call__
        if isinstance(function, partial):
            method = function.func
        if inspect.isgeneratorfunction(method):
            raise _never_run(f"{self.label} is a generator")
        self._threads: Executor | None = None
        if not (inspect.isasyncgenfunction(method) or inspect.iscoroutinefunction(method)):
            self._threads = DaemonThreads(threads, "redline-measured")

    async def ask(self, requests: Sequence[Any]) -> Answer:
        given = list(requests) if self._is_of_lists else requests[0]
        answer = Answer(weight=len(requests), sent_s=self._clock.now_s())
        result = None
        try:
            result = await self._result(given, answer)
            _read(answer, result, is_of_lists=self._is_of_lists)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside this call was cancelled, not the call itself.
            _fail(answer, error)
        except Exception as error:
            # Anything that the user's function raises is a failure of this call alone.
            _fail(answer, error)
        if inspect.isgenerator(result):
            raise _never_run(f"{self.label} returns a generator")
        # Otherwise, a function that never waits would block all other calls.
        await asyncio.sleep(0)
        return answer

    async def _result(self, given: Any, answer: Answer) -> Any:
        if self._threads is not None:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, self._function, given)
        else:
            result = self._function(given)
        while isinstance(result, Awaitable):
            result = await result
        if inspect.isasyncgen(result):
            async for _ in result:
                answer.texts_s.append(self._clock.now_s())
            return None
        return result

    def pause_s(self, answer: Answer, now_s: float) -> float:
        return 0.0

    def drop_unsent(self) -> None:
        """Does nothing: a function is called at once."""

    def close(self) -> None:
        """Ends the threads, except those whose function does not return."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _never_run(what: str) -> ConfigError:
    return ConfigError(
        f"{what}, whose body would never run",
        hint="make it an async generator, or return the whole answer",
    )


def _shown(error: RedlineError) -> str:
    """Returns what happened, then where in parentheses. Hints are for runs, not measurements."""
    return f"{error.what} ({error.where})" if error.where else error.what


def _fail(answer: Answer, error: BaseException) -> None:
    if isinstance(error, CallError):
        answer.error, answer.kind, answer.example = error, error.kind, _shown(error)
        return
    if isinstance(error, RaisedStop):
        error = error.__cause__ or error
    answer.kind = type(error).__name__
    answer.example = f"{answer.kind}: {error}" if str(error) else answer.kind


def _read(answer: Answer, result: Any, *, is_of_lists: bool) -> None:
    """Adds the tokens of a function's result to the answer.

    Raises ValueError if the result should be a list, but is not a list of this length; raises the
    error of a failed Outcome in the result.
    """
    if is_of_lists:
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            raise ValueError(f"it returned {type(result).__name__} instead of a list of answers")
        if len(result) != answer.weight:
            answers = counted(len(result), "answer")
            raise ValueError(f"it returned {answers} for {counted(answer.weight, 'request')}")
    for part in result if is_of_lists else [result]:
        if isinstance(part, Outcome):
            if part.error is not None:
                raise part.error
            part = part.reply
        if (tokens := _tokens(part)) is not None:
            answer.input_tokens = (answer.input_tokens or 0) + tokens[0]
            answer.output_tokens = (answer.output_tokens or 0) + tokens[1]


def _tokens(part: Any) -> tuple[int, int] | None:
    """Returns the input and output tokens of a Reply, or of an answer with a `usage` like OpenAI's.

    None for any other answer.
    """
    if isinstance(part, Reply):
        return part.input_tokens or 0, part.output_tokens or 0
    usage = part.get("usage") if isinstance(part, Mapping) else getattr(part, "usage", None)
    if not isinstance(usage, Mapping):
        usage = getattr(usage, "__dict__", None)
    found = read_usage(usage, has_output=False)
    return None if found is None else (found.input_tokens, found.output)


def takes_requests(handler: Any) -> bool:
    """Returns whether `handler` is a Backend or a Client rather than a function."""
    return isinstance(handler, Client) or is_backend(handler)


def caller_of(
    handler: Any,
    *,
    batch_size: int | None = None,
    threads: int = 1,
    is_streamed: bool = True,
    clock: Clock = SYSTEM,
) -> Caller:
    """Returns the caller for a user's handler. Raises ConfigError if it cannot be called.

    batch_size: maximum requests in a list, for a function of lists; None for a function of one
    request. threads: the number of threads in which a plain function runs.
    """
    if isinstance(handler, Client):
        handler = handler.backend
    if takes_requests(handler):
        if batch_size is not None:
            raise ConfigError(
                "a backend takes one request at a time",
                hint="leave out the batch size, or pass a function of a list of requests",
            )
        return BackendCaller(handler, is_streamed=is_streamed, clock=clock)
    if not callable(handler):
        raise ConfigError(f"{handler!r:.100} cannot be called", hint=_FORM)
    if isinstance(handler, type):
        raise ConfigError(f"{handler.__name__} is a class, not an instance of it", hint=_FORM)
    return FunctionCaller(handler, batch_size=batch_size, threads=threads, clock=clock)
