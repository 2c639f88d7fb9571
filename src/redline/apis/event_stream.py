"""Streamed answers as bytes: text/event-stream (WHATWG HTML, 9.2), written and read.

An event has a field on each line and ends with a blank line; its `data` is JSON. The API ends a
stream with `data: [DONE]`, and what follows that is not a part of the answer.
"""

from __future__ import annotations

import re

import msgspec

from redline.apis.loose_json import BOM
from redline.errors import BadReply

DONE = b"[DONE]"
DONE_EVENT = b"data: %b\n\n" % DONE
_LONGEST_EVENT_BYTES = 8 * 1024 * 1024
# Two ends of lines. They are atomic: CR LF is one of them and not two.
_BLANK_LINE = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
# The most bytes of an incomplete blank line: all but its last byte.
_MOST_BEGUN_BYTES = 3
# The LF may still arrive, but a server that ends lines with CR alone sends none.
_MAY_GO_ON = frozenset({b"\r\n\r", b"\n\r"})
# The end of a key and the beginning of a string, before a model's text. Inside a JSON string, these
# quotes would have a backslash.
_KEYS = tuple(
    b'%b":%b"' % (key, space)
    for key in (b"content", b"text", b"arguments")
    for space in (b"", b" ")
)
# The inside of a JSON string.
_INSIDE = re.compile(rb'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_INSIDE_AT = _INSIDE.match
# Whether data, from one place up to another, is the inside of a JSON string.
is_text = _INSIDE.fullmatch


def event_bytes(event: object, name: str = "") -> bytes:
    """Encodes one event. name: its `event` field; empty for none."""
    line = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (line, msgspec.json.encode(event))


class ErrorData(bytes):
    """The data of an event that is named `error`."""


class EventParser:
    """Splits a stream of bytes into complete events, wherever the bytes were cut."""

    def __init__(self) -> None:
        # The bytes since the last blank line; a long event is not copied at each read.
        self._rest = bytearray()
        self._is_first = True

    def blocks(self, data: bytes) -> list[tuple[bytes, bytes | None]]:
        """The blocks that `data` completes, each as received with its blank line, and its data.

        The data is an ErrorData for an error, and None for a block without an event, such as a
        comment. All blocks followed by `left` equal the bytes fed. Raises BadReply for an endless
        event.
        """
        if not (self._rest or self._is_first) and _is_line(data):
            # As most reads are: one event.
            return [(data, data[6:-2].strip() or None)]
        rest = self._rest
        # A blank line may have begun in what is kept.
        start = max(0, len(rest) - _MOST_BEGUN_BYTES)
        rest += data
        raws = _split(bytes(rest)) if not start or _has_end(rest, start) else []
        del rest[: sum(map(len, raws))]
        if len(rest) > _LONGEST_EVENT_BYTES:
            raise BadReply(f"a streamed event is longer than {_LONGEST_EVENT_BYTES:,} bytes")
        found = [(raw, _data_of(raw)) for raw in raws]
        if self._is_first and raws:
            self._is_first = False
            found[0] = raws[0], _data_of(raws[0].removeprefix(BOM))
        return found

    @property
    def is_amid(self) -> bool:
        """Whether a part of an event, or nothing at all, has arrived.

        The next bytes then need not begin an event.
        """
        return bool(self._rest) or self._is_first

    def line(self, data: bytes) -> bytes | None:
        """The data of the one event that `data` is, if it is a line and nothing came before it.

        None for anything else. It does not change the parser, unlike `blocks`.
        """
        return None if self.is_amid or not _is_line(data) else _data_of(data)

    def rest(self) -> bytes | None:
        """The data of an event that the stream's end has cut short; None for none."""
        rest = self.left()
        return _data_of(rest.removeprefix(BOM) if self._is_first else rest)

    def left(self) -> bytes:
        """The bytes after the last complete block, unchanged."""
        return bytes(self._rest)


class EventForm(msgspec.Struct, frozen=True):
    """The form of events that differ from an earlier one only in the model's text.

    Apart from the text, all of them have the same contents.
    begin, end: the event before and after the text, with `data: ` and its blank line.
    begin_bytes, end_bytes: their lengths.
    """

    begin: bytes
    end: bytes
    begin_bytes: int
    end_bytes: int

    def fits(self, data: bytes, start: int, stop: int) -> bool:
        """Whether `data` from `start` up to `stop` is one event of this form."""
        return (
            data.startswith(self.begin, start, stop)
            and data.endswith(self.end, start, stop)
            and is_text(data, start + self.begin_bytes, stop - self.end_bytes) is not None
        )


def event_form_of(data: bytes) -> EventForm | None:
    """The form of an event of one line, which is JSON; None if it has no text."""
    for key in _KEYS:
        at = data.find(key)
        if at >= 0:
            start = at + len(key)
            inside = _INSIDE_AT(data, start)
            assert inside is not None  # it may be empty
            begin, end = data[:start], data[inside.end() :]
            return EventForm(begin, end, len(begin), len(end)) if end[:1] == b'"' else None
    return None


def _has_end(kept: bytearray, start: int) -> bool:
    """Whether it contains a blank line from `start` on."""
    if kept.find(b"\r", start) < 0:
        return kept.find(b"\n\n", start) >= 0
    return _BLANK_LINE.search(kept, start) is not None


def _split(whole: bytes) -> list[bytes]:
    """The blocks of lines that end with CR, LF or both, each with its blank line."""
    if whole.find(b"\r") < 0:
        return [block + b"\n\n" for block in whole.split(b"\n\n")[:-1]]
    raws, start = [], 0
    for end in _BLANK_LINE.finditer(whole):
        if end.end() == len(whole) and end[0] in _MAY_GO_ON:
            break
        raws.append(whole[start : end.end()])
        start = end.end()
    return raws


def _is_line(event: bytes) -> bool:
    """Whether it is one line of data, and a blank one."""
    return (
        event.startswith(b"data: ")
        and event.find(b"\n") == len(event) - 2
        and event.endswith(b"\n\n")
        and event.find(b"\r") < 0
    )


def _data_of(event: bytes) -> bytes | None:
    if _is_line(event):
        # As most are.
        return event[6:-2].strip() or None
    if event.find(b"\r") >= 0:
        event = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = event.split(b"\n")
    parts = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    if names[-1:] == [b"error"]:
        return ErrorData(b"\n".join(parts))
    # An event without data is a heartbeat.
    return b"\n".join(parts) or None
