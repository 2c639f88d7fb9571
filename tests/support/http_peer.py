"""An HTTP server made of one function, and a client of it that sends bytes and reads with h11."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import h11

from redline.httpserver import Exchange, HttpServer

Handle = Callable[[Exchange], Awaitable[None]]


class Served(HttpServer):
    """Answers with `handle`, and keeps the paths that it was asked for."""

    def __init__(self, handle: Handle, *, grace_s: float = 0.0, **settings: Any) -> None:
        super().__init__("the server", ("127.0.0.1", 0), **settings)
        self._answer = handle
        self._grace_s = grace_s
        self.paths: list[str] = []
        self.cancelled: list[str] = []
        self.in_flight = 0

    @property
    def port(self) -> int:
        return int(self.base_url.removesuffix("/v1").rpartition(":")[2])

    async def _handle(self, exchange: Exchange) -> None:
        self.paths.append(exchange.path)
        self.in_flight += 1
        try:
            await self._answer(exchange)
        except asyncio.CancelledError:
            self.cancelled.append(exchange.path)
            raise
        finally:
            self.in_flight -= 1

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._grace_s):
                while self.in_flight:  # noqa: ASYNC110 - a plain number
                    await asyncio.sleep(0.001)
        except TimeoutError:
            pass


class Plain(HttpServer):
    """Answers with a plain function, which may return a coroutine for the rest."""

    def __init__(self, answer: Callable[[Exchange], Coroutine[Any, Any, None] | None]) -> None:
        super().__init__("the server", ("127.0.0.1", 0))
        self._answer = answer

    @property
    def port(self) -> int:
        return int(self.base_url.removesuffix("/v1").rpartition(":")[2])

    def _handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        return self._answer(exchange)

    async def _drain(self) -> None: ...


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._parser = h11.Connection(h11.CLIENT)

    async def send(self, data: bytes, *, step: int = 0) -> None:
        """Sends it at once, or `step` bytes at a time."""
        for start in range(0, len(data), step or len(data) or 1):
            self.writer.write(data[start : start + (step or len(data))])
            if step:
                await asyncio.sleep(0)
        await self.writer.drain()

    async def answer(self, method: str = "GET") -> Answer:
        """The next response; what its method was decides whether it has a body."""
        if self._parser.our_state is h11.DONE:
            self._parser.start_next_cycle()
        self._parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        self._parser.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = b""
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                self._parser.receive_data(await self.reader.read(65_536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Answer(head.status_code, headers, body)

    async def ask(self, data: bytes, method: str = "GET") -> Answer:
        await self.send(data)
        return await self.answer(method)

    async def rest(self) -> bytes:
        """What comes until the server closes the connection."""
        return self._parser.trailing_data[0] + await self.reader.read()


@asynccontextmanager
async def peer(server: Served | Plain, **settings: Any) -> AsyncIterator[Peer]:
    """A client that closes its connection at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **settings)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass
