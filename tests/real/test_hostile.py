"""What a server may send, over either transport: the right answer or one clear error, never else.

After each broken answer the next exchange must get its own.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redline.calls import Timeouts
from redline.calls.wire import MOST_HEADER_BYTES
from redline.errors import BadReply, CallError, TimedOut
from support.answers import CHUNKED, CLOSE, GZIP, MOST_BYTES, RIGHT, TEXT, WRONG, chunked, head
from support.asking import Asker, wire
from support.raw_server import Handler, RawServer, Seen, answer, reset

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]


class Misbehaves:
    """Sends `data` to the first request, and to each other one its own target."""

    def __init__(self, data: bytes, ending: str = "hold", step: int = 1 << 30) -> None:
        self._data = data
        self._ending = ending
        self._step = step
        self._has_begun = False

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        if self._has_begun:
            writer.write(answer(seen.target.encode()))
            return
        self._has_begun = True
        for start in range(0, len(self._data), self._step):
            if start:
                await asyncio.sleep(0)
            writer.write(self._data[start : start + self._step])
        await writer.drain()
        if self._ending == "close":
            writer.close()
        elif self._ending == "reset":
            # What was sent must have been read, for an RST overtakes it.
            await asyncio.sleep(0.02)
            reset(writer)
        elif self._ending == "hold":
            await asyncio.Event().wait()


async def outcome_of(
    handle: Handler, *, attempt_s: float = 8, **settings: Any
) -> bytes | CallError:
    """What the first exchange came to; the second one must be answered rightly."""
    timeouts = Timeouts(attempt_s=attempt_s, first_byte_s=8)
    settings.setdefault("max_reply_bytes", MOST_BYTES)
    async with RawServer(handle) as server:
        async with Asker(server.base_url, timeouts=timeouts, **settings) as asker:
            result: bytes | CallError
            try:
                result = (await asker.ask()).body
            except CallError as error:
                result = error
            assert (await asker.ask(wire("/second"))).body == b"/second"
        await server.closed()
    return result


# Answers that are as HTTP has them.


@pytest.mark.parametrize("step", [1 << 30, 7, 1])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_read_however_it_is_cut(run: Run, name: str, step: int) -> None:
    data, ending, body = RIGHT[name]

    async def main() -> None:
        assert await outcome_of(Misbehaves(data, ending, step)) == body

    run(main())


@pytest.mark.parametrize("body", [None, b"{}"])
@pytest.mark.parametrize("sent", [b"", b"x" * 100, b"x" * 30], ids=["right", "whole", "part"])
def test_the_answer_to_a_head_request_has_no_body(
    run: Run, sent: bytes, body: bytes | None
) -> None:
    async def main() -> None:
        async with (
            RawServer(Misbehaves(head("Content-Length: 100") + sent, "keep")) as server,
            Asker(server.base_url) as asker,
        ):
            found = await asker.ask(wire(method="HEAD", body=body))
            assert (found.status, found.body) == (200, b"")
            assert found.headers["content-length"] == "100"
            assert (await asker.ask(wire("/second"))).body == b"/second"

    run(main())


def test_trailers_change_no_header(run: Run) -> None:
    async def main() -> None:
        data = head("Transfer-Encoding: chunked", "X-Limit: 1")
        data += chunked(TEXT, trailers=b"X-Limit: 2\r\nX-More: 3\r\n")
        async with (
            RawServer(Misbehaves(data, "keep")) as server,
            Asker(server.base_url) as asker,
        ):
            found = await asker.ask()
            assert found.headers["x-limit"] == "1"
            assert "x-more" not in found.headers

    run(main())


# Answers that are not.


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_one_error(run: Run, name: str) -> None:
    data, ending, kind = WRONG[name]

    async def main() -> None:
        result = await outcome_of(Misbehaves(data, ending), attempt_s=5)
        assert isinstance(result, kind)
        assert len(str(result)) < 300
        assert str(result).isprintable()

    run(main())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (answer(b"x", Content_Encoding="br"), "the response is encoded as br"),
        (
            answer(GZIP, Content_Encoding="gzip, gzip"),
            "the response is encoded as gzip, gzip",
        ),
        (
            head("Content-Encoding: gzip", "Content-Encoding: gzip", "Content-Length: 1") + b"x",
            "the response is encoded as gzip",
        ),
        (
            head("Transfer-Encoding: gzip, chunked") + chunked(GZIP),
            "the response is encoded as gzip, chunked",
        ),
        (answer(GZIP + b"junk", Content_Encoding="gzip"), "cannot be decompressed"),
        (
            answer(zlib.compress(TEXT) * 2, Content_Encoding="deflate"),
            "bytes follow the end of the compressed data",
        ),
        (answer(b"\x1f", Content_Encoding="gzip"), "is truncated"),
        (answer(b"x" * (MOST_BYTES + 1)), "longer than 100,000 bytes"),
    ],
)
def test_what_was_not_asked_for_is_refused_by_name(run: Run, data: bytes, words: str) -> None:
    async def main() -> None:
        result = await outcome_of(Misbehaves(data, "keep"), attempt_s=5)
        assert isinstance(result, BadReply)
        assert words in result.what

    run(main())


# Servers without end.


def endless(start: bytes, block: bytes, pause_s: float = 0.0) -> Handler:
    """Sends `block` for ever behind `start` to the first request."""
    has_begun = False

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal has_begun
        if has_begun:
            writer.write(answer(seen.target.encode()))
            return
        has_begun = True
        writer.write(start)
        while True:
            writer.write(block)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return handle


A_LINE = b"X-Filler: " + b"a" * 1000 + b"\r\n"
START = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "headers": (START, A_LINE * 16),
    "one header": (START + b"X: ", b"a" * 16_000),
    "one header's name": (START, b"a" * 16_000),
    "one status line": (b"HTTP/1.1 200 ", b"a" * 16_000),
    "empty lines": (b"", b"\r\n" * 8_000),
    "1xx": (b"", head(status="HTTP/1.1 102 Processing") * 100),
    "body": (CLOSE, b"x" * 16_000),
    "chunks": (CHUNKED, (b"64\r\n" + b"x" * 100 + b"\r\n") * 100),
    "one chunk extension": (CHUNKED + b"2;", b"x" * 16_000),
    "trailers": (CHUNKED + b"0\r\n", A_LINE * 16),
    "one trailer": (CHUNKED + b"0\r\nX: ", b"a" * 16_000),
    "empty gzip": (
        head("Connection: close", "Content-Encoding: gzip"),
        gzip.compress(b"") * 100,
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_answer_is_ended_by_its_size(run: Run, name: str) -> None:
    start, block = ENDLESS[name]

    async def main() -> None:
        result = await outcome_of(endless(start, block))
        assert isinstance(result, BadReply)

    run(main())


@pytest.mark.parametrize(
    "start",
    [b"", START, START + b"X: ", head("Content-Length: 99999"), CLOSE, CHUNKED + b"fff\r\n"],
)
def test_a_byte_at_a_time_is_ended_by_the_attempts_clock(run: Run, start: bytes) -> None:
    async def main() -> None:
        result = await outcome_of(endless(start, b"H", 0.01), attempt_s=0.15)
        is_clock = isinstance(result, TimedOut) and result.phase == "attempt"
        # Without a start it is not HTTP from its second byte on.
        assert is_clock or (not start and isinstance(result, BadReply))

    run(main())


def test_headers_may_be_as_long_as_the_bound_and_no_longer(run: Run) -> None:
    async def main() -> None:
        for extra, is_right in ((-200, True), (200, False)):
            filler = "a" * (MOST_HEADER_BYTES + extra)
            data = head(f"X: {filler}", "Content-Length: 90000") + b"x" * 90_000
            result = await outcome_of(Misbehaves(data, "keep"))
            assert isinstance(result, bytes) == is_right

    run(main())
