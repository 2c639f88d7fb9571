"""A server that sends exactly the bytes it is told to, for everything a real one may do wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from redline.httpserver import stop_accepting


@dataclass
class Seen:
    """One request as it came; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    def json(self) -> object:
        return msgspec.json.decode(self.body)


Handler = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """Listens on a free port of 127.0.0.1; `handle` writes the answer to each request.

    tls: the server's certificate, for https. reads_bodies: False leaves a request's body unread,
    for one request on each connection.
    """

    handle: Handler
    tls: ssl.SSLContext | None = None
    reads_bodies: bool = True
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> RawServer:
        self.writers: set[asyncio.StreamWriter] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._serving: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        scheme = "http" if self.tls is None else "https"
        self.base_url = f"{scheme}://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends as a killed server does: it takes no connection, and those it had are closed."""
        self._is_stopped = True
        for left in await stop_accepting(self._server):
            left.close()
        self.hang_up()
        async with asyncio.timeout(10):
            await self.closed()

    async def start(self) -> None:
        """Listens again, where it did before."""
        self._is_stopped = False
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, ssl=self.tls
        )

    def hang_up(self) -> None:
        """Closes every connection as it stands."""
        for writer in self.writers:
            writer.close()

    async def closed(self) -> None:
        """Returns once no connection is left."""
        await self._is_empty.wait()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # At once, and not in a task: one that is cancelled before its first step closes nothing.
        if self._is_stopped:
            writer.close()
            return
        self.connections += 1
        self.writers.add(writer)
        self._is_empty.clear()
        task = asyncio.create_task(self._serve(reader, writer, self.connections))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        try:
            while not writer.is_closing():
                request = await _read(reader, number, has_body=self.reads_bodies)
                self.seen.append(request)
                if not self.reads_bodies:
                    await self.handle(request, writer)
                    return
                answering = asyncio.ensure_future(self.handle(request, writer))
                # The client may leave while the handler still waits.
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    return
                gone.cancel()
                await asyncio.wait([gone])
                await answering
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            if not self.writers:
                self._is_empty.set()
            writer.close()


async def _read(reader: asyncio.StreamReader, connection: int, *, has_body: bool) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {}
    for line in head[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    size = int(headers.get("content-length", 0)) if has_body else 0
    body = await reader.readexactly(size)
    return Seen(method, target, headers, body, connection)


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection with an RST: what was not read yet may be lost."""
    # A socket of its own, because uvloop's has no setsockopt.
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def answer(body: bytes | object, status: int = 200, **headers: str) -> bytes:
    """A whole HTTP answer. body: bytes as they are, anything else as JSON."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def chat(text: str, reason: str = "stop", **more: object) -> dict[str, object]:
    """A chat completion's JSON. reason: why it ended."""
    choice = {"index": 0, "message": {"content": text}, "finish_reason": reason}
    return {"choices": [choice], "model": "m", **more}
