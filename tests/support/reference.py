"""A slow and plain reader of HTTP/1.x answers (RFC 9112), to hold the fast one against."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [\t\x20-\x7e\x80-\xff]*)?")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,7})(?:;[a-z]+=(?:[a-z]+|\"[a-z ]*\"))?")
_FRAMING = (b"content-length", b"transfer-encoding")
_MOST_INTERIM = 32

Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Read:
    """A whole answer, and whether more than line breaks follows it."""

    status: int
    body: bytes
    has_rest: bool


def read(data: bytes, *, is_ended: bool) -> Read | None:
    """The answer that `data` holds; None where it is not whole, or not beyond doubt well formed.

    is_ended: the server closed the connection behind it.
    """
    for _ in range(_MOST_INTERIM + 1):
        found = _head(data)
        if found is None:
            return None
        version, status, pairs, data = found
        if status < 100 or status == 101:
            return None
        if status >= 200:
            break
        if version == b"0" or any(name == b"connection" for name, _ in pairs):
            # An interim answer that ends the connection contradicts itself.
            return None
        if not _has_sound_length(pairs):
            return None
    else:
        return None
    framed = _body(version, status, pairs, data, is_ended=is_ended)
    if framed is None:
        return None
    body, rest = framed
    clear = _clear(pairs, body)
    return None if clear is None else Read(status, clear, bool(rest.strip(b"\r\n")))


def _head(data: bytes) -> tuple[bytes, int, Pairs, bytes] | None:
    head, end, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    pairs = _pairs(lines)
    if not end or status is None or pairs is None:
        return None
    return status[1], int(status[2]), pairs, rest


def _pairs(lines: list[bytes]) -> Pairs | None:
    found = [_HEADER.fullmatch(line) for line in lines]
    return [(m[1].lower(), m[2].strip(b" \t")) for m in found if m] if all(found) else None


def _body(
    version: bytes, status: int, pairs: Pairs, data: bytes, *, is_ended: bool
) -> tuple[bytes, bytes] | None:
    """The body as it was sent, and what follows it."""
    if not _has_sound_length(pairs):
        return None
    lengths = _values(pairs, b"content-length")
    codings = [value.lower() for value in _values(pairs, b"transfer-encoding")]
    if codings:
        if codings != [b"chunked"] or version != b"1" or status in (204, 304):
            return None
        return _chunks(data)
    if lengths:
        size = 0 if status in (204, 304) else int(lengths[0])
        return None if len(data) < size else (data[:size], data[size:])
    if status in (204, 304):
        return b"", data
    return (data, b"") if is_ended else None


def _has_sound_length(pairs: Pairs) -> bool:
    """A Content-Length, where there is one, is a single number without a coding beside it.

    Anything else is an error (RFC 9112, 6.3), also with an answer that has no body.
    """
    lengths = _values(pairs, b"content-length")
    if not lengths:
        return True
    is_number = len(lengths) == 1 and re.fullmatch(rb"[0-9]{1,15}", lengths[0]) is not None
    return is_number and not _values(pairs, b"transfer-encoding")


def _values(pairs: Pairs, wanted: bytes) -> list[bytes]:
    return [value for name, value in pairs if name == wanted]


def _chunks(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        line, end, data = data.partition(b"\r\n")
        found = _CHUNK.fullmatch(line)
        if not end or found is None:
            return None
        size = int(found[1], 16)
        if size == 0:
            break
        if len(data) < size + 2 or data[size : size + 2] != b"\r\n":
            return None
        body, data = body + data[:size], data[size + 2 :]
    if data.startswith(b"\r\n"):
        return body, data[2:]
    trailer, end, rest = data.partition(b"\r\n\r\n")
    pairs = _pairs(trailer.split(b"\r\n"))
    if not end or pairs is None or any(name in _FRAMING for name, _ in pairs):
        return None
    return body, rest


def _clear(pairs: Pairs, body: bytes) -> bytes | None:
    """The body without its compression."""
    codings = [value.lower() for value in _values(pairs, b"content-encoding")]
    codings = [coding for coding in codings if coding not in (b"", b"identity")]
    if any(value.lower() != b"chunked" for value in _values(pairs, b"transfer-encoding")):
        return None
    if not codings:
        return body
    if len(codings) > 1 or codings[0] not in (b"gzip", b"x-gzip", b"deflate"):
        return None
    if not body:
        return b""
    is_zlib = len(body) > 1 and body[0] & 15 == 8 and (body[0] * 256 + body[1]) % 31 == 0
    is_gzip = body[:2] == b"\x1f\x8b"
    may_be_raw = codings[0] == b"deflate"
    window = 31 if is_gzip else 15 if is_zlib else -15 if may_be_raw else 31
    clear = b""
    while body:
        unpacker = zlib.decompressobj(window)
        try:
            clear += unpacker.decompress(body)
        except zlib.error:
            return None
        if not unpacker.eof or (unpacker.unused_data and window != 31):
            return None
        body = unpacker.unused_data
    return clear
