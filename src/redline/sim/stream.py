"""Streamed replies: server-sent events, each token at its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

DONE = b"data: [DONE]\n\n"
# What is due at once goes out in one write, up to the size of a socket buffer.
_WRITE_BYTES = 65536


def event_bytes(event: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


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
    await response.write_eof(bytes(due) + DONE)


async def send_half(
    response: web.StreamResponse, events: Iterable[tuple[int, dict[str, Any]]]
) -> None:
    """Writes the first half of the events, the last of them torn in the middle, and no end."""
    whole = b"".join(event_bytes(event) for _, event in events)
    await response.write(whole[: len(whole) // 2])
