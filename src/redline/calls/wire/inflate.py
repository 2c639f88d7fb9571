"""Undoes the compression of an answer's body (RFC 9110, 8.4.1), piece by piece and bounded."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from redline.errors import BadReply

# zlib's window sizes: 16 + the largest window is gzip, a negative one is deflate without a header.
_GZIP, _ZLIB, _RAW = 31, 15, -15
# Gzip data may follow gzip data; nothing but an attack sends this many (bgzip: 64 KB in each).
_MOST_MEMBERS = 1024
# Codings that change nothing.
_PLAIN = ("", "identity")


class Inflate:
    """One body's decompression. A few bytes may stand for gigabytes, so each step is bounded.

    may_be_raw: some servers send deflate without its header (RFC 9110, 8.4.1.2).
    """

    def __init__(self, *, may_be_raw: bool) -> None:
        self._may_be_raw = may_be_raw
        self._window = 0
        self._zlib = zlib.decompressobj()
        self._first = b""  # less than the two bytes that tell the kind
        self._members = 1

    @property
    def is_whole(self) -> bool:
        """The compressed data has come to its end, or there was none."""
        return self._zlib.eof if self._window else not self._first

    def take(self, data: bytes, most_bytes: int) -> bytes:
        """The next bytes in the clear, about `most_bytes` (from 1) at most. Raises BadReply."""
        if not self._window:
            data = self._first + data
            if len(data) < 2:
                self._first = data
                return b""
            self._window = self._kind_of(data)
            self._zlib = zlib.decompressobj(self._window)
        try:
            clear = self._zlib.decompress(data, most_bytes)
            while self._zlib.eof and self._zlib.unused_data and len(clear) < most_bytes:
                rest = self._zlib.unused_data
                self._next_member()
                clear += self._zlib.decompress(rest, most_bytes - len(clear))
        except zlib.error as error:
            raise BadReply(f"the answer's compression is broken: {error}") from None
        return clear

    def _kind_of(self, data: bytes) -> int:
        """The window size to begin with: zlib's header is RFC 1950, 2.2, gzip's RFC 1952, 2.3."""
        if data[:2] == b"\x1f\x8b":
            return _GZIP
        if data[0] & 15 == 8 and (data[0] * 256 + data[1]) % 31 == 0:
            return _ZLIB
        return _RAW if self._may_be_raw else _GZIP

    def _next_member(self) -> None:
        self._members += 1
        if self._window != _GZIP or self._members > _MOST_MEMBERS:
            raise BadReply("the answer's compression is broken: bytes follow its end")
        self._zlib = zlib.decompressobj(_GZIP)


def inflate_for(headers: Mapping[str, str]) -> Inflate | None:
    """What undoes the compression that an answer's headers state; None where there is none.

    Raises BadReply for one that redline did not ask for.
    """
    # Looked up and not searched for: most answers have neither.
    if "transfer-encoding" in headers:
        coding = headers["transfer-encoding"]
        if coding.strip().lower() != "chunked":
            raise _unasked(coding)
    if "content-encoding" not in headers:
        return None
    codings = headers["content-encoding"]
    # A list, also over several headers (RFC 9110, 5.6.1 and 8.4); its empty parts say nothing.
    kinds = [kind for part in codings.split(",") if (kind := part.strip().lower()) not in _PLAIN]
    if not kinds:
        return None
    if len(kinds) > 1 or kinds[0] not in ("gzip", "x-gzip", "deflate"):
        raise _unasked(codings)
    return Inflate(may_be_raw=kinds[0] == "deflate")


def cut_short() -> BadReply:
    """The error of a body that ends before its compressed data does."""
    return BadReply("the compressed answer is cut short")


def _unasked(coding: str) -> BadReply:
    return BadReply(f"the answer is compressed as {ascii(coding[:40])[1:-1]}")
