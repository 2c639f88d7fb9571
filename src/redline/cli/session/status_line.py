"""Shows a status line on stderr: redrawn in place on a terminal, otherwise a new line each time."""

from __future__ import annotations

import os
import sys

from redline.job.show import can_redraw
from redline.process import lasting, printable

_COLUMNS = 80


class StatusLine:
    """Shows a line on stderr. is_live: redraws it in place; otherwise writes each text below it."""

    def __init__(self) -> None:
        self._stream = lasting(sys.stderr)
        self.is_live = can_redraw(sys.stderr)
        self._drawn = ""

    def show(self, text: str) -> None:
        """Shows the text in place of the previous one or, unless `is_live`, below it."""
        if not self.is_live:
            self.write(text)
            return
        # One column stays free: a full line would wrap on some terminals.
        line = printable(text)[: _columns() - 1]
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


def _columns() -> int:
    try:
        # 0 if the terminal does not report its width.
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS
