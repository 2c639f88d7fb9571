"""A proxy's answer to CONNECT, cut and spoiled: a clean 2xx is a tunnel, the rest a typed error."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from redline.calls.wire import proxy
from redline.errors import CallError, Disconnected, Refused
from support.catching import assert_caught
from support.wires import FakeTransport

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"
ANSWERS = (
    b"HTTP/1.1 200 Connection established\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nProxy-Agent: tinyproxy/1.11.1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    HINTS + b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic realm=a\r\nContent-Length: 2\r\n\r\nNo",
    HINTS * 2 + b"HTTP/1.1 503 Service Unavailable\r\n\r\n<html>",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 101 Switching\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\nmore",
    b"\x15\x03\x01\x00\x02\x02\x46",
)
# What may be tunnelled into: interim answers, the head of a 2xx, and no byte more.
HEAD = rb"HTTP/1\.[01] %b\d\d[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n"
CLEAN = re.compile(rb"[\r\n]*(?:%b[\r\n]*)*%b[\r\n]*" % (HEAD % b"1", HEAD % b"2"))
PROXY = proxy.proxy_at("http://me:secret-4711@127.0.0.1:8", {})
TARGET = proxy.server_of("https://llm.invalid/v1")


@st.composite
def replies(draw: st.DrawFn) -> list[bytes]:
    """An answer with some bytes cut out, put in or turned, in pieces."""
    data = bytearray(draw(st.sampled_from(ANSWERS)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 4)))
        data[at:until] = draw(
            st.sampled_from((b"", b"\r\n", b"\n", b"\0", b": ", b"HTTP/1.1 200 OK\r\n\r\n"))
            | st.binary(max_size=3)
        )
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=4)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def result(kind: Any, pieces: list[bytes]) -> CallError | None:
    """None for a tunnel."""

    async def main() -> CallError | None:
        connect, transport = kind(PROXY, TARGET), FakeTransport()
        connect.connection_made(transport)
        opening = asyncio.create_task(connect.open(transport))
        await asyncio.sleep(0)
        assert transport.written.startswith(b"CONNECT llm.invalid:443 HTTP/1.1\r\n")
        for piece in pieces:
            connect.data_received(piece)
        connect.connection_lost(None)
        async with asyncio.timeout(20):
            try:
                await opening
            except CallError as error:
                return error
        return None

    return asyncio.run(main())


def check(kind: Any) -> None:
    @example([ANSWERS[6]])
    @given(replies())
    def law(pieces: list[bytes]) -> None:
        found = result(kind, pieces)
        data = b"".join(pieces)
        if found is None:
            assert CLEAN.fullmatch(data), data
        else:
            assert isinstance(found, Refused) or not getattr(found, "was_sent", True)
            assert isinstance(found, (Disconnected, Refused))
            assert "4711" not in str(found)
        assert str(found) == str(result(kind, [data]))

    law()


class Trusting(proxy.Connect):
    """Takes a 2xx for the beginning of the tunnel, whatever follows."""

    def on_body(self, data: bytes) -> None:
        pass


def test_only_a_clean_2xx_is_a_tunnel_however_it_comes() -> None:
    assert_caught(check, proxy.Connect, Trusting)


def test_right_answers_are_tunnels() -> None:
    assert [result(proxy.Connect, [data]) for data in ANSWERS[:4]] == [None] * 4
