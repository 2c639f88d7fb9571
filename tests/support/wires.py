"""A connection without a socket and without waiting: what it makes of bytes, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from redline.calls import Timeouts
from redline.calls.wire import ReplyMemory, Stops, Timing, chunks_in
from redline.clock import SYSTEM
from redline.errors import CallError
from support.asking import Asked
from support.raw_server import answer

_TIMEOUTS = Timeouts()


class FakeTransport(asyncio.Transport):
    """Keeps what is written. unsent: how many bytes of it wait to be sent.

    is_slow: after each write it asks its protocol to pause, until `drain`.
    """

    def __init__(self, **extra: Any) -> None:
        super().__init__(extra)
        self.written = b""
        self.unsent = 0
        self.is_aborted = False
        self.is_paused = False
        self.is_slow = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += data
        if self.is_slow:
            self.unsent = len(data)
            self.protocol.pause_writing()

    def writelines(self, data: Iterable[Any]) -> None:
        self.write(b"".join(data))

    def drain(self) -> None:
        """The peer has taken everything, and takes what is written next as slowly."""
        while self.unsent and not self.is_aborted:
            self.unsent = 0
            self.protocol.resume_writing()

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        assert not self.is_aborted, "a closed transport is paused"
        self.is_paused = True

    def resume_reading(self) -> None:
        # As uvloop's: one that is closed raises.
        assert not self.is_aborted, "a closed transport is resumed"
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent


@dataclass
class Case:
    """What a server sends, in pieces, and then does: `eof`, `reset`, or `ring` for nothing more.

    reads: `whole`, or `stream` with its answer taken apart. is_lazy: the reader wakes only once
    everything has come, or the transport is paused. is_held: after each piece, other answers leave
    no room for a moment. before: the answer to an earlier request on the same connection, in one
    piece; a connection that does not survive it is replaced by a new one. asked: the body of the
    request. takes_all: the server reads the whole request, in parts; otherwise it answers before.
    relays: of a stream, parts are passed on as they come, and whole chunks as they are on the wire.
    """

    pieces: Iterable[bytes]
    ending: str = "ring"
    reads: str = "whole"
    most_bytes: int = 100_000
    is_lazy: bool = False
    is_held: bool = False
    before: bytes = b""
    asked: bytes = b"body"
    takes_all: bool = True
    relays: bool = False


@dataclass
class Result:
    """The one thing that an exchange came to, and whether its connection may serve another."""

    status: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    error: CallError | None = None
    is_reusable: bool = False
    lost: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What must not depend on how the bytes were cut."""
        error = None if self.error is None else (type(self.error), self.error.what)
        return (self.status, self.body, self.headers, error, self.is_reusable, self.lost)


class _Reader:
    """A coroutine that is stepped by hand; the futures it waits for are set by callbacks alone."""

    def __init__(self, coro: Coroutine[Any, Any, bytes]) -> None:
        self._coro = coro
        self._awaited: asyncio.Future[Any] | None = None
        self.body: bytes | None = None
        self.error: CallError | None = None
        self.step()

    @property
    def is_over(self) -> bool:
        return self.body is not None or self.error is not None

    def step(self) -> None:
        while not self.is_over and (self._awaited is None or self._awaited.done()):
            try:
                self._awaited = self._coro.send(None)
            except StopIteration as end:
                self.body = end.value
            except CallError as error:
                self.error = error


async def _read(connection: Any, asked: Asked, case: Case) -> bytes:
    if case.reads == "whole":
        body: bytes = await connection.whole()
        return body
    await connection.head()
    if case.reads == "rest":
        connection.rest()
        return bytes(await connection.whole())
    parts = list[bytes]()
    if case.relays:
        asked.take_now, asked.chunk_taker = _takers(parts)
    while chunk := await connection.chunk():
        parts.append(chunk)
    return b"".join(parts)


def _takers(
    parts: list[bytes],
) -> tuple[Callable[[bytes], bool], Callable[[], Callable[[bytes], int]]]:
    """What takes parts of a body, and whole chunks, in turn with what its reader is given."""

    def take_now(data: bytes) -> bool:
        parts.append(data)
        return True

    def take(data: bytes) -> int:
        found = [data[start:stop] for start, stop in chunks_in(data) or ()]
        parts.extend(found)
        return sum(map(len, found))

    return take_now, lambda: take


def exchange(module: ModuleType, case: Case) -> Result:
    """What module.Connection makes of a case, inside a running loop.

    Raises AssertionError for anything but one answer or one CallError.
    """
    try:
        return _exchange(module, case)
    except (AssertionError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error


def _exchange(module: ModuleType, case: Case) -> Result:
    lost: list[Any] = []
    transport = FakeTransport()
    memory = ReplyMemory(case.most_bytes)

    def connected() -> Any:
        connection = module.Connection(lost.append, memory, Stops(SYSTEM))
        transport.protocol = connection
        connection.connection_made(transport)
        return connection

    connection = connected()
    if case.before and not _is_asked_before(connection, case.before):
        lost.clear()
        transport = FakeTransport()
        connection = connected()
    transport.written = b""
    asked = Asked(Timing(_TIMEOUTS, SYSTEM), head=b"head", body=case.asked)
    assert asked.may_leave()
    connection.open(asked, is_streamed=case.reads != "whole")
    transport.is_slow = len(case.asked) > len(b"body")
    connection.leave()
    if case.takes_all:
        transport.drain()
        assert transport.written == b"head" + case.asked
    transport.is_slow = False
    reader = _Reader(_read(connection, asked, case))
    result = Result()
    is_released = False

    def read() -> None:
        reader.step()
        nonlocal is_released
        if reader.is_over and not is_released:
            is_released = True
            if reader.error is None:
                result.status = connection.status
                result.headers = dict(connection.headers)
            result.is_reusable = connection.release()

    for piece in case.pieces:
        if transport.is_paused:
            read()
            assert not transport.is_paused, "a waiting reader does not hear of what has come"
        if transport.is_aborted:
            break
        connection.data_received(piece)
        if case.is_held:
            connection.pause()
            connection.resume()
            assert case.reads != "whole" or not transport.is_paused, "it does not read on"
        if not case.is_lazy:
            read()
    if case.ending == "ring" and not reader.is_over:
        connection.time_is_up()
    if case.ending == "eof" and not transport.is_aborted:
        if transport.is_paused:
            read()
        connection.eof_received()
    if transport.is_aborted or case.ending != "ring":
        connection.connection_lost(ConnectionResetError() if case.ending == "reset" else None)
    read()
    assert reader.is_over, "the exchange has no end"
    result.body, result.error = reader.body or b"", reader.error
    result.is_reusable, result.lost = result.is_reusable and not lost, len(lost)
    assert len(lost) <= 1
    assert len(result.body) <= case.most_bytes
    assert case.takes_all or not result.is_reusable, "the rest of a request is still to be written"
    if result.is_reusable:
        _asks_again(connection, transport)
    return result


def _is_asked_before(connection: Any, data: bytes) -> bool:
    """The connection has had this answer, and may serve another exchange."""
    asked = Asked(Timing(_TIMEOUTS, SYSTEM))
    assert asked.may_leave()
    connection.open(asked, is_streamed=False)
    connection.leave()
    connection.data_received(data)
    return bool(connection.release())


def _asks_again(connection: Any, transport: FakeTransport) -> None:
    """The next exchange on the connection gets its own answer."""
    assert not transport.is_paused
    assert connection.is_open
    asked = Asked(Timing(_TIMEOUTS, SYSTEM))
    assert asked.may_leave()
    connection.open(asked, is_streamed=False)
    connection.leave()
    reader = _Reader(connection.whole())
    connection.data_received(answer(b"2"))
    reader.step()
    assert reader.body == b"2", "an exchange gets what is left of the one before"
    connection.release()
