"""Answers as a server may send them, right and wrong, and how each is to be taken."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

from redline.errors import BadReply, Disconnected
from support.raw_server import answer

TEXT = b"a body of some length, " * 20
ZEROS = b"\0" * 4_000_000
MOST_BYTES = 100_000


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")


def chunked(*parts: bytes, trailers: bytes = b"") -> bytes:
    """A body in chunks, without its head."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return body + b"0\r\n" + trailers + b"\r\n"


CHUNKED = head("Transfer-Encoding: chunked")
CLOSE = head("Connection: close")
GZIP = gzip.compress(TEXT)


# Answers that are as HTTP has them: the bytes, how the server goes on, and the body.
RIGHT: dict[str, tuple[bytes, str, bytes]] = {
    "length": (head(f"Content-Length: {len(TEXT)}") + TEXT, "keep", TEXT),
    "length of nothing": (head("Content-Length: 0"), "keep", b""),
    "odd case": (head(f"cOnTeNt-lEnGtH:   {len(TEXT)}  ") + TEXT, "keep", TEXT),
    "no reason": (head("Content-Length: 2", status="HTTP/1.1 200 ") + b"ab", "keep", b"ab"),
    "chunks": (CHUNKED + chunked(TEXT, b"x", TEXT), "keep", TEXT + b"x" + TEXT),
    "chunk extension": (CHUNKED + b'2;a="b"\r\nab\r\n0\r\n\r\n', "keep", b"ab"),
    "trailers": (CHUNKED + chunked(TEXT, trailers=b"X-Sum: 1\r\n"), "keep", TEXT),
    "no chunks": (CHUNKED + chunked(), "keep", b""),
    "no length": (CLOSE + TEXT, "close", TEXT),
    "no length, nothing": (CLOSE, "close", b""),
    "1.0": (head(status="HTTP/1.0 200 OK") + TEXT, "close", TEXT),
    "1.0 with length": (
        head("Content-Length: 2", status="HTTP/1.0 200 OK") + b"ab",
        "hold",
        b"ab",
    ),
    "gzip": (answer(GZIP, Content_Encoding="gzip"), "keep", TEXT),
    "GZIP": (answer(GZIP, Content_Encoding="GZIP"), "keep", TEXT),
    "gzip behind gzip": (answer(GZIP * 2, Content_Encoding="gzip"), "keep", TEXT * 2),
    "zlib": (answer(zlib.compress(TEXT), Content_Encoding="deflate"), "keep", TEXT),
    "raw deflate": (answer(raw_deflate(TEXT), Content_Encoding="deflate"), "keep", TEXT),
    "identity": (answer(TEXT, Content_Encoding="identity"), "keep", TEXT),
    "gzip in chunks": (
        head("Transfer-Encoding: chunked", "Content-Encoding: gzip")
        + chunked(GZIP[:1], GZIP[1:9], GZIP[9:]),
        "keep",
        TEXT,
    ),
    "gzip without length": (
        head("Connection: close", "Content-Encoding: gzip") + GZIP,
        "close",
        TEXT,
    ),
    "204": (head(status="HTTP/1.1 204 No Content"), "keep", b""),
    "304": (head("Content-Length: 50", status="HTTP/1.1 304 Not Modified"), "keep", b""),
    "1xx first": (
        head(status="HTTP/1.1 100 Continue")
        + head("Link: <a>", status="HTTP/1.1 103 Early Hints")
        + answer(b"after"),
        "keep",
        b"after",
    ),
    "offers h2c": (answer(TEXT, Connection="Upgrade", Upgrade="h2c"), "keep", TEXT),
}


# Answers that are not, and the errors that they may be.
ANY = (BadReply, Disconnected)
WRONG: dict[str, tuple[bytes, str, Any]] = {
    "half a status line": (b"HTTP/1.1 20", "close", ANY),
    "half a header": (b"HTTP/1.1 200 OK\r\nContent-Le", "close", ANY),
    "headers without end": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n", "close", ANY),
    "half a body": (head("Content-Length: 100") + b"half", "close", Disconnected),
    "half a chunk": (CHUNKED + b"64\r\nhalf", "close", Disconnected),
    "half a chunk's size": (CHUNKED + b"64", "close", Disconnected),
    "no last chunk": (CHUNKED + b"2\r\nab\r\n", "close", Disconnected),
    "half the trailers": (CHUNKED + b"2\r\nab\r\n0\r\nX-S", "close", Disconnected),
    "too long a length": (head(f"Content-Length: {len(TEXT) + 1}") + TEXT, "close", Disconnected),
    "a negative length": (head("Content-Length: -1") + TEXT, "keep", BadReply),
    "a huge length": (head("Content-Length: " + 30 * "9") + TEXT, "keep", ANY),
    "a length that is none": (head("Content-Length: 0x10") + TEXT, "keep", BadReply),
    "two lengths": (head("Content-Length: 2", "Content-Length: 3") + b"abc", "keep", BadReply),
    "two lengths in one": (head("Content-Length: 2, 3") + b"abc", "keep", BadReply),
    "a length and chunks": (
        head("Content-Length: 2", "Transfer-Encoding: chunked") + chunked(b"ab"),
        "keep",
        BadReply,
    ),
    "a bad chunk size": (CHUNKED + b"xyz\r\nab\r\n", "keep", BadReply),
    "a negative chunk size": (CHUNKED + b"-2\r\nab\r\n0\r\n\r\n", "keep", BadReply),
    "a huge chunk size": (CHUNKED + 20 * b"f" + b"\r\nab\r\n", "keep", BadReply),
    "too short a chunk size": (CHUNKED + b"2\r\nabcd\r\n0\r\n\r\n", "keep", BadReply),
    "reset before": (b"", "reset", Disconnected),
    "reset in the headers": (b"HTTP/1.1 200 OK\r\nConte", "reset", Disconnected),
    "reset in the body": (head("Content-Length: 100") + b"half", "reset", Disconnected),
    "reset in a chunk": (CHUNKED + b"64\r\nhalf", "reset", Disconnected),
    "reset without a length": (CLOSE + b"half", "reset", Disconnected),
    "another protocol": (
        head("Connection: Upgrade", "Upgrade: h2c", status="HTTP/1.1 101 Switching"),
        "keep",
        BadReply,
    ),
    "a NUL in a header": (head("X: a\0b", "Content-Length: 2") + b"ab", "keep", BadReply),
    "a NUL in a name": (head("X\0: ab", "Content-Length: 2") + b"ab", "keep", BadReply),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "keep", BadReply),
    "HTTP/0.9": (b"<html>hi</html>\r\n", "close", BadReply),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\x0a", "close", ANY),
    "broken gzip": (answer(GZIP[:40] + b"?" * 40, Content_Encoding="gzip"), "keep", ANY),
    "no gzip at all": (answer(TEXT, Content_Encoding="gzip"), "keep", ANY),
    "half gzip": (answer(GZIP[:-9], Content_Encoding="gzip"), "keep", ANY),
    "half gzip, no length": (
        head("Connection: close", "Content-Encoding: gzip") + GZIP[:-9],
        "close",
        ANY,
    ),
    "a gzip bomb": (answer(gzip.compress(ZEROS), Content_Encoding="gzip"), "keep", BadReply),
    "a bomb in a bomb": (
        answer(gzip.compress(gzip.compress(b"\0" * 4_000_000)), Content_Encoding="gzip, gzip"),
        "keep",
        BadReply,
    ),
    "a bomb": (answer(zlib.compress(ZEROS), Content_Encoding="deflate"), "keep", BadReply),
    "one byte too many": (answer(b"x" * (MOST_BYTES + 1)), "keep", BadReply),
}
