"""What the tests of the HTTP front share: a backend that is told when to answer, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from redline.calls import Backend, Call, Chunk, Load, Outcome, Reply, Request, Sink, failed
from redline.errors import CallError
from redline.serve.http import Door, Front

MESSAGES: Any = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"model": "m", "messages": MESSAGES}
STREAM = {**BODY, "stream": True}


def piece(text: str) -> dict[str, Any]:
    """The event of one chunk."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


class Told:
    """Puts its chunks, waits until `go` is set, and then answers or fails with `end`.

    deaf_to: how many cancellations it ignores, which no backend may.
    """

    def __init__(self, *texts: str, end: CallError | str = "done", deaf_to: int = 0) -> None:
        self.calls: list[Call] = []
        self.requests: list[Request] = []
        self.put = 0
        self.in_flight = 0
        self.cancelled = 0
        self.go = asyncio.Event()
        self._texts = texts
        self._end = end
        self._deaf_to = deaf_to

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.calls.append(call)
        self.requests.append(request)
        self.in_flight += 1
        try:
            await self._answer(sink)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        if isinstance(self._end, CallError):
            return failed(self._end)
        return Outcome(status="succeeded", reply=Reply(output=self._end))

    async def aclose(self) -> None:
        self.go.set()

    async def _answer(self, sink: Sink | None) -> None:
        if sink is not None:
            for text in self._texts:
                await sink.put(Chunk(text, piece(text)))
                self.put += 1
                await asyncio.sleep(0)
        while True:
            try:
                await self.go.wait()
                return
            except asyncio.CancelledError:
                if self.cancelled >= self._deaf_to:
                    raise
                self.cancelled += 1


@asynccontextmanager
async def serving(
    backend: Backend, **settings: Any
) -> AsyncIterator[tuple[Front, aiohttp.ClientSession]]:
    """A front and a client of it. At the end nothing may be in flight."""
    front = Front(backend, **settings)
    async with front, aiohttp.ClientSession() as session:
        yield front, session
    assert front.in_flight == 0


async def ask(
    front: Door, session: aiohttp.ClientSession, body: Any = BODY, path: str = "/chat/completions"
) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of one request."""
    async with session.post(front.base_url + path, json=body) as reply:
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return reply.status, await reply.json(content_type=None), headers


def root(front: Door) -> str:
    return front.base_url.removesuffix("/v1")


def port_of(front: Door) -> int:
    return int(root(front).rpartition(":")[2])


async def read_until_broken(reply: aiohttp.ClientResponse) -> bytes:
    """What comes of a body that is cut short; AssertionError where it is whole."""
    raw = b""
    try:
        while part := await reply.content.readany():
            raw += part
    except aiohttp.ClientPayloadError:
        return raw
    finally:
        reply.close()
    raise AssertionError("the body is whole")
