"""Shows a status line on stderr: redrawn in place on a terminal, otherwise a new line each time."""

from __future__ import annotations

import sys

from redline.job.show import can_redraw, screen_size
from redline.process import lasting, printable


class StatusLine:
    """Shows a line on stderr.

    is_live: whether each text replaces the previous one; otherwise it is written on a new line.
    """

    def __init__(self) -> None:
        self._stream = lasting(sys.stderr)
        self.is_live = can_redraw(sys.stderr)
        self._drawn = ""

    def show(self, text: str) -> None:
        """Shows the text in place of the previous one or, unless `is_live`, below it."""
        if not self.is_live:
            self.write(text)
            return
        columns, _ = screen_size(sys.stderr)
        # One column stays free: a full line would wrap on some terminals.
        line = printable(text)[: columns - 1]
        if line != self._drawn:
            self._put(f"\r\x1b[K{line}")
            self._drawn = line

    def write(self, text: str) -> None:
        """Writes a line that stays on the screen."""
        self.clear()
        self._put(f"{printable(text)}\n")

    def clear(self) -> None:
        """Removes the redrawn line, if there is one."""
        if self._drawn:
            self._put("\r\x1b[K")
            self._drawn = ""

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
