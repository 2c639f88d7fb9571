"""Serves over HTTP a user's function that takes a list: items of all requests share its batches."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from typing import Any

import msgspec

from redline.apis import DONE_EVENT, event_bytes
from redline.calls import (
    BatchFigures,
    Call,
    Chunk,
    DynamicBatcher,
    Outcome,
    Reply,
    Request,
    Sink,
    failed,
)
from redline.calls.batching import Item, is_async
from redline.errors import CallError, ConfigError, NoEndpoint, Rejected
from redline.process import load_object
from redline.serve.functions.forms import Form, Question, forms_of, read, tokens_of
from redline.serve.http import events_of
from redline.waist import Around

_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class FunctionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a served function. spec: `module:name`. See DynamicBatcher for the others."""

    spec: str
    max_batch_size: int = 32
    max_wait_s: float = 0.01


class ServedFunction(Around):
    """A backend that answers requests in OpenAI's format with a function that takes a list.

    function, max_wait_s, max_in_flight: see DynamicBatcher. name: the name of the function and of
    its model. paths: the paths that it answers. Items of all requests share batches of at most
    `max_batch_size` items, whatever the length of a request's list. If a field of a body has the
    name of one of the function's other parameters, its value is passed as a keyword argument,
    except for fields that do not affect an answer, such as `user`; only items with equal arguments
    share a batch. Raises ConfigError for a function that cannot be called with a list alone.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        max_batch_size: int = 32,
        max_wait_s: float = 0.01,
        max_in_flight: int | None = None,
    ) -> None:
        self.name = self.label = name
        self.max_batch_size = max_batch_size
        self._forms = forms_of(name)
        self.paths = tuple(self._forms)
        self._takes = _options_of(function, name)
        self._batcher = DynamicBatcher(
            _without_exit(function), max_batch_size, max_wait_s, max_in_flight=max_in_flight
        )
        super().__init__(self._batcher)

    def figures(self) -> BatchFigures:
        """Returns the state and the counts of the function's batches."""
        return self._batcher.figures()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        form = self._forms.get(request.url)
        try:
            if form is None:
                known = ", ".join(self.paths)
                raise Rejected(
                    f"{self.name} does not answer {request.url}: use {known}", status=404
                )
            question = read(request, form, self.name, self._takes)
        except Rejected as error:
            return failed(error, endpoint=self.name)
        outcomes: list[Outcome] = []
        try:
            outcomes = await self._ask(question, request, call)
            reply = _reply(form, question, outcomes)
        except (CallError, NoEndpoint) as error:
            own = failed(error, endpoint=self.name)
            if outcomes:
                own.tried, own.latency_s = outcomes[0].tried, outcomes[0].latency_s
            return own
        if sink is not None and sink.relays:
            await _stream(question, reply, call, sink)
        return Outcome(
            status="succeeded",
            reply=reply,
            endpoint=self.name,
            latency_s=max(outcome.latency_s for outcome in outcomes),
        )

    async def _ask(self, question: Question, request: Request, call: Call) -> list[Outcome]:
        """Returns at least one outcome: one per item, up to the first failure. Raises CallError."""
        size = len(request.raw or b"") // len(question.items)
        is_written = False

        def written() -> None:
            """Reports the request as written once its first item is sent."""
            nonlocal is_written
            if not is_written:
                if call.on_write is not None:
                    call.on_write()
                is_written = True
                call.requests += 1

        requests = [
            Request(body=Item(value, question.options, size), url=request.url)
            for value in question.items
        ]
        calls = [
            Call(
                deadline_s=call.deadline_s,
                priority=call.priority,
                tenant=call.tenant,
                on_write=written,
            )
            for _ in requests
        ]
        try:
            return await self._batcher.send_all(requests, calls)
        finally:
            call.sent_s = None


def function_backend(settings: FunctionSettings) -> ServedFunction:
    """Loads a function; returns the backend that serves it under the function's name.

    Raises ConfigError if the function cannot be loaded or cannot be called with a list alone.
    """
    spec = settings.spec
    # Loading must not print to stdout, whose first line is the base URL.
    with redirect_stdout(sys.stderr):
        function = load_object(spec)
    name = spec.rpartition(":")[2].rpartition(".")[2]
    if isinstance(function, type):
        raise ConfigError(
            f"{spec} is a class, not a function",
            hint=f"create a callable instance, such as `answer = {name}()`",
        )
    if not callable(function):
        raise ConfigError(
            f"{spec} cannot be called: its type is {type(function).__name__}",
            hint="pass a function that takes a list and returns a list of the same length",
        )
    return ServedFunction(
        function, name, max_batch_size=settings.max_batch_size, max_wait_s=settings.max_wait_s
    )


def _options_of(function: Callable[..., Any], name: str) -> frozenset[str] | None:
    """Returns the names of the function's parameters after the list; None if it takes any name.

    Raises ConfigError if the function cannot be called with a list alone.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        # Some functions written in C have no signature.
        return frozenset()
    first = parameters[0].kind if parameters else inspect.Parameter.KEYWORD_ONLY
    if first in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise ConfigError(
            f"{name} takes no list", hint="its first parameter must be the list of items to answer"
        )
    further = parameters[1:]
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in further):
        return None
    empty = inspect.Parameter.empty
    for one in further:
        if one.default is empty and one.kind in _KEYWORDS:
            raise ConfigError(
                f"{name} needs `{one.name}`, which a request may leave out",
                hint=f"give `{one.name}` a default",
            )
    return frozenset(one.name for one in further if one.kind in _KEYWORDS)


@contextmanager
def _contained() -> Iterator[None]:
    """Turns SystemExit into an error of the request, because it must not end the server."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error


def _without_exit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function with `_contained`; it keeps its name, and stays sync or async."""

    @wraps(function, updated=())
    def served(items: list[Any], **options: Any) -> Any:
        with _contained():
            return function(items, **options)

    @wraps(function, updated=())
    async def served_later(items: list[Any], **options: Any) -> Any:
        with _contained():
            return await function(items, **options)

    return served_later if is_async(function) else served


def _reply(form: Form, question: Question, outcomes: list[Outcome]) -> Reply:
    """Returns the answer to the whole request. Raises the error of the first failed item."""
    replies = []
    for index, outcome in enumerate(outcomes):
        if outcome.error is not None:
            raise _for_client(
                outcome.error, f"{form.items}[{index}]" if len(question.items) > 1 else ""
            )
        assert outcome.reply is not None
        replies.append(outcome.reply)
    body = form.write(question.asked, replies)
    outputs = [reply.output for reply in replies]
    read_tokens, written = tokens_of(replies) or (None, None)
    return Reply(
        output=outputs[0] if len(outputs) == 1 else outputs,
        model=question.asked.model,
        input_tokens=read_tokens,
        output_tokens=written,
        body=body,
        headers=_JSON,
    )


def _for_client(error: CallError | NoEndpoint, item: str) -> CallError | NoEndpoint:
    """Returns the error as the client gets it: 400 if a ValueError says that an item is invalid.

    Other exceptions of the function become 500. item: the failed item, such as `input[2]`; "" if
    there is only one.
    """
    if item:
        error.what = f"{item}: {error.what}"
    if isinstance(error, Rejected) and error.status is None:
        cause = error.__cause__
        error.status = 400 if cause is None or isinstance(cause, ValueError) else 500
    return error


async def _stream(question: Question, reply: Reply, call: Call, sink: Sink) -> None:
    """Sends the complete answer as the events of a stream."""
    if not question.asked.is_stream:
        return
    events = events_of(msgspec.json.decode(reply.body), wants_usage=question.asked.wants_usage)
    call.committed = True
    await sink.begin(200, _EVENTS)
    await sink.put(Chunk("", None, b"".join(map(event_bytes, events)) + DONE_EVENT))
