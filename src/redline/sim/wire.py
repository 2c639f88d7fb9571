"""Sends the simulated provider's replies: whole, halved, or streamed with timed tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from redline.apis import error_body
from redline.httpserver import JSON, Exchange, header_lines

# Events that are due together are sent in one write, up to the size of a socket buffer.
_WRITE_BYTES = 65536
# A stalled request ends when its client leaves, or after this time.
MAX_STALL_S = 3600.0


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One reply. fields: header lines, as `header_lines` returns them."""

    status: int
    body: bytes
    fields: bytes = JSON


NOT_JSON = Reply(
    200,
    b"<!DOCTYPE html>\n<html><body><h1>Please try again later</h1></body></html>\n",
    header_lines({"content-type": "text/html; charset=utf-8"}),
)


def send(exchange: Exchange, reply: Reply, number: int = 0) -> None:
    """Sends the reply at once. number: the request's number, for its id; 0 for no id."""
    status, fields = reply.status, reply.fields
    if number:
        fields += request_id(number)
    exchange.respond(status, reply.body, fields, is_last=status == 413)


def request_id(number: int) -> bytes:
    """Returns the header line with the id of a request."""
    return b"x-request-id: req-sim%d\r\n" % number


def send_first_half(exchange: Exchange, reply: Reply) -> None:
    """Sends the head and the first half of the body, then closes the connection.

    The Content-Length in the head is that of the whole body.
    """
    head = exchange.head(reply.status, len(reply.body), reply.fields)
    exchange.transport.write(head + reply.body[: len(reply.body) // 2])
    exchange.close()


def json_reply(shown: object) -> Reply:
    """Returns a reply with the value as JSON."""
    return Reply(200, msgspec.json.encode(shown))


def error_reply(
    status: int,
    message: str,
    kind: str,
    *,
    code: str | None = None,
    headers: Mapping[str, str] = {},
) -> Reply:
    """Returns a reply with the JSON of `error_body`. headers: sent besides the content type."""
    body = msgspec.json.encode(error_body(message, kind, code=code))
    return Reply(status, body, JSON + header_lines(headers))


class StreamEvent(NamedTuple):
    """One event of a stream. tokens: completion tokens up to and including the event."""

    tokens: int
    data: bytes
    has_text: bool = False


async def send_events(
    exchange: Exchange,
    events: Iterable[StreamEvent],
    per_token_s: float,
    on_text: Callable[[], None],
) -> bytes:
    """Writes the events, each `per_token_s` times its token count after the start.

    on_text: called when an event with text is due. A slow reader delays the events. Returns the
    events that are due but not yet written, for the caller to send with the end of the stream.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    due = bytearray()
    for event in events:
        wait_s = began_s + per_token_s * event.tokens - loop.time() if per_token_s else 0.0
        if due and (wait_s > 0 or len(due) >= _WRITE_BYTES):
            await exchange.write(bytes(due))
            due.clear()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        due += event.data
        if event.has_text:
            on_text()
    return bytes(due)


async def send_half_events(exchange: Exchange, events: Iterable[StreamEvent]) -> None:
    """Writes the first half of the events' bytes, without an end, and closes the connection."""
    whole = b"".join(event.data for event in events)
    await exchange.write(whole[: len(whole) // 2])
    exchange.close()
