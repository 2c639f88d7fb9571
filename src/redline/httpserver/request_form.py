"""Recognizes requests whose head repeats an earlier one exactly, apart from the body's length.

Most clients send the same head with each request of a connection. Parsing the same head again would
have the same result, so it is compared instead. The head of a request without a body, such as a
request for a health page, must be identical.
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
# Enough for most bodies, because their lengths differ little.
_MOST_LENGTHS = 4096
# With one of these headers, only llhttp can determine how the body or the connection continues.
_FRAMING = frozenset((b"transfer-encoding", b"content-encoding", b"upgrade", b"expect"))


class RequestForm(msgspec.Struct, frozen=True):
    """A head that requests share.

    begin, end: the parts of the head before and after the digits of Content-Length; without that
    header, `begin` is the whole head and `end` is empty. line, fields: the parsed head. The
    length in `fields` is that of the first such request; other requests have their own.
    """

    begin: bytes
    end: bytes
    line: Line
    fields: Fields

    def body(self, data: bytes, most_bytes: int) -> bytes | None:
        """Returns the body; None unless `data` is exactly one whole request of this form.

        most_bytes: the longest body to accept.
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
        """Returns the length and the first part of the body, if `data` begins such a request.

        None unless `data` is a whole head of this form and an incomplete body. most_bytes: the
        longest body to accept.
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
    """Returns the form of a request; None if later requests cannot be recognized by it.

    data: the bytes of the request, at least its head. line, fields: the parsed head.
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


# Formatting a number costs more than comparing a whole head.
@lru_cache(maxsize=_MOST_LENGTHS)
def _digits(size_bytes: int) -> bytes | None:
    """Returns the length of a body as digits; None if no length fits.

    size_bytes: the size of the body and these digits together.
    """
    most = len(str(size_bytes))
    for count in (most, most - 1):
        digits = b"%d" % (size_bytes - count)
        if len(digits) == count:
            return digits
    return None
