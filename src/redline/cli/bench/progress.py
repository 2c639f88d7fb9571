"""Shows the progress of a benchmark in one line."""

from __future__ import annotations

import asyncio
import time

from redline.cli.session import StatusLine
from redline.measure import Started
from redline.process import duration

_TICK_S, _CALM_S = 0.5, 10.0


class Progress:
    """Shows a line on stderr: redrawn twice per second on a terminal, otherwise one every 10 s."""

    def __init__(self, *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self._line = StatusLine()
        self._task: asyncio.Task[None] | None = None

    def watch(self, started: Started) -> None:
        """Shows the progress of this load from now on, in place of an earlier one's."""
        if self.is_shown:
            self.end()
            self._task = asyncio.get_running_loop().create_task(self._show(started))

    def end(self) -> None:
        """Stops, and removes the line from the terminal."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._line.clear()

    async def _show(self, started: Started) -> None:
        while True:
            await asyncio.sleep(_TICK_S if self._line.is_live else _CALM_S)
            load, tally = started.load, started.tally
            now_s = time.monotonic() - started.begun_s
            failed = f", {tally.failed:,} failed" if tally.failed else ""
            if now_s > started.plan.duration_s:
                self._line.show(f"requests still in flight: {load.in_flight:,}; Ctrl-C drops them")
                continue
            self._line.show(
                f"{duration(now_s)} of {duration(started.plan.duration_s)}: {tally.succeeded:,} "
                f"answered{failed}, {load.in_flight:,} in flight"
            )
