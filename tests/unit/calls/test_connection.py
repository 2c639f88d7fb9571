"""The parser glue without sockets: however the bytes are cut, the same answer or the same error."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls import Timeouts
from redline.calls.wire import MOST_HEADER_BYTES, Connection, ReplyMemory, Stops, Timing
from redline.clock import SYSTEM
from redline.errors import BadReply, CallError, Disconnected, TimedOut
from support.answers import CHUNKED, CLOSE, GZIP, MOST_BYTES, RIGHT, TEXT, WRONG, chunked, head
from support.asking import Asked
from support.catching import assert_caught
from support.raw_server import answer
from support.wires import Case, FakeTransport, Result, exchange

ENDINGS = {"keep": "ring", "hold": "ring", "close": "eof", "reset": "reset"}
SMALL = 3_000


def run(kind: Any, *cases: Case) -> list[Result]:
    async def main() -> list[Result]:
        return [exchange(SimpleNamespace(Connection=kind), case) for case in cases]

    return asyncio.run(main())


def cuts(data: bytes, every: int = 1) -> Iterator[list[bytes]]:
    """The data whole, a byte at a time, and in two pieces at each `every`th position."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data), every):
        yield [data[:at], data[at:]]


READERS = list(itertools.product(("whole", "stream", "rest"), (False, True)))


def cases(data: bytes, ending: str, every: int) -> list[Case]:
    """Each cut is read by two of READERS in turn, and the first two cuts by all."""
    return [
        Case(pieces, ENDINGS[ending], reads, MOST_BYTES, is_lazy)
        for number, pieces in enumerate(cuts(data, every))
        for turn, (reads, is_lazy) in enumerate(READERS)
        if number < 2 or turn % 3 == number % 3
    ]


def check_right(kind: Any, every: int = 61) -> None:
    for name, (data, ending, body) in RIGHT.items():
        keeps = ending == "keep"
        for result in run(kind, *cases(data, ending, every)):
            assert result.error is None, name
            assert (result.body, result.is_reusable) == (body, keeps), name
            assert result.lost == (not keeps and ending != "hold"), name


def check_wrong(kind: Any, every: int = 61) -> None:
    for name, (data, ending, error) in WRONG.items():
        every = every if len(data) < SMALL else len(data) // 5 + 1
        pieces = cases(data, ending, every)
        if len(data) > SMALL:
            pieces = [case for case in pieces if len(list(case.pieces)) <= 2]
        results = run(kind, *pieces)
        assert all(isinstance(result.error, error) for result in results), name
        assert not any(result.is_reusable for result in results), name
        # The error is the same, too, wherever the reader hears of it.
        assert len({result.key[3] for result in results}) == 1, name


def test_a_right_answer_is_the_same_in_every_cut() -> None:
    check_right(Connection, every=1)


def test_a_wrong_answer_is_the_same_error_in_every_cut() -> None:
    check_wrong(Connection, every=1)


# Bounds.


def check_bounds(kind: Any) -> None:
    most = MOST_HEADER_BYTES
    line = b"X: " + b"a" * 1000 + b"\r\n"
    room = most // len(line)
    fits = b"HTTP/1.1 200 OK\r\n" + line * (room - 1) + b"Content-Length: 2\r\n\r\nab"
    over = b"HTTP/1.1 200 OK\r\n" + line * (room + 2) + b"Content-Length: 2\r\n\r\nab"
    body = b"b" * 2 * most
    large = head(f"Content-Length: {len(body)}") + body
    for data, size in ((fits, 2), (large, len(body)), (over, None)):
        for step in (1000, 65_536, len(data)):
            pieces = [data[at : at + step] for at in range(0, len(data), step)]
            (result,) = run(kind, Case(pieces, most_bytes=10 * most))
            assert (None if result.error else len(result.body)) == size
            if size is None:
                assert isinstance(result.error, BadReply)
    endless = [b"HTTP/1.1 200 OK\r\nX: "] + [b"a" * 1000] * 1000
    trailers = [CHUNKED + b"0\r\n"] + [line] * 1000
    extension = [CHUNKED + b"2;"] + [b"a" * 1000] * 1000
    interim = [head(status="HTTP/1.1 100 Continue")] * 40 + [answer(b"x")]
    for pieces in (endless, trailers, extension, interim):
        (result,) = run(kind, Case(pieces))
        assert isinstance(result.error, BadReply)
    for reads in ("whole", "stream", "rest"):
        chunks = [CHUNKED] + [b"64\r\n" + b"x" * 100 + b"\r\n"] * 60
        closes = [CLOSE] + [b"x" * 100] * 60
        bomb = [answer(gzip.compress(b"\0" * 5_001), Content_Encoding="gzip")]
        for pieces in (chunks, closes, bomb):
            (result,) = run(kind, Case(pieces, "eof", reads, most_bytes=5_000))
            assert isinstance(result.error, BadReply)
            assert result.error.what == "the response is longer than 5,000 bytes"
        (result,) = run(kind, Case([answer(b"x" * 5_000)], reads=reads, most_bytes=5_000))
        assert result.error is None
    # What a stream's reader has taken is bounded as well, not only what waits for it.
    slow = [CLOSE] + [b"x" * 100_000] * 60
    (result,) = run(kind, Case(slow, "eof", "stream", most_bytes=1_000_000, is_lazy=True))
    assert isinstance(result.error, BadReply)


def test_a_slow_reader_pauses_the_socket_and_hears_of_everything() -> None:
    chunks = [CHUNKED] + [b"186a0\r\n" + b"x" * 100_000 + b"\r\n"] * 20 + [b"0\r\n\r\n"]
    for reads in ("stream", "rest"):
        (result,) = run(Connection, Case(chunks, reads=reads, most_bytes=1 << 30, is_lazy=True))
        assert result.body == b"x" * 2_000_000
        assert result.is_reusable


def test_short_chunks_of_a_long_body_take_little_more_memory_than_long_ones() -> None:
    body = bytes(range(256)) * 8000

    def peak(chunk_bytes: int) -> int:
        parts = (body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes))
        data = CHUNKED + chunked(*parts)
        reads = [data[at : at + 10_000] for at in range(0, len(data), 10_000)]
        tracemalloc.start()
        try:
            (result,) = run(Connection, Case(reads, most_bytes=1 << 30))
            assert result.body == body
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(2) < 3 * peak(10_000)


# What may serve again.


class Asking:
    """One connection, taken through exchanges by hand."""

    def __init__(self, kind: Any, most_bytes: int = MOST_BYTES) -> None:
        self.lost: list[Any] = []
        self.transport = FakeTransport()
        memory = ReplyMemory(most_bytes)
        self.connection = kind(self.lost.append, memory, Stops(SYSTEM))
        self.connection.connection_made(self.transport)

    def write(self, body: bytes = b"", *, is_streamed: bool = False) -> None:
        asked = Asked(Timing(Timeouts(), SYSTEM), head=b"head", body=body)
        assert asked.may_leave()
        self.connection.open(asked, is_streamed=is_streamed)
        if not self.connection.is_open:
            self.connection.found_unread()
        self.connection.leave()

    def get(self, data: bytes) -> None:
        try:
            self.connection.data_received(data)
        except AttributeError as error:
            raise AssertionError("data without an exchange") from error

    async def body(self) -> bytes:
        async with asyncio.timeout(1):
            body: bytes = await self.connection.whole()
            return body


def check_reuse(kind: Any) -> None:
    async def main() -> None:
        switch = b"HTTP/1.1 101 Switch\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        for junk in (answer(b"stolen"), b"x", b"HTTP/1.1 101 Switch\r\n\r\n", switch, b"HTTP/1.1"):
            for is_apart in (False, True):
                asking = Asking(kind)
                for number in range(3):
                    asking.write()
                    asking.get(answer(b"%d" % number))
                    assert await asking.body() == b"%d" % number
                    assert asking.connection.release()
                asking.write()
                asking.get(answer(b"last") + (b"" if is_apart else junk))
                if is_apart:
                    asking.get(junk)
                assert await asking.body() == b"last"
                assert not asking.connection.release()
                idle = Asking(kind)
                idle.get(junk)
                assert not idle.connection.is_open
                assert len(idle.lost) == 1
        unfinished = Asking(kind)
        unfinished.write()
        unfinished.get(answer(b"cut")[:-1])
        assert not unfinished.connection.release()
        unsent = Asking(kind)
        unsent.write()
        unsent.get(answer(b"early"))
        unsent.transport.unsent = 1
        assert not unsent.connection.release()
        broken = Asking(kind)
        broken.write()
        broken.get(answer(b"early"))
        broken.transport.is_aborted = True
        assert not broken.connection.release()
        for size, keeps in ((262_144, False), (200_000, True)):
            full = Asking(kind, 1 << 30)
            full.write()
            full.get(answer(b"x" * (size - len(answer(b"x" * size)) + size)))
            assert len(await full.body()) < size
            assert full.connection.release() == keeps
        ended = Asking(kind)
        ended.connection.eof_received()
        assert not ended.connection.is_open
        assert len(ended.lost) == 1
        ended.connection.connection_lost(None)
        assert len(ended.lost) == 1

    asyncio.run(main())


def check_own_end(kind: Any) -> None:
    """The clock rings, or it is closed here, while a body without a length is on its way."""

    async def main() -> None:
        for is_rung in (True, False):
            for reads in ("whole", "chunk"):
                asking = Asking(kind)
                asking.write(is_streamed=reads == "chunk")
                asking.get(CLOSE + b"half")
                if is_rung:
                    asking.connection.fail(TimedOut("attempt", 1.0))
                else:
                    asking.connection.close()
                asking.connection.connection_lost(None)
                error: Exception | None = None
                try:
                    while await getattr(asking.connection, reads)():
                        assert reads == "chunk", "half a body is taken for the whole"
                except CallError as caught:
                    error = caught
                assert isinstance(error, TimedOut if is_rung else Disconnected)
        late = Asking(kind)
        late.write()
        late.get(answer(b"whole"))
        late.connection.fail(TimedOut("attempt", 1.0))
        assert await late.body() == b"whole"

    asyncio.run(main())


class Narrow(FakeTransport):
    """Takes one write, and the next one only after `drain`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: Any) -> None:
        assert not self.is_aborted, "it writes after the end"
        assert self.unsent < 1_000_000, "it does not wait"
        super().write(data)
        self.unsent += len(data)
        if self.unsent > 65_536:
            self._connection.pause_writing()

    def drain(self) -> None:
        self.unsent = 0
        self._connection.resume_writing()


class Deaf(Connection):
    """Writes on, whatever the transport says."""

    def pause_writing(self) -> None:
        pass


def check_long_bodies(kind: Any) -> None:
    body = bytes(range(256)) * 8_000

    async def main() -> None:
        for ending in ("read", "answered early", "lost"):
            asking = Asking(kind)
            transport = asking.transport = Narrow(asking.connection)
            asking.connection.connection_made(transport)
            asking.write(body)
            assert len(transport.written) < len(body)
            if ending == "read":
                while transport.unsent:
                    transport.drain()
                assert transport.written == b"head" + body
            elif ending == "lost":
                asking.connection.connection_lost(None)
                transport.drain()
                assert len(transport.written) < len(body)
                continue
            asking.get(answer(b"a"))
            assert await asking.body() == b"a"
            # Nothing that the transport holds is left, and still not all is written.
            transport.unsent = 0
            assert asking.connection.release() == (ending == "read")

    asyncio.run(main())


def test_a_long_body_is_written_as_the_server_takes_it() -> None:
    assert_caught(check_long_bodies, Connection, Deaf)


def test_a_stream_whose_reader_leaves_while_it_is_paused_serves_no_other() -> None:
    async def main() -> None:
        asking = Asking(Connection, 1 << 30)
        asking.write(is_streamed=True)
        waiting = asyncio.create_task(asking.connection.head())
        await asyncio.sleep(0)
        asking.connection.data_received(CHUNKED + chunked(b"x" * 70_000)[:-5])
        rest = chunked(*[b"x" * 70_000] * 4)
        asking.connection.data_received(rest[:200_000])
        asking.connection.data_received(rest[200_000:])
        await waiting
        assert asking.transport.is_paused
        assert not asking.connection.release()
        # Nor does a reader that goes on touch a socket that is closed by now.
        asking.connection.close()
        while await asking.connection.chunk():
            pass

    asyncio.run(main())


def test_a_connection_that_went_stale_stays_so_whatever_it_reads() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            asking = Asking(Connection)
            asking.transport = FakeTransport(socket=ours)
            asking.connection.connection_made(asking.transport)
            asking.write()
            asking.get(answer(b"first"))
            assert await asking.body() == b"first"
            assert asking.connection.release()
            theirs.send(b"x")
            asking.write()
            assert asking.connection.is_stale
            asking.get(b"x")
            assert asking.connection.is_stale
            assert asking.transport.written == b"head"

    asyncio.run(main())


class Unbounded(Connection):
    def __init__(self, on_lost: Any, memory: ReplyMemory, stops: Stops) -> None:
        super().__init__(on_lost, ReplyMemory(1 << 40), stops)


class AlwaysReusable(Connection):
    def release(self) -> bool:
        super().release()
        return True


class NeverReusable(Connection):
    def release(self) -> bool:
        super().release()
        return False


class Unfailing(Connection):
    """Takes its own end for the answer's."""

    def fail(self, error: CallError) -> None:
        self.eof_received()


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (check_bounds, Unbounded),
        (check_reuse, AlwaysReusable),
        (check_reuse, NeverReusable),
        (check_right, AlwaysReusable),
        (check_own_end, Unfailing),
    ],
)
def test_a_wrong_connection_is_noticed(check: Callable[[Any], None], wrong: Any) -> None:
    assert_caught(check, Connection, wrong)


def test_the_tables_hold_what_their_checks_need() -> None:
    assert GZIP in RIGHT["gzip"][0]
    assert {ending for _, ending, _ in RIGHT.values()} == {"keep", "close", "hold"}
    assert {ending for _, ending, _ in WRONG.values()} == {"keep", "close", "reset"}
    assert len(TEXT) < SMALL
