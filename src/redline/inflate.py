"""Decompresses the body of an HTTP message (RFC 9110, 8.4.1) in pieces of bounded size."""

from __future__ import annotations

import zlib

# zlib's `wbits`: 16 plus the largest window for gzip, a negative number for deflate with no header.
_GZIP, _ZLIB, _RAW = 31, 15, -15
# A body may consist of several gzip members; a legitimate body has few (bgzip: 64 KB in each).
_MOST_MEMBERS = 1024


class BadCompressionError(ValueError):
    """The compressed data is damaged, has too many gzip members, or is followed by other bytes."""


class Inflate:
    """Decompresses one body. A few bytes may become gigabytes, so each step has a bound.

    may_be_raw: accept deflate without a zlib header, which some senders omit (RFC 9110, 8.4.1.2).
    """

    def __init__(self, *, may_be_raw: bool) -> None:
        self._may_be_raw = may_be_raw
        self._decoder: zlib._Decompress | None = None
        self._is_gzip = False
        self._first = b""  # the first byte, until the second one arrives: two identify the format
        self._members = 1

    @property
    def is_whole(self) -> bool:
        """Whether the compressed data is complete, or there was none."""
        return self._decoder.eof if self._decoder is not None else not self._first

    def take(self, data: bytes, most_bytes: int) -> bytes:
        """Returns the decompressed bytes of `data`, at most `most_bytes` (1 or more).

        Bytes beyond `most_bytes` are dropped: the caller must refuse such a body. Raises
        BadCompressionError if the data is damaged, if other bytes follow it, or if it has more than
        1,024 gzip members.
        """
        if self._decoder is None:
            data = self._first + data
            if len(data) < 2:
                self._first = data
                return b""
            window = self._window_of(data)
            self._is_gzip = window == _GZIP
            self._decoder = zlib.decompressobj(window)
        try:
            clear = self._decoder.decompress(data, most_bytes)
            while self._decoder.eof and self._decoder.unused_data and len(clear) < most_bytes:
                rest = self._decoder.unused_data
                self._decoder = self._next_member()
                clear += self._decoder.decompress(rest, most_bytes - len(clear))
        except zlib.error as error:
            raise BadCompressionError(str(error)) from None
        return clear

    def _window_of(self, data: bytes) -> int:
        """Returns the `wbits` for the first two bytes (RFC 1952, 2.3, and RFC 1950, 2.2)."""
        if data[:2] == b"\x1f\x8b":
            return _GZIP
        if data[0] & 15 == 8 and (data[0] * 256 + data[1]) % 31 == 0:
            return _ZLIB
        return _RAW if self._may_be_raw else _GZIP

    def _next_member(self) -> zlib._Decompress:
        self._members += 1
        if not self._is_gzip:
            raise BadCompressionError("bytes follow the end of the compressed data")
        if self._members > _MOST_MEMBERS:
            raise BadCompressionError(f"the data has more than {_MOST_MEMBERS:,} gzip members")
        return zlib.decompressobj(_GZIP)
