"""Makes the heads of responses from parts that are encoded only once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

JSON = b"content-type: application/json\r\n"
TEXT = b"content-type: text/plain; charset=utf-8\r\n"
# Prometheus' text format.
PROMETHEUS = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Responses with these statuses have no body and no length (RFC 9110, 8.6).
BODILESS = frozenset({204, 304})

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@lru_cache(maxsize=1000)
def status_line(status: int) -> bytes:
    """Returns the first line of a response."""
    return f"HTTP/1.1 {status} {_phrase(status)}\r\n".encode()


# Formatting a number costs more than all other work on a head, and most lengths recur.
@lru_cache(maxsize=4096)
def length_line(size_bytes: int) -> bytes:
    """Returns the Content-Length line of a body."""
    return b"content-length: %d\r\n" % size_bytes


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Returns the headers as they are sent.

    Raises ValueError for a name or a value that HTTP does not allow, such as one with a line break.
    """
    lines = []
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"not a header: {name!r}: {value!r}")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")


def date_line() -> bytes:
    """Returns the Date header of the current second."""
    return f"date: {formatdate(usegmt=True)}\r\n".encode()


def shown(status: int, reason: str) -> bytes:
    """Returns the body of an error that the server itself responds with."""
    return f"{status} {_phrase(status)}: {reason}\n".encode("utf-8", "replace")


def _phrase(status: int) -> str:
    """Returns the reason phrase of a status; "" if the status has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
