"""Answers that could make two readers of one connection disagree about where each answer ends.

Each has another answer behind it, which must reach no exchange. The requests of this kind are in
tests/support/smuggling.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redline.calls import Timeouts
from redline.errors import BadReply, CallError, Disconnected, TimedOut
from support.answers import CHUNKED, chunked, head
from support.asking import Asker, wire
from support.raw_server import RawServer, Seen, answer

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]

BODY = b"22"
NEXT = answer(b'"of another request"')
LENGTH = "Content-Length: 2"
CODING = "Transfer-Encoding: chunked"
CHUNKS = chunked(BODY)
END = b"0\r\n\r\n"


def sized(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    """An answer with these header lines, and two bytes behind them."""
    return head(*lines, status=status) + BODY


def coded(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    """An answer with these header lines, and those two bytes as a chunk."""
    return head(*lines, status=status) + CHUNKS


# Each is one error, after which the connection is closed.
REFUSED: dict[str, bytes] = {
    # Two statements of where the body ends.
    "length and chunks": coded(LENGTH, CODING),
    "chunks and length": coded(CODING, LENGTH),
    "length and identity": sized("Transfer-Encoding: identity", LENGTH),
    "length and an unknown coding": sized("Transfer-Encoding: xchunked", LENGTH),
    "two lengths": sized("Content-Length: 1", LENGTH),
    "the same length twice": sized(LENGTH, LENGTH),
    "a list of lengths": sized("Content-Length: 2, 2"),
    "a list of two lengths": sized("Content-Length: 1, 2"),
    "a length with a sign": sized("Content-Length: +2"),
    "a negative length": sized("Content-Length: -2"),
    "a length in hex": sized("Content-Length: 0x2"),
    "a length of a hex digit": sized("Content-Length: a") + bytes(8),
    "a length with an underscore": sized("Content-Length: 1_0") + bytes(8),
    "a length with a point": sized("Content-Length: 2.0"),
    "an empty length": sized("Content-Length:"),
    "a length in two words": sized("Content-Length: 2 2"),
    "a length beyond 64 bits": sized("Content-Length: 18446744073709551618"),
    "a length in the trailers": CHUNKED + chunked(BODY, trailers=b"Content-Length: 5\r\n"),
    "a length of 0 in the trailers": CHUNKED + chunked(BODY, trailers=b"Content-Length: 0\r\n"),
    "a length and a body in a 1xx": sized(LENGTH, status="HTTP/1.1 103 Early") + sized(LENGTH),
    "chunks in a 1xx": coded(CODING, status="HTTP/1.1 103 Early") + sized(LENGTH),
    "another protocol": sized("Connection: Upgrade", "Upgrade: h2c", status="HTTP/1.1 101 Switch"),
    # Transfer codings.
    "gzip and chunked": coded("Transfer-Encoding: gzip, chunked"),
    "gzip and chunked in two lines": coded("Transfer-Encoding: gzip", CODING),
    "chunked and gzip": coded("Transfer-Encoding: chunked, gzip"),
    "chunked twice in a list": coded("Transfer-Encoding: chunked, chunked"),
    "chunked twice": coded(CODING, CODING),
    "chunked and identity in a list": coded("Transfer-Encoding: chunked, identity"),
    "identity and chunked in a list": coded("Transfer-Encoding: identity, chunked"),
    "chunked and identity": coded(CODING, "Transfer-Encoding: identity"),
    "identity and chunked": coded("Transfer-Encoding: identity", CODING),
    "identity": sized("Transfer-Encoding: identity"),
    "an unknown coding": coded("Transfer-Encoding: xchunked"),
    "chunked with a parameter": coded("Transfer-Encoding: chunked;x=1"),
    "chunked in quotes": coded('Transfer-Encoding: "chunked"'),
    "chunked behind a word": coded("Transfer-Encoding: x chunked"),
    "an empty coding": coded("Transfer-Encoding:"),
    "an empty coding and a length": sized("Transfer-Encoding:", LENGTH),
    "a comma before chunked": coded("Transfer-Encoding: ,chunked"),
    "a comma after chunked": coded("Transfer-Encoding: chunked,"),
    "a vertical tab before chunked": coded("Transfer-Encoding: \x0bchunked"),
    "a form feed after chunked": coded("Transfer-Encoding: chunked\x0c"),
    # Lines.
    "a folded line": sized(LENGTH, "A: b\r\n c"),
    "a line folded by a tab": sized(LENGTH, "A: b\r\n\tc"),
    "a folded coding": coded("Transfer-Encoding:\r\n chunked"),
    "a coding in two halves": coded("Transfer-Encoding: chun\r\n ked"),
    "a second coding in a fold": coded("Transfer-Encoding: chunked\r\n , identity"),
    "a folded length": sized("Content-Length:\r\n 2"),
    "a length in two halves": sized("Content-Length: 2\r\n 2") + bytes(20),
    "a folded status line": b"HTTP/1.1 200 OK\r\n Content-Length: 2\r\n\r\n22",
    "bare LF": sized(LENGTH).replace(b"\r\n", b"\n"),
    "bare LF after the status line": b"HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\n22",
    "bare LF after a header": sized("A: b\nContent-Length: 2"),
    "bare LF at the end": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\n22",
    "LF before the end": b"HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\n22",
    "bare CR in a value": sized(LENGTH, "A: b\rc"),
    "bare CR between lines": b"HTTP/1.1 200 OK\rContent-Length: 2\r\r22",
    "bare CR after the status line": b"HTTP/1.1 200 OK\rContent-Length: 2\r\n\r\n22",
    "bare CR before a coding": coded("A: b\rTransfer-Encoding: chunked"),
    "bare CR before another length": sized("A: b\rContent-Length: 1", LENGTH),
    "bare CR in the reason": sized(LENGTH, status="HTTP/1.1 200 O\rK"),
    "CR CR LF": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\r\n\r\n22",
    "CR CR LF at the end": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\r\n22",
    "LF in a name": coded("A\nTransfer-Encoding: chunked"),
    # Names and values.
    "a space before the colon of a coding": coded("Transfer-Encoding : chunked"),
    "a tab before the colon of a coding": coded("Transfer-Encoding\t: chunked"),
    "a space before the colon of a length": sized("Content-Length : 2"),
    "a space before the first name": sized(" Content-Length: 2"),
    "a space before a name": sized("A: b", " Content-Length: 2"),
    "a space in a name": sized("Content Length: 2"),
    "NUL in a value": sized("A: b\0c", LENGTH),
    "NUL before chunked": coded("Transfer-Encoding: \0chunked"),
    "a control character": sized("A: b\x01c", LENGTH),
    "DEL in a value": sized("A: b\x7fc", LENGTH),
    "a name beyond ASCII": sized("A\xff: b", LENGTH),
    "no colon": sized("Content-Length 2"),
    "an empty name": sized(": 1", LENGTH),
    # Status lines.
    "HTTP/0.9": sized(LENGTH, status="HTTP/0.9 200 OK"),
    "HTTP/2.0": sized(LENGTH, status="HTTP/2.0 200 OK"),
    "HTTP/1.2": sized(LENGTH, status="HTTP/1.2 200 OK"),
    "HTTP/1.10": sized(LENGTH, status="HTTP/1.10 200 OK"),
    "HTTP/1": sized(LENGTH, status="HTTP/1 200 OK"),
    "lower-case http": sized(LENGTH, status="http/1.1 200 OK"),
    "a space before the status line": b" " + sized(LENGTH),
    "two spaces before the status": sized(LENGTH, status="HTTP/1.1  200 OK"),
    "a tab before the status": sized(LENGTH, status="HTTP/1.1\t200 OK"),
    "a status with a sign": sized(LENGTH, status="HTTP/1.1 +200 OK"),
    "a status of two digits": sized(LENGTH, status="HTTP/1.1 20 OK"),
    "a status of four digits": sized(LENGTH, status="HTTP/1.1 2000 OK"),
    "a status below 100": sized(LENGTH, status="HTTP/1.1 099 Low"),
    # Chunks.
    "LF after a size": CHUNKED + b"2\n22\r\n" + END,
    "CR after a size": CHUNKED + b"2\r22\r\n" + END,
    "LF after a chunk": CHUNKED + b"2\r\n22\n" + END,
    "no line end after a chunk": CHUNKED + b"2\r\n22" + END,
    "other bytes after a chunk": CHUNKED + b"2\r\n22XX" + END,
    "a size with 0x": CHUNKED + b"0x2\r\n22\r\n" + END,
    "a size with a sign": CHUNKED + b"+2\r\n22\r\n" + END,
    "a size with an underscore": CHUNKED + b"1_0\r\n0123456789abcdef\r\n" + END,
    "a size in words": CHUNKED + b"two\r\n22\r\n" + END,
    "a negative size": CHUNKED + b"-2\r\n22\r\n" + END,
    "a space after a size": CHUNKED + b"2 \r\n22\r\n" + END,
    "a space before a size": CHUNKED + b" 2\r\n22\r\n" + END,
    "a size beyond 64 bits": CHUNKED + b"10000000000000002\r\n22\r\n" + END,
    "no size": CHUNKED + b"\r\n22\r\n" + END,
    "an extension and no size": CHUNKED + b";\r\n" + END,
    "LF in an extension": CHUNKED + b"2;a\nb\r\n22\r\n" + END,
    "LF at the end of an extension": CHUNKED + b"2;a\n22\r\n" + END,
    "CR in an extension": CHUNKED + b"2;a\rb\r\n22\r\n" + END,
    "NUL in an extension": CHUNKED + b"2;a\0b\r\n22\r\n" + END,
    "a line end in a quoted extension": CHUNKED + b'2;a="\r\n"\r\n22\r\n' + END,
    "LF after the last chunk": CHUNKED + b"2\r\n22\r\n0\r\n\n",
    "LF after the last size": CHUNKED + b"2\r\n22\r\n0\n\r\n",
    "LF after a trailer": CHUNKED + chunked(BODY, trailers=b"A: b\n"),
    "a folded trailer": CHUNKED + chunked(BODY, trailers=b"A: b\r\n c\r\n"),
    "a space before the colon of a trailer": CHUNKED + chunked(BODY, trailers=b"A : b\r\n"),
}

# Odd, and with one reading that RFC 9112 allows: the status and the body of each.
TAKEN: dict[str, tuple[bytes, int, bytes]] = {
    "a length with zeros": (sized("Content-Length: 0002"), 200, BODY),
    "an underscore in a name": (sized("Transfer_Encoding: chunked", LENGTH), 200, BODY),
    "a value beyond ASCII": (sized("A: \xff", LENGTH), 200, BODY),
    "CHUNKED": (coded("Transfer-Encoding: CHUNKED"), 200, BODY),
    "spaces around chunked": (coded("Transfer-Encoding:   chunked  "), 200, BODY),
    "chunks in HTTP/1.0": (coded(CODING, status="HTTP/1.0 200 OK"), 200, BODY),
    "extensions of chunks": (
        CHUNKED + b'1;a=b\r\n2\r\n1;c="d"\r\n2\r\n' + END,
        *(200, BODY),
    ),
    "kept chunks in HTTP/1.0": (
        coded(CODING, "Connection: keep-alive", status="HTTP/1.0 200 OK"),
        *(200, BODY),
    ),
    "sizes with zeros": (CHUNKED + b"0002\r\n22\r\n000\r\n\r\n", 200, BODY),
    "chunks in the trailers": (
        CHUNKED + chunked(BODY, trailers=b"Transfer-Encoding: chunked\r\n"),
        *(200, BODY),
    ),
    "compression in the trailers": (
        CHUNKED + chunked(BODY, trailers=b"Content-Encoding: gzip\r\n"),
        *(200, BODY),
    ),
    "an offer in the trailers": (
        CHUNKED + chunked(BODY, trailers=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
        *(200, BODY),
    ),
    "no space after the status": (sized(LENGTH, status="HTTP/1.1 200"), 200, BODY),
    "a status above 599": (sized(LENGTH, status="HTTP/1.1 999 High"), 999, BODY),
    "an empty line before": (b"\r\n" + sized(LENGTH), 200, BODY),
    "204 and a length": (sized(LENGTH, status="HTTP/1.1 204 No Content"), 204, b""),
    "204 and chunks": (coded(CODING, status="HTTP/1.1 204 No Content"), 204, b""),
    "304 and a length": (sized(LENGTH, status="HTTP/1.1 304 Not Modified"), 304, b""),
    "304 and chunks": (coded(CODING, status="HTTP/1.1 304 Not Modified"), 304, b""),
}

# Nothing says where the body ends, or it ends too far away: never an answer.
UNENDED: dict[str, bytes] = {
    "a tab after chunked": coded("Transfer-Encoding: chunked\t"),
    "a length beyond 63 bits": sized("Content-Length: 9223372036854775810"),
}

CASES = REFUSED | {name: data for name, (data, *_) in TAKEN.items()}
PATHS = {f"/case/{number}": data for number, data in enumerate(CASES.values())}


class Smuggler:
    """Answers the path of a case with the case and `behind`, and any other path with itself.

    step: how many bytes are written at a time.
    """

    def __init__(self, behind: bytes, step: int) -> None:
        self._behind = behind
        self._step = step

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        case = PATHS.get(seen.target)
        if case is None:
            writer.write(answer(seen.target.encode()))
            return
        data = case + self._behind
        for start in range(0, len(data), self._step):
            if start:
                await asyncio.sleep(0)
            writer.write(data[start : start + self._step])


async def check(step: int, *, is_kept: bool) -> None:
    """Asks for each case, and then for an answer of its own.

    is_kept: the connection on which a case is asked for has carried another answer.
    """
    # Bytes that come later than the end of an answer may cross the next request.
    behind = NEXT if step > len(NEXT) else b""
    async with RawServer(Smuggler(behind, step)) as server:
        for name, path in zip(CASES, PATHS, strict=True):
            # A new one for each: after bytes that it did not ask for, it keeps no connection.
            async with Asker(server.base_url) as asker:
                if is_kept:
                    assert (await asker.ask(wire("/before"))).body == b"/before"
                found = await outcome_of(asker, path)
                own = f"/own{path}"
                assert (await asker.ask(wire(own))).body == own.encode(), name
            if name in REFUSED:
                assert isinstance(found, BadReply), (name, found)
                assert len(str(found)) < 300, name
                assert str(found).isprintable(), name
            else:
                assert found == TAKEN[name][1:], name
            # RFC 9112, 6.1: such an answer ends its connection.
            if name in REFUSED or behind or "HTTP/1.0" in name:
                carried = {one.connection for one in server.seen if one.target == path}
                (used,) = (one.connection for one in server.seen if one.target == own)
                assert used not in carried, name


async def outcome_of(asker: Asker, path: str) -> tuple[int, bytes] | CallError:
    """The status and the body of the answer, or the error."""
    try:
        answered = await asker.ask(wire(path))
    except CallError as error:
        return error
    return answered.status, answered.body


@pytest.mark.slow
@pytest.mark.parametrize("step", [1 << 30, 1], ids=["whole", "by bytes"])
@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
def test_no_answer_is_read_in_two_ways(run: Run, step: int, is_kept: bool) -> None:
    run(check(step, is_kept=is_kept))


@pytest.mark.parametrize("name", UNENDED)
@pytest.mark.parametrize("ending", ["hold", "close"])
def test_an_answer_without_an_end_is_none(run: Run, name: str, ending: str) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target != "/first":
            writer.write(answer(seen.target.encode()))
            return
        writer.write(UNENDED[name] + NEXT)
        await writer.drain()
        if ending == "close":
            writer.close()

    async def main() -> None:
        clocks = Timeouts(attempt_s=0.3, first_byte_s=8)
        async with RawServer(handle) as server, Asker(server.base_url, timeouts=clocks) as asker:
            with pytest.raises(TimedOut if ending == "hold" else Disconnected):
                await asker.ask(wire("/first"))
            assert (await asker.ask(wire("/second"))).body == b"/second"

    run(main())
