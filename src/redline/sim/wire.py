"""HTTP replies as bytes: written in one piece, or streamed with each token at its time.

aiohttp's own Response costs about 18 us more per request (measured with 64 connections and
uvloop), nearly half of what a request costs here. So the handler writes its reply and returns
one that is already sent.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import msgspec
from aiohttp import web

from redline.apis import DONE_EVENT, error_body, event_bytes

_HEADS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
JSON = "application/json"
HTML_PAGE = b"<!DOCTYPE html>\n<html><body><h1>Please try again later</h1></body></html>\n"
# What is due at once goes out in one write, up to the size of a socket buffer.
_WRITE_BYTES = 65536


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One reply: status, body, headers beyond the usual ones."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    content_type: str = JSON


class Sent(web.StreamResponse):
    """A reply that the handler has written itself; aiohttp has nothing left to do."""

    def __init__(self, *, is_kept_alive: bool) -> None:
        super().__init__()
        self._is_kept_alive = is_kept_alive

    @property
    def keep_alive(self) -> bool:
        return self._is_kept_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to prepare."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


KEPT, CLOSED = Sent(is_kept_alive=True), Sent(is_kept_alive=False)
# A request that stalls has its client leave, or ends after so long.
MAX_STALL_S = 3600.0


def encode(reply: Reply, wall_s: float, *, is_kept_alive: bool, request_id: str = "") -> bytes:
    """The reply as it goes over the wire, Content-Length and Date included."""
    lines = [
        f"content-type: {reply.content_type}",
        f"content-length: {len(reply.body)}",
        f"date: {_date(int(wall_s))}",
    ]
    if request_id:
        lines.append(f"x-request-id: {request_id}")
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if not is_kept_alive:
        lines.append("connection: close")
    return _HEADS[reply.status] + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + reply.body


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


def half(sent: bytes, body_size: int) -> bytes:
    """The reply without the second half of its body, which its head still announces."""
    return sent[: len(sent) - (body_size - body_size // 2)]


def reset(request: web.BaseRequest) -> None:
    """Resets the connection: the client sees RST, not an orderly end."""
    transport = request.transport
    if transport is None:
        return
    # Lingering for zero seconds makes close() throw the connection away with an RST.
    transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


@lru_cache(maxsize=1)
def _date(wall_s: int) -> str:
    """The HTTP date, made once a second."""
    return formatdate(wall_s, usegmt=True)


async def send_events(
    response: web.StreamResponse,
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
            await response.write(bytes(due))
            due.clear()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        due += event_bytes(event)
    finish()
    await response.write_eof(bytes(due) + DONE_EVENT)


async def send_half(
    response: web.StreamResponse, events: Iterable[tuple[int, dict[str, Any]]]
) -> None:
    """Writes the first half of the events, the last of them torn in the middle, and no end."""
    whole = b"".join(event_bytes(event) for _, event in events)
    await response.write(whole[: len(whole) // 2])
