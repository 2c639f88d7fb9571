"""Shows the live view below the cell of a notebook, without ipywidgets."""

from __future__ import annotations

import asyncio
import html
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from redline.errors import RedlineError
from redline.job.show.layout import BAD, STRONG, WARN, Line, screen, text_of
from redline.job.show.notices import STANDSTILL
from redline.job.show.snapshot import Meter, Snapshot
from redline.job.show.view import View

_REFRESH_S = 1.0
# The seconds between checks for the first rows of a new run, and the most checks.
_FIRST_LOOK_S, _FIRST_LOOKS = 0.01, 100
_WIDTH = 100
# Colours that are readable on both white and black.
_STYLES = {BAD: "color:#d1242f", WARN: "color:#9a6700", STRONG: "font-weight:bold"}


def is_notebook() -> bool:
    """Whether this process is a notebook's kernel, which can update an output after display."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress:
    """Shows the lines of `screen` as an output of the cell; they stay after the run has ended.

    Construct the object in the thread that runs the cell.
    """

    def __init__(self) -> None:
        # Imported here: IPython is sure to be installed only in a notebook's kernel.
        from IPython.display import display

        self._shown: list[Line] = []
        self._handle = display(_bundle([]), raw=True, display_id=True)

    async def show(self, view: View) -> None:
        meter = Meter(view)
        try:
            # A first frame without the rows that earlier runs have done would be wrong.
            for _ in range(_FIRST_LOOKS):
                if view.is_begun:
                    break
                await asyncio.sleep(_FIRST_LOOK_S)
            while True:
                self._update(meter.read(), view.source_name)
                await asyncio.sleep(_REFRESH_S)
        finally:
            self._update(_ended(meter.read(), view.runner.stopped), view.source_name)

    def _update(self, snapshot: Snapshot, name: str) -> None:
        lines = screen(snapshot, name, _WIDTH)
        if lines != self._shown:
            self._handle.update(_bundle(lines), raw=True)
            self._shown = lines


def _ended(snapshot: Snapshot, stopped: RedlineError | None) -> Snapshot:
    """Returns the snapshot of an ended run, without its ETA, waits and standstill notices."""
    found = {kind: text for kind, text in snapshot.notices.items() if kind not in STANDSTILL}
    if snapshot.is_draining:
        found["ended"] = "interrupted" if stopped is None else f"stopped: {stopped.what}"
    return msgspec.structs.replace(
        snapshot, eta_s=None, is_on_hold=False, parked_s=0.0, notices=found
    )


def _bundle(lines: Sequence[Line]) -> dict[str, Any]:
    """Returns the lines as a MIME bundle: plain text and HTML, keyed by MIME type."""
    painted = "\n".join("".join(_span(text, style) for text, style in line) for line in lines)
    return {
        "text/plain": "\n".join(map(text_of, lines)),
        "text/html": f'<pre style="line-height:1.3">{painted}</pre>',
    }


def _span(text: str, style: str) -> str:
    shown = html.escape(text)
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
