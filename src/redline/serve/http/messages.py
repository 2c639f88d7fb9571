"""Anthropic's Messages API in front of a backend that answers chats.

A request becomes a chat, and its answer a message, see `redline.apis.messages`. Errors have the
shape of the Messages API: those of the endpoint keep their status and their text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from redline.apis import chat, event_bytes, loose_json
from redline.apis.errors import read_error
from redline.apis.messages import (
    COUNT_TOKENS,
    MessageStream,
    UntranslatableError,
    chat_of,
    message_of,
    messages_error,
    prompt_of,
)
from redline.calls import Chunk, Outcome, Reply, Request, Sink
from redline.calls.tokens import TokenEstimator
from redline.errors import CallError, NoEndpoint
from redline.httpserver import JSON, Exchange, header_lines
from redline.process import in_thread
from redline.serve.http.event_stream import STREAM_HEADERS, ClientStream
from redline.serve.http.refusals import (
    Refusal,
    new_request_id,
    own_status,
    refusal_of,
    retry_headers,
)
from redline.serve.http.replies import CACHED, body_of
from redline.serve.http.requests import Asked

# Sends the chat request, and its stream to the sink if there is one.
Send = Callable[[Request, Sink | None], Awaitable[Outcome]]
# Learns nothing from replies, so one is enough for all.
_ESTIMATOR = TokenEstimator()
# The translation of a larger body may hold other calls up: it takes 5 ms for the 2,500 blocks that
# 64 KiB can have, and seconds for the million of 32 MiB.
_LARGE_BYTES = 64 * 1024


async def answer_messages(
    exchange: Exchange, raw: bytes, send: Send, *, request_id: str = ""
) -> None:
    """Answers a request to one of MESSAGES_CALLS. Raises Refusal if it has not begun to.

    raw: the request's body. send: called for a message, not for a count of tokens. request_id: of
    an answer whose endpoint gave none; made up if empty.
    """
    if exchange.path == COUNT_TOKENS:
        await count_tokens(exchange, raw, request_id=request_id)
        return
    body = await _translated(raw, chat_of)
    del raw
    request = Request(body=body, url=chat.API.path)
    request_id = request_id or new_request_id()
    said = {"model": body["model"], "stop_sequences": body.get("stop", [])}
    stream = _Stream(exchange, MessageStream(**said), request_id) if body.get("stream") else None
    try:
        outcome = await send(request, stream)
        if outcome.error is not None:
            raise _refusal(outcome.error)
        reply = outcome.reply
        assert reply is not None
        try:
            if stream is not None:
                await stream.finish(None if stream.has_begun else _whole(request, reply))
                return
            message = message_of(_whole(request, reply), **said)
        except CallError as error:
            raise refusal_of(error) from error
        fields = JSON + header_lines({"request-id": _id_of(reply.headers, request_id)})
        if outcome.is_cached:
            fields += CACHED
        exchange.respond(200, msgspec.json.encode(message), fields)
        # In flight until its client has taken it.
        await exchange.drained()
    except Refusal as refusal:
        if stream is None or not stream.has_begun:
            raise
        await stream.fail(refusal)


async def count_tokens(exchange: Exchange, raw: bytes, *, request_id: str = "") -> None:
    """Answers a request to COUNT_TOKENS with an estimate. Raises Refusal for one that is not valid.

    raw, request_id: as for `answer_messages`.
    """
    cost = _ESTIMATOR.estimate(Request(body=await _translated(raw, prompt_of)))
    counted = msgspec.json.encode({"input_tokens": cost.input_tokens})
    fields = header_lines({"request-id": request_id or new_request_id()})
    exchange.respond(200, counted, JSON + fields)


async def _translated(raw: bytes, translate: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    def translated() -> dict[str, Any]:
        return translate(loose_json.decoded(raw))

    try:
        return translated() if len(raw) < _LARGE_BYTES else await in_thread(translated)
    except UntranslatableError as error:
        raise Refusal(str(error), param=error.param) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(f"The body of the request could not be read as JSON: {error}") from None


def _whole(request: Request, reply: Reply) -> Any:
    """The chat that answers. Raises Refusal if there is none."""
    asked = Asked(
        request=request, model=request.body["model"], priority=0, is_stream=False, wants_usage=True
    )
    try:
        return loose_json.decoded(body_of(asked, reply))
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the answer is not JSON: {error}", status=502) from error


class _Stream(ClientStream):
    """The sink of a message that is streamed.

    relays: the bytes are read here, and nowhere else. Events of backends that have no bytes are
    taken, too.
    """

    relays = True

    def __init__(self, exchange: Exchange, translation: MessageStream, request_id: str) -> None:
        self._exchange = exchange
        self._translation = translation
        self._request_id = request_id

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._request_id = _id_of(headers, self._request_id)

    async def put(self, chunk: Chunk) -> None:
        if chunk.raw.lstrip()[:1] == b"{":
            # The whole answer of an endpoint that does not stream: the reply has it as well.
            return
        if chunk.raw:
            data = self._translation.feed(chunk.raw)
        else:
            data = self._translation.take(chunk.data)
        if data:
            await self._write(data)

    async def finish(self, whole: Any) -> None:
        """Ends the stream. whole: the chat of a backend that gave no chunk; None otherwise.

        Raises CallError if `whole` is not a chat.
        """
        if whole is not None:
            await self._write(self._translation.take(whole))
        await self._exchange.end(self._translation.end())

    def _fields(self) -> bytes:
        return STREAM_HEADERS + header_lines({"request-id": self._request_id})

    def _error(self, refusal: Refusal) -> bytes:
        return event_bytes(messages_error(refusal.status, str(refusal), self._request_id), "error")


def _id_of(headers: Mapping[str, str], otherwise: str) -> str:
    """The id that the endpoint gave its answer."""
    found = headers.get("x-request-id", "")
    return found if found.isascii() and found.isprintable() and found else otherwise


def _refusal(error: CallError | NoEndpoint) -> Refusal:
    """The refusal for a failed call: with the endpoint's own message if the client caused it."""
    status = own_status(error)
    if status is None or isinstance(error, NoEndpoint):
        return refusal_of(error)
    return Refusal(read_error(error.body).message, status=status, headers=retry_headers(error))
