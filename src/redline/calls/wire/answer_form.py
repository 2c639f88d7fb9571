"""Reads short responses of a known form with one regular expression.

The heads of a server's responses are usually alike. Once llhttp has read one, others of the same
form are read here in a third of the time: the same names in the same order, each value on its line,
one Content-Length, and a body that has this length and ends where the read ends.

A form is strict: it matches only data that llhttp would read in the same way. Anything else goes to
llhttp, which decides whether it is valid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_STATUS_LINE = "HTTP/1.1 200 OK\r\n"
# Printable text without whitespace at either end, which llhttp might strip or keep.
_VALUE = "([!-~\x80-\xff][\t -~\x80-\xff]*+(?<![\t ]))"
_LENGTH = b"content-length"
# With one of these headers, llhttp decides how the connection or the body continues.
_FRAMING = frozenset(
    (
        *(b"transfer-encoding", b"content-encoding", b"connection", b"proxy-connection"),
        *(b"upgrade", b"trailer"),
    )
)
_KEPT = (b"connection", b"keep-alive")
# The heads of usual servers are at most 4 KB long, and a server has only a few forms.
_MOST_NAME_BYTES = 2048
_MOST_FORMS = 64


class AnswerForm:
    """The layout that responses of one form share. names: the names of the headers, as sent."""

    def __init__(self, names: Sequence[bytes]) -> None:
        lower = [name.lower() for name in names]
        lines = []
        for name, plain in zip(names, lower, strict=True):
            value = _VALUE
            if plain == _LENGTH:
                value = "([0-9]{1,9}+)"
            elif plain == _KEPT[0]:
                value = "([Kk]eep-[Aa]live)"
            lines.append(f"{re.escape(name.decode('latin-1'))}: {value}\r\n")
        pattern = f"{re.escape(_STATUS_LINE)}{''.join(lines)}\r\n"
        self._match = re.compile(pattern.encode("latin-1")).match
        self._names = tuple(name.decode("latin-1") for name in lower)
        self._length_at = lower.index(_LENGTH)

    def read(self, data: bytes) -> tuple[dict[str, str], bytes] | None:
        """Returns the headers, by lower-case names, and the body; None for data of another form."""
        match = self._match
        found = match(data)
        if found is None:
            return None
        values = found.groups()
        body = data[found.end() :]
        if len(body) != int(values[self._length_at]):
            return None
        # No value contains a line break.
        texts = b"\n".join(values).decode("latin-1").split("\n")
        # There is one text per group; `strict` would take half as long again.
        return dict(zip(self._names, texts)), body  # noqa: B905


def form_of(pairs: Sequence[tuple[bytes, bytes]]) -> AnswerForm | None:
    """Returns the form of responses with these headers in this order; None if there is none."""
    names = tuple(name for name, _ in pairs)
    lower = {name.lower() for name in names}
    kept = [(name.lower(), value.lower()) for name, value in pairs if name.lower() in _FRAMING]
    is_usual = _LENGTH in lower and len(lower) == len(names) and kept in ([], [_KEPT])
    if not is_usual or sum(map(len, names)) > _MOST_NAME_BYTES:
        return None
    return _form(names)


@lru_cache(maxsize=_MOST_FORMS)
def _form(names: tuple[bytes, ...]) -> AnswerForm:
    return AnswerForm(names)
