"""Shows the live view on a terminal, in lines that are redrawn in place."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

from redline.job.show.layout import BAD, STRONG, WARN, Line, screen, text_of
from redline.job.show.snapshot import Meter
from redline.job.show.view import View
from redline.process import cells, in_thread, lasting

_REFRESH_S = 0.5
_USUAL_WIDTH, _USUAL_HEIGHT = 80, 24
# The most characters kept of an unfinished line, such as a progress bar of the user's code.
_LONGEST_REST = 4_096
# Select Graphic Rendition (ECMA-48, 8.3.117).
_CODES = {BAD: "31", WARN: "33", STRONG: "1"}


class TerminalProgress:
    """Redraws the lines of `screen` twice a second, and removes them when the run has ended.

    Lines that the user's code prints meanwhile appear above them.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr

    async def show(self, view: View) -> None:
        meter = Meter(view)
        area = _Area(self._stream)
        encoding = getattr(self._stream, "encoding", None) or ""
        is_plain = not encoding.lower().replace("-", "").startswith("utf")
        drawing: asyncio.Future[None] | None = None
        # A terminal that blocks, after Ctrl-S or behind a connection that hangs, must not delay the
        # run or its end. So a thread draws the lines, once the previous ones have been written.
        try:
            with area.beside():
                while True:
                    width, height = screen_size(self._stream)
                    # One column stays free: a full line would wrap on some terminals.
                    lines = screen(meter.read(), view.source_name, width - 1, is_plain=is_plain)
                    if drawing is not None and drawing.done():
                        drawing.result()
                        drawing = None
                    if drawing is None:
                        drawing = in_thread(area.draw, lines[: max(1, height - 1)], width)
                    await asyncio.sleep(_REFRESH_S)
        finally:
            await asyncio.wait([in_thread(area.end)], timeout=2 * _REFRESH_S)


class _Area:
    """The last lines of a terminal, which are redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = lasting(stream)
        self._has_colour = not os.environ.get("NO_COLOR")
        self._lines: Sequence[Line] = ()
        self._width = _USUAL_WIDTH
        self._frame = ""
        self._streams: list[_Above] = []
        self.is_over = False
        # The user's code may print from other threads.
        self.lock = threading.RLock()

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """Draws these lines, each narrower than `width` cells, in place of the previous ones."""
        with self.lock:
            frame = "\n".join(f"{self._painted(line)}\x1b[K" for line in lines)
            if self.is_over or (frame == self._frame and width == self._width):
                return
            # The cursor stays at the beginning of the last line, where a Ctrl-C shows as ^C.
            self._put(f"{self._top(width)}{frame}\x1b[J\r")
            self._lines, self._width, self._frame = lines, width, frame

    def erase(self) -> None:
        """Removes the lines, and leaves the cursor where the first line began."""
        with self.lock:
            if self._lines:
                self._put(f"{self._top(screen_size(self._stream)[0])}\x1b[J")
                self._lines, self._frame = (), ""

    def above(self, text: str, write: Callable[[str], object]) -> None:
        """Passes the text to `write` so that it appears above the lines, and redraws the lines."""
        with self.lock:
            lines = self._lines
            self.erase()
            write(text)
            self.draw(lines, self._width)

    @contextmanager
    def beside(self) -> Generator[None]:
        """Within the context, texts printed to a terminal appear above the lines."""
        before = sys.stdout, sys.stderr
        with self.lock:
            if is_terminal(sys.stdout):
                sys.stdout = cast("TextIO", _Above(sys.stdout, self))
            if is_terminal(sys.stderr):
                sys.stderr = cast("TextIO", _Above(sys.stderr, self))
        ours = sys.stdout, sys.stderr
        self._streams = [stream for stream in ours if isinstance(stream, _Above)]
        try:
            yield
        finally:
            # Restored only if the user's code has not replaced them meanwhile.
            if sys.stdout is ours[0]:
                sys.stdout = before[0]
            if sys.stderr is ours[1]:
                sys.stderr = before[1]

    def end(self) -> None:
        """Removes the lines for good, unless the terminal is blocked: then they stay."""
        is_free = self.lock.acquire(timeout=_REFRESH_S)
        if is_free:
            for stream in self._streams:
                stream.end_line()
        # A `draw` that is still waiting for the lock must not draw afterwards.
        self.is_over = True
        if is_free:
            self.erase()
            self.lock.release()

    def _top(self, width: int) -> str:
        """Returns the codes that move the cursor from the last line to the beginning of the first.

        A terminal that has become narrower has wrapped the lines that were drawn.
        """
        rows = sum(max(1, -(-cells(text_of(line)) // width)) for line in self._lines[:-1])
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _painted(self, line: Line) -> str:
        if not self._has_colour:
            return text_of(line)
        return "".join(
            f"\x1b[{_CODES[span.style]}m{span.text}\x1b[0m" if span.style else span.text
            for span in line
        )

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@dataclass(eq=False)
class _Above:
    """Replaces a stream that the user's code prints to; shows complete lines above the view."""

    _stream: TextIO
    _area: _Area
    _rest: str = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._area.lock:
            if self._area.is_over:
                # Another object, such as a logger, still refers to this stream.
                return self._stream.write(text)
            lines, end, self._rest = (self._rest + text).rpartition("\n")
            if len(self._rest) > _LONGEST_REST:
                lines, end, self._rest = lines + end + self._rest, "\n", ""
            if end:
                self._area.above(lines + end, self._write)
        return len(text)

    def end_line(self) -> None:
        """Ends an unfinished line."""
        if self._rest:
            self.write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def can_redraw(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal on which lines can be redrawn."""
    return is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is an open terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def screen_size(stream: TextIO) -> tuple[int, int]:
    """Returns (columns, rows) from the terminal, otherwise from the environment or a default."""
    try:
        size = os.get_terminal_size(stream.fileno())
        if size.columns and size.lines:
            return size
    except (OSError, ValueError, AttributeError):
        pass
    return shutil.get_terminal_size((_USUAL_WIDTH, _USUAL_HEIGHT))
