"""Requests whose head equals an earlier one, byte for byte, except for the length of the body.

A client sends the same head with each request of a connection. llhttp and this server would
interpret the same head in the same way again, so it is compared, not parsed. The head of a request
without a body, such as one for a health page, must be entirely equal.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from redline.httpserver.framing import Fields, Line

# Clients of LLM APIs send heads of less than 1 KB.
_MOST_HEAD_BYTES = 4096
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,9})\r\n")
_MOST_DIGITS = 9
_HEAD_END = b"\r\n\r\n"
# The lengths of most bodies differ little.
_MOST_LENGTHS = 4096
# If one of these is present, only llhttp can tell how the body or the connection continues.
_FRAMING = frozenset((b"transfer-encoding", b"content-encoding", b"upgrade", b"expect"))


class RequestForm(msgspec.Struct, frozen=True):
    """begin, end: the head in front of the digits of its length, and behind them.

    Without a length, `begin` is the whole head and `end` is empty. line, fields: what was read of
    it; each request has a length of its own.
    """

    begin: bytes
    end: bytes
    line: Line
    fields: Fields

    def body(self, data: bytes, most_bytes: int) -> bytes | None:
        """The body; None unless `data` is exactly one whole request of this form.

        most_bytes: of the body.
        """
        begin, end = self.begin, self.end
        if not end:
            return b"" if data == begin else None
        digits = _digits(len(data) - len(begin) - len(end))
        if digits is None:
            return None
        head = b"".join((begin, digits, end))
        if not data.startswith(head):
            return None
        body = data[len(head) :]
        return body if len(body) <= most_bytes else None

    def begun(self, data: bytes, most_bytes: int) -> tuple[int, bytes] | None:
        """The length and the arrived part of the body, if `data` begins a request of this form.

        None unless it is the whole head, and less of the body than that announces. most_bytes: of
        the body.
        """
        begin, end = self.begin, self.end
        if not end or not data.startswith(begin):
            return None
        digits_end = data.find(b"\r", len(begin))
        digits = data[len(begin) : digits_end]
        if not data.startswith(end, digits_end) or len(digits) > _MOST_DIGITS:
            return None
        if not digits.isdigit():
            return None
        size = int(digits)
        part = data[digits_end + len(end) :]
        if digits != b"%d" % size or not len(part) < size <= most_bytes:
            return None
        return size, part


def form_of(data: bytes, line: Line, fields: Fields) -> RequestForm | None:
    """The form of a request that stays on its connection; None if it has none.

    data: its bytes, at least those of its head. line, fields: what was read of it.
    """
    head_end = data.find(_HEAD_END, 0, _MOST_HEAD_BYTES) + len(_HEAD_END)
    if not _FRAMING.isdisjoint(fields):
        return None
    if b"content-length" not in fields:
        return RequestForm(data, b"", line, fields) if head_end == len(data) else None
    found = _LENGTH.search(data, 0, head_end)
    if found is None:
        return None
    if len(data) - head_end > int(found[1]):
        return None
    return RequestForm(data[: found.start(1)], data[found.end(1) : head_end], line, fields)


# Formatting a number costs more than all comparisons of a head.
@lru_cache(maxsize=_MOST_LENGTHS)
def _digits(size_bytes: int) -> bytes | None:
    """The length of a body, as digits; None if there is none.

    size_bytes: of the body and these digits together.
    """
    most = len(str(size_bytes))
    for count in (most, most - 1):
        digits = b"%d" % (size_bytes - count)
        if len(digits) == count:
            return digits
    return None
