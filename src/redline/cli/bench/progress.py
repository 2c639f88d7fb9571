"""Shows the progress of a load in one line."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from redline.measure import Started
from redline.process import duration, lasting

_TICK_S, _CALM_S = 0.5, 10.0


class Progress:
    """A line on stderr: redrawn on a terminal, otherwise written every 10 s."""

    def __init__(self, *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self._is_terminal = is_shown and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._task: asyncio.Task[None] | None = None

    def watch(self, started: Started) -> None:
        """Shows this load from now on."""
        if self.is_shown:
            self.end()
            self._task = asyncio.get_running_loop().create_task(self._show(started))

    def end(self) -> None:
        """Removes the line."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            if self._is_terminal:
                _write("\r\x1b[K")

    async def _show(self, started: Started) -> None:
        while True:
            await asyncio.sleep(_TICK_S if self._is_terminal else _CALM_S)
            load, tally = started.load, started.tally
            now_s = time.monotonic() - started.begun_s
            failed = f", {tally.failed:,} failed" if tally.failed else ""
            if now_s > started.plan.duration_s:
                line = f"waiting for {load.in_flight:,} in flight; Ctrl-C drops them"
                _write(f"\r{line}\x1b[K" if self._is_terminal else f"{line}\n")
                continue
            line = (
                f"{duration(now_s)} of {duration(started.plan.duration_s)}: {tally.succeeded:,} "
                f"answered{failed}, {load.in_flight:,} in flight"
            )
            _write(f"\r{line}\x1b[K" if self._is_terminal else f"{line}\n")


def _write(text: str) -> None:
    """Writes the text unchanged to stderr. A failed write is not an error."""
    stream = lasting(sys.stderr)
    stream.write(text)
    stream.flush()
