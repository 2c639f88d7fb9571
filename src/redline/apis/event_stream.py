"""Streamed answers as bytes: text/event-stream (WHATWG HTML, 9.2), written and read.

An event is some fields by line, a blank line ends it, and its `data` is JSON. The API ends a stream
with `data: [DONE]`, and what follows that is not a part of the answer.
"""

from __future__ import annotations

import msgspec

from redline.apis.loose_json import BOM
from redline.errors import BadReply

DONE = b"[DONE]"
DONE_EVENT = b"data: %b\n\n" % DONE
_LONGEST_EVENT_BYTES = 8 * 1024 * 1024


def event_bytes(event: object, name: str = "") -> bytes:
    """One event. name: of its kind; empty for none."""
    line = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (line, msgspec.json.encode(event))


class ErrorData(bytes):
    """The data of an event that is named `error`."""


class EventParser:
    """Bytes in, the data of whole events out, wherever the bytes were cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True
        self._ends_with_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes, as ErrorData for errors.

        Raises BadReply for an endless event.
        """
        if self._is_first:
            data, self._rest = self._rest + data, b""
            if BOM.startswith(data):
                self._rest = data
                return []
            data = data.removeprefix(BOM)
            self._is_first = False
        if data:
            # A line ends with CR, LF or both, which may come apart.
            is_second_half = self._ends_with_cr and data.startswith(b"\n")
            self._ends_with_cr = data.endswith(b"\r")
            data = data[1:] if is_second_half else data
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > _LONGEST_EVENT_BYTES:
            raise BadReply(f"a streamed event is longer than {_LONGEST_EVENT_BYTES:,} bytes")
        return [found for event in events if (found := _data_of(event)) is not None]

    def rest(self) -> bytes | None:
        """The data of an event that the stream's end has cut short; None for none."""
        return _data_of(self._rest)


def _data_of(event: bytes) -> bytes | None:
    lines = event.split(b"\n")
    parts = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    if names[-1:] == [b"error"]:
        return ErrorData(b"\n".join(parts))
    return b"\n".join(parts) if parts else None
