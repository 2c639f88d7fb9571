"""Forwards calls to a backend, and answers to clients, as bytes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from redline.apis import EventParser, chat, completions, is_usage_event, responses
from redline.calls import Backend, Call, Chunk, Outcome, Outlet, Request, Sink
from redline.calls.tokens import NOT_JSON, TRUE, BodyFacts, facts_of, keep_facts
from redline.errors import CallError, NoEndpoint
from redline.httpserver import JSON, TEXT, Exchange, header_lines
from redline.serve.http.door import Door, Page
from redline.serve.http.event_stream import AT_ONCE, ClientStream
from redline.serve.http.messages import Send, answer_messages
from redline.serve.http.refusals import Refusal, own_status, refusal_of, retry_headers
from redline.serve.http.replies import CACHED
from redline.serve.http.requests import MESSAGES_CALLS, Bounds, not_json
from redline.serve.http.routes import Routes

_ID_LINE = b"x-request-id: %b\r\n"
# Matches the event with the usage, which redline requests to settle limits: it has no choices.
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
# The paths whose streams report usage only on request.
_ASKED_FOR_USAGE = frozenset({chat.API.path, completions.API.path})


class Relay(Door):
    """A server that forwards calls, in an `async with` block or from `start` to `aclose`.

    Bodies reach `backend` unchanged, except that streamed chats and completions request usage. An
    endpoint's answers and refusals reach the client unchanged, unless the endpoint refuses the
    server's own key or account. Streams are forwarded as they arrive, without the usage if the
    client did not request it. Calls to Anthropic's Messages API are translated to chats. The
    backend is closed by its owner. pages, routes: see Door. trouble: returns why no call can be
    answered, now or later; None if calls can be answered.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        models: Sequence[str] = (),
        address: tuple[str, int] = ("127.0.0.1", 0),
        pages: Mapping[str, Page] | None = None,
        trouble: Callable[[], Refusal | None] = lambda: None,
        bounds: Bounds | None = None,
        routes: Routes | None = None,
    ) -> None:
        self._backend = backend
        super().__init__(
            models=models,
            address=address,
            pages=pages or {},
            bounds=bounds,
            routes=routes,
        )
        self._find_trouble = trouble
        self._held: dict[asyncio.Timeout, Call] = {}

    def refuse_waiting(self) -> None:
        """Refuses the calls not yet sent to an endpoint, if no call can be answered."""
        if self._trouble() is not None:
            for wait, call in self._held.items():
                if call.sent_s is None and not call.committed:
                    wait.reschedule(0.0)

    def _trouble(self) -> Refusal | None:
        return self._find_trouble()

    async def _answer(self, exchange: Exchange) -> None:
        raw = await self._body(exchange)
        facts = facts_of(raw)
        call = Call(priority=facts.priority or 0)
        exchange.holds(lambda _: call.held is not None and call.held.is_wanted)
        # Messages are translated with a more lenient JSON parser.
        if facts is NOT_JSON and exchange.path not in MESSAGES_CALLS:
            raise not_json(raw)
        try:
            await pass_on(exchange, raw, facts, partial(self._send, call=call))
        finally:
            call.let_go()

    async def _send(self, request: Request, sink: Sink | None, call: Call) -> Outcome:
        """Sends a call to the backend, and returns its outcome.

        Raises Refusal if the door closes first, or if no endpoint can answer.
        """
        if (trouble := self._trouble()) is not None:
            raise trouble
        wait = asyncio.timeout(None)
        self._held[wait] = call
        try:
            async with wait:
                return await self._until_closed(self._backend.send(request, call, sink))
        except TimeoutError:
            trouble = self._trouble() if wait.expired() else None
            if trouble is None:
                raise
            raise trouble from None
        finally:
            del self._held[wait]


class Passed(ClientStream):
    """Forwards the bytes of a stream to the client of an exchange.

    has_usage: the client requested the event with the usage; otherwise the event is dropped.
    request_id: sent if the endpoint's response has no request id; empty for none.
    """

    relays = True

    def __init__(self, exchange: Exchange, *, has_usage: bool, request_id: str = "") -> None:
        self._exchange = exchange
        self.request_id = request_id
        self._has_usage = has_usage

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        await self._exchange.begin(status, _fields(headers, self.request_id) + AT_ONCE)

    async def put(self, chunk: Chunk) -> None:
        data = chunk.raw
        if not self._has_usage and _NO_CHOICES.search(data):
            data = _without_usage(data)
        if data:
            await self._write(data)

    def put_now(self, raw: bytes) -> bool:
        # `raw` contains usage only if the client requested it.
        return self._exchange.write_now(raw)

    def outlet(self) -> Outlet | None:
        return self._exchange.outlet


async def pass_on(
    exchange: Exchange, raw: bytes, facts: BodyFacts, send: Send, *, request_id: str = ""
) -> None:
    """Answers a call with the outcome of `send`, whole or as a stream.

    Calls to the Messages API are translated to chats. raw: the body of the call. request_id: see
    Passed. If the call fails, raises Refusal, passes on the endpoint's error response or, in a
    stream that has begun, sends an error event.
    """
    if exchange.path in MESSAGES_CALLS:
        await answer_messages(exchange, raw, send, request_id=request_id)
        return
    if exchange.path == responses.API.path and facts.is_deferred:
        raise Refusal(
            "This server does not support background responses that are fetched later: remove "
            "`background`, or set `stream`.",
            param="background",
        )
    has_usage = False
    if facts.stream and exchange.path in _ASKED_FOR_USAGE:
        raw, has_usage = _with_usage(raw, facts)
    request = Request.read(raw, exchange.path, facts.model)
    keep_facts(request, facts)
    stream = Passed(exchange, has_usage=has_usage, request_id=request_id)
    try:
        outcome = await send(request, stream if facts.stream else None)
        await _pass_back(exchange, outcome, stream)
    except Refusal as refusal:
        if not stream.has_begun:
            raise
        await stream.fail(refusal)


def _with_usage(raw: bytes, facts: BodyFacts) -> tuple[bytes, bool]:
    """Returns a body that requests usage, and whether the client itself requested usage.

    Limits need the usage of every stream. facts: those of the body, which change with the body.
    """
    options = facts.stream_options if isinstance(facts.stream_options, dict) else {}
    stated = options.get("include_usage")
    if stated is True:
        return raw, True
    facts.stream_options = {**options, "include_usage": True}
    changed = Request(raw=raw).with_fields(stream_options=facts.stream_options)
    return changed.raw or raw, str(stated).lower() in TRUE


async def _pass_back(exchange: Exchange, outcome: Outcome, stream: Passed) -> None:
    """Answers as the endpoint did. Raises Refusal if no endpoint's response can be passed on."""
    if outcome.error is not None:
        _refuse(exchange, outcome.error, stream)
    elif stream.has_begun:
        await exchange.end()
    else:
        reply = outcome.reply
        assert reply is not None
        fields = _fields(reply.headers, stream.request_id)
        if outcome.is_cached:
            fields += JSON + CACHED
        exchange.respond(reply.status, reply.body, fields)
        # The call is in flight until its client has taken the response.
        await exchange.drained()


def _fields(headers: Mapping[str, str], request_id: str = "") -> bytes:
    """Returns the header lines for the client, given the headers of the endpoint's response."""
    try:
        fields = _type_line(headers.get("content-type"))
        if "x-request-id" in headers:
            return fields + header_lines({"x-request-id": headers["x-request-id"]})
    except ValueError:
        return JSON
    return fields + _ID_LINE % request_id.encode() if request_id else fields


@lru_cache(maxsize=64)
def _type_line(content_type: str | None) -> bytes:
    """Returns the header line with this content type; empty for None. Raises ValueError."""
    return b"" if content_type is None else header_lines({"content-type": content_type})


def _refuse(exchange: Exchange, error: CallError | NoEndpoint, stream: Passed) -> None:
    """Passes on the endpoint's error response if `own_status` has one; otherwise raises Refusal."""
    status = own_status(error)
    if stream.has_begun or status is None or isinstance(error, NoEndpoint):
        raise refusal_of(error)
    headers = retry_headers(error)
    if stream.request_id:
        headers["x-request-id"] = stream.request_id
    fields = JSON if error.body[:1] in b"{[" else TEXT
    exchange.respond(status, error.body, fields + header_lines(headers))


def status_of(outcome: Outcome) -> int:
    """Returns the HTTP status that `pass_on` sends for the outcome, unless a stream has begun."""
    error = outcome.error
    if error is None:
        assert outcome.reply is not None
        return outcome.reply.status
    return own_status(error) or refusal_of(error).status


def _without_usage(data: bytes) -> bytes:
    """Returns the events in `data`, except the event with the usage."""
    parser = EventParser()
    kept = [raw for raw, event in parser.blocks(data) if not _is_usage(event)]
    return b"".join([*kept, parser.left()])


def _is_usage(event: bytes | None) -> bool:
    if event is None or _NO_CHOICES.search(event) is None:
        return False
    try:
        return is_usage_event(msgspec.json.decode(event))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
