"""Short answers of a form that is known: read by one regular expression.

A server lays out the heads of its answers alike. What llhttp has read once, and what is of the same
form again, is read here in a third of the time: the same names in the same order, each value on its
line, one Content-Length, and a body that ends where it says and where the read ends.

A form is strict: what it reads, llhttp would read in the same way. Whatever it does not match goes
to llhttp, which judges it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_STATUS_LINE = "HTTP/1.1 200 OK\r\n"
# Printable text that begins and ends with no blank, which llhttp may cut off or keep.
_VALUE = "([!-~\x80-\xff][\t -~\x80-\xff]*+(?<![\t ]))"
_LENGTH = b"content-length"
# How a connection or a body continues if one of them is there is for llhttp to say.
_FRAMING = frozenset(
    (
        *(b"transfer-encoding", b"content-encoding", b"connection", b"proxy-connection"),
        *(b"upgrade", b"trailer"),
    )
)
_KEPT = (b"connection", b"keep-alive")
# Heads of usual servers have at most 4 KB, and a server has a few forms.
_MOST_NAME_BYTES = 2048
_MOST_FORMS = 64


class AnswerForm:
    """The common part of all answers of one form. names: of its headers, as they are sent."""

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
        self._match = re.compile(f"{re.escape(_STATUS_LINE)}{''.join(lines)}\r\n").match
        self._names = tuple(name.decode("latin-1") for name in lower)
        self._length_at = lower.index(_LENGTH)

    def read(self, data: bytes) -> tuple[dict[str, str], bytes] | None:
        """Headers, by names in lower case, and body; None for data that is not of this form."""
        match = self._match
        found = match(data.decode("latin-1"))
        if found is None:
            return None
        values = found.groups()
        body = data[found.end() :]
        if len(body) != int(values[self._length_at]):
            return None
        # As many as there are groups; `strict` would take half as long again.
        return dict(zip(self._names, values)), body  # noqa: B905


def form_of(pairs: Sequence[tuple[bytes, bytes]]) -> AnswerForm | None:
    """The form of an answer with these headers, in this order; None if it has none."""
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
