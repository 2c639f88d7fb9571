"""Writes and reads the bytes of streamed answers: text/event-stream (WHATWG HTML, 9.2).

An event has a field on each line and ends with a blank line; its `data` is JSON. The event
`data: [DONE]` ends the stream; anything after it is not part of the answer.
"""

from __future__ import annotations

import re

import msgspec

from redline.apis.loose_json import BOM
from redline.errors import BadReply

DONE = b"[DONE]"
DONE_EVENT = b"data: %b\n\n" % DONE
_LONGEST_EVENT_BYTES = 8 * 1024 * 1024
# Two line ends, matched atomically: CR LF is one line end, not two.
_BLANK_LINE = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
# The maximum bytes of an incomplete blank line: CR LF CR LF without its last byte.
_MOST_BEGUN_BYTES = 3
# Blank lines whose last LF may not have arrived, unless the server ends lines with CR alone.
_MAY_GO_ON = frozenset({b"\r\n\r", b"\n\r"})
# A key, a colon and the opening quote of a model's text. They cannot be found inside a JSON string,
# where these quotes would be escaped.
_KEYS = tuple(
    b'%b":%b"' % (key, space)
    for key in (b"content", b"text", b"arguments")
    for space in (b"", b" ")
)
# The inside of a JSON string, without its quotes.
_INSIDE = re.compile(rb'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_INSIDE_AT = _INSIDE.match
# is_text(data, start, stop): a match if the bytes are the inside of a JSON string, otherwise None.
is_text = _INSIDE.fullmatch


def event_bytes(event: object, name: str = "") -> bytes:
    """Encodes one event. name: its `event` field; empty for none."""
    line = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (line, msgspec.json.encode(event))


class ErrorData(bytes):
    """The `data` of an event whose `event` field is `error`."""


class EventParser:
    """Splits a stream of bytes into complete events, however the bytes are divided into reads."""

    def __init__(self) -> None:
        # The bytes after the last blank line; a bytearray, so that reads do not copy a long event.
        self._rest = bytearray()
        self._is_first = True

    def blocks(self, data: bytes) -> list[tuple[bytes, bytes | None]]:
        """Returns each block that `data` completes: its bytes with the blank line, and its `data`.

        The latter is an ErrorData for an error, and None for a block without an event, such as a
        comment. The bytes of all blocks so far, followed by `left()`, are the bytes passed in so
        far. Raises BadReply for an event longer than 8 MiB.
        """
        if not (self._rest or self._is_first) and _is_line(data):
            # Most reads are exactly one event.
            return [(data, data[6:-2].strip() or None)]
        rest = self._rest
        # A blank line may have begun at the end of an earlier read.
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
        """Whether an event is incomplete, or no event has been completed yet.

        If True, the next bytes need not begin an event.
        """
        return bool(self._rest) or self._is_first

    def line(self, data: bytes) -> bytes | None:
        """Returns the event's data if `data` is exactly one event of one line and not `is_amid`.

        None otherwise. Unlike `blocks`, this method does not change the parser.
        """
        return None if self.is_amid or not _is_line(data) else _data_of(data)

    def rest(self) -> bytes | None:
        """Returns the data of an event that the end of the stream cut short; None without one."""
        rest = self.left()
        return _data_of(rest.removeprefix(BOM) if self._is_first else rest)

    def left(self) -> bytes:
        """Returns the bytes after the last complete block, unchanged."""
        return bytes(self._rest)


class EventForm(msgspec.Struct, frozen=True):
    """The form of events that differ from an earlier event only in the model's text.

    begin, end: the bytes of the event before and after the text, including `data: ` and the blank
    line. begin_bytes, end_bytes: their lengths.
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
    """Returns the form of a one-line event whose data is JSON; None if the event has no text."""
    for key in _KEYS:
        at = data.find(key)
        if at >= 0:
            start = at + len(key)
            inside = _INSIDE_AT(data, start)
            assert inside is not None  # the text may be empty
            begin, end = data[:start], data[inside.end() :]
            return EventForm(begin, end, len(begin), len(end)) if end[:1] == b'"' else None
    return None


def _has_end(kept: bytearray, start: int) -> bool:
    """Whether `kept` contains a blank line at or after `start`."""
    if kept.find(b"\r", start) < 0:
        return kept.find(b"\n\n", start) >= 0
    return _BLANK_LINE.search(kept, start) is not None


def _split(whole: bytes) -> list[bytes]:
    """Returns the complete blocks, each with its blank line. Lines end with CR, LF or CR LF."""
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
    """Whether the event is one line of data and a blank line."""
    return (
        event.startswith(b"data: ")
        and event.find(b"\n") == len(event) - 2
        and event.endswith(b"\n\n")
        and event.find(b"\r") < 0
    )


def _data_of(event: bytes) -> bytes | None:
    if _is_line(event):
        # Most events are one line.
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
