"""Replies of the simulated provider: whole, halved, or streamed with each token at its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from redline.apis import DONE_EVENT, error_body, event_bytes
from redline.httpserver import Exchange, header_lines

JSON = "application/json"
HTML_PAGE = b"<!DOCTYPE html>\n<html><body><h1>Please try again later</h1></body></html>\n"
# What is due at once goes out in one write, up to the size of a socket buffer.
_WRITE_BYTES = 65536
# A request that stalls has its client leave, or ends after so long.
MAX_STALL_S = 3600.0


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One reply: status, body, headers beyond the usual ones."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    content_type: str = JSON

    def fields(self, request_id: str = "") -> bytes:
        """Its header lines."""
        fields = _content_type(self.content_type)
        if request_id:
            fields += b"x-request-id: %b\r\n" % request_id.encode()
        return fields + header_lines(self.headers) if self.headers else fields


def send(exchange: Exchange, reply: Reply, request_id: str = "") -> None:
    """Sends the reply, all at once."""
    exchange.respond(
        reply.status, reply.body, reply.fields(request_id), is_last=reply.status == 413
    )


def send_first_half(exchange: Exchange, reply: Reply) -> None:
    """Sends a reply without the second half of its body, which its head announces; then closes."""
    head = exchange.head(reply.status, len(reply.body), reply.fields())
    exchange.transport.write(head + reply.body[: len(reply.body) // 2])
    exchange.close()


@lru_cache(maxsize=8)
def _content_type(kind: str) -> bytes:
    return header_lines({"content-type": kind})


def json_reply(shown: object) -> Reply:
    """What is shown, as JSON."""
    return Reply(200, msgspec.json.encode(shown))


def error_reply(
    status: int,
    message: str,
    kind: str,
    *,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """An error as `error_body` writes it."""
    return Reply(status, msgspec.json.encode(error_body(message, kind, code=code)), headers or {})


async def send_events(
    exchange: Exchange,
    events: Iterable[tuple[int, dict[str, Any]]],
    per_token_s: float,
    finish: Callable[[], None],
) -> None:
    """Writes the events, each `per_token_s` times its token count after the first moment.

    finish: called once everything but the last piece has been written.
    The reader's pace is kept: a slow one holds the events back.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    due = bytearray()
    for tokens, event in events:
        wait_s = began_s + per_token_s * tokens - loop.time() if per_token_s else 0.0
        if due and (wait_s > 0 or len(due) >= _WRITE_BYTES):
            await exchange.write(bytes(due))
            due.clear()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        due += event_bytes(event)
    finish()
    await exchange.end(bytes(due) + DONE_EVENT)


async def send_half_events(
    exchange: Exchange, events: Iterable[tuple[int, dict[str, Any]]]
) -> None:
    """Writes the first half of the events, the last of them torn in the middle, and no end."""
    whole = b"".join(event_bytes(event) for _, event in events)
    await exchange.write(whole[: len(whole) // 2])
    exchange.close()
