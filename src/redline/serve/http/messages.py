"""Serves Anthropic's Messages API in front of a backend that answers chats.

Requests are translated to chats, and answers to messages; see `redline.apis.messages`. Errors have
the shape of the Messages API; an endpoint's errors keep their status and text, unless the endpoint
refuses the server's own key or account.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from threading import Lock
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

# Sends the chat request; the answer is streamed to the sink, if there is one.
Send = Callable[[Request, Sink | None], Awaitable[Outcome]]
# All requests can share this estimator, since it learns nothing from replies.
_ESTIMATOR = TokenEstimator()
# A larger body is translated in a thread, so that it does not hold up other calls: translation
# takes 5 ms for the 2,500 blocks that fit into 64 KiB, and seconds for the million in 32 MiB.
_LARGE_BYTES = 64 * 1024
# Still larger bodies are translated one at a time: beside twelve translations, the event loop would
# get a thirteenth of the interpreter's time.
_HUGE_BYTES = 2**20
_TURN = Lock()


async def answer_messages(
    exchange: Exchange, raw: bytes, send: Send, *, request_id: str = ""
) -> None:
    """Answers a request to one of MESSAGES_CALLS.

    raw: the request's body. send: called for a message, but not to count tokens. request_id: used
    if the endpoint's response has no id; if it is empty, a new id is made. If the request fails,
    raises Refusal or, in a stream that has begun, sends an error event.
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
        # The call is in flight until its client has taken the response.
        await exchange.drained()
    except Refusal as refusal:
        if stream is None or not stream.has_begun:
            raise
        await stream.fail(refusal)


async def count_tokens(exchange: Exchange, raw: bytes, *, request_id: str = "") -> None:
    """Answers a request to COUNT_TOKENS with an estimate.

    raw, request_id: as for `answer_messages`. Raises Refusal if the request is not valid.
    """
    cost = _ESTIMATOR.estimate(Request(body=await _translated(raw, prompt_of)))
    counted = msgspec.json.encode({"input_tokens": cost.input_tokens})
    fields = header_lines({"request-id": request_id or new_request_id()})
    exchange.respond(200, counted, JSON + fields)


async def _translated(raw: bytes, translate: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    def translated() -> dict[str, Any]:
        with _TURN if len(raw) > _HUGE_BYTES else nullcontext():
            return translate(loose_json.decoded(raw))

    try:
        return translated() if len(raw) < _LARGE_BYTES else await in_thread(translated)
    except UntranslatableError as error:
        raise Refusal(str(error), param=error.param) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(f"The body of the request could not be read as JSON: {error}") from None


def _whole(request: Request, reply: Reply) -> Any:
    """Returns the reply as a chat completion. Raises Refusal if it is not JSON."""
    asked = Asked(
        request=request, model=request.body["model"], priority=0, is_stream=False, wants_usage=True
    )
    try:
        return loose_json.decoded(body_of(asked, reply))
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the answer is not JSON: {error}", status=502) from error


class _Stream(ClientStream):
    """The sink of a streamed message.

    relays: the backend passes raw bytes, which only this sink parses. A backend without raw bytes
    passes parsed events.
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
            # The endpoint does not stream: this is its whole answer, which is also in the reply.
            return
        if chunk.raw:
            data = self._translation.feed(chunk.raw)
        else:
            data = self._translation.take(chunk.data)
        if data:
            await self._write(data)

    async def finish(self, whole: Any) -> None:
        """Ends the stream.

        whole: the chat completion of a backend that sent no chunk; None otherwise. Raises CallError
        if `whole` is not a chat completion.
        """
        if whole is not None:
            await self._write(self._translation.take(whole))
        await self._exchange.end(self._translation.end())

    def _fields(self) -> bytes:
        return STREAM_HEADERS + header_lines({"request-id": self._request_id})

    def _error(self, refusal: Refusal) -> bytes:
        return event_bytes(messages_error(refusal.status, str(refusal), self._request_id), "error")


def _id_of(headers: Mapping[str, str], otherwise: str) -> str:
    """Returns the request id in the endpoint's headers; `otherwise` if it is missing or invalid."""
    found = headers.get("x-request-id", "")
    return found if found.isascii() and found.isprintable() and found else otherwise


def _refusal(error: CallError | NoEndpoint) -> Refusal:
    """Returns the refusal for a failed call: the endpoint's own error, if `own_status` has one."""
    status = own_status(error)
    if status is None or isinstance(error, NoEndpoint):
        return refusal_of(error)
    return Refusal(read_error(error.body).message, status=status, headers=retry_headers(error))
