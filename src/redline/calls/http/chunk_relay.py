"""Passes on chunks of a stream unchanged, including their framing.

Most events of a stream differ only in their text, and each arrives in a chunk of its own. Passing a
chunk on takes one comparison with the form of earlier events, and one write.
"""

from __future__ import annotations

from redline.apis import EventForm, is_text
from redline.calls.wire import chunks_in, size_line
from redline.waist import Outlet

# The most lengths of chunks to remember: the text of an event determines its length.
_MOST_HEADS = 64


class _Heads(dict[int, bytes]):
    """The beginnings of chunks with an event of one form, by the chunk's length on the wire."""

    def __init__(self, begin: bytes) -> None:
        self._begin = begin

    def __missing__(self, whole_bytes: int) -> bytes:
        if len(self) >= _MOST_HEADS:
            self.clear()
        line = size_line(whole_bytes)
        if line is None:
            # No chunk has this length: a head longer than the chunk matches nothing.
            return bytes(whole_bytes + 1)
        head = self[whole_bytes] = line + self._begin
        return head


class ChunkRelay:
    """Passes on chunks whose events have one form, while the outlet has room."""

    __slots__ = ("_event_bytes", "_form", "_heads", "_outlet", "_tail", "_tail_bytes")

    def __init__(self, form: EventForm, outlet: Outlet) -> None:
        self._form = form
        self._outlet = outlet
        self._heads = _Heads(form.begin)
        self._tail = form.end + b"\r\n"
        self._tail_bytes = len(self._tail)
        self._event_bytes = form.begin_bytes + form.end_bytes  # without its text

    def take(self, data: bytes) -> int:
        """Passes on `data` if it consists of whole chunks, each with one event of the form.

        Returns the number of bytes of the events; 0 if nothing was passed on.
        """
        write = self._outlet.write
        if write is None:
            return 0
        if not data.endswith(self._tail):
            return 0
        size_bytes = len(data)
        head = self._heads[size_bytes]
        if data.startswith(head):
            start, end = len(head), size_bytes - self._tail_bytes
            if is_text(data, start, end):
                write(data)
                return end - start + self._event_bytes
        chunks = chunks_in(data)
        fits = self._form.fits
        if not chunks or not all(fits(data, start, end) for start, end in chunks):
            return 0
        write(data)
        return sum(end - start for start, end in chunks)
