"""The live view below the cell of a notebook, without ipywidgets."""

from __future__ import annotations

import asyncio
import html
import sys
from collections.abc import Sequence
from typing import Any

from redline.job.show.layout import BAD, STRONG, WARN, Line, screen, text_of
from redline.job.show.snapshot import Meter
from redline.job.show.view import View

_REFRESH_S = 1.0
_WIDTH = 100
# Colours that can be read on white and on black.
_STYLES = {BAD: "color:#d1242f", WARN: "color:#b58900", STRONG: "font-weight:bold"}


def is_notebook() -> bool:
    """This is the kernel of a notebook, such as Jupyter's: what a cell displays can change."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress:
    """The lines of `screen` as an output of the cell, which stays when the run has ended.

    To be made in the thread of the cell, whose output it is.
    """

    def __init__(self) -> None:
        # Only a kernel has it.
        from IPython.display import display

        self._handle = display(_bundle([]), raw=True, display_id=True)

    async def show(self, view: View) -> None:
        meter, before = Meter(view), list[Line]()
        try:
            while True:
                before = self._update(meter, view, before)
                await asyncio.sleep(_REFRESH_S)
        finally:
            self._update(meter, view, before)

    def _update(self, meter: Meter, view: View, before: list[Line]) -> list[Line]:
        lines = screen(meter.read(), view.source_name, _WIDTH)
        if lines != before:
            self._handle.update(_bundle(lines), raw=True)
        return lines


def _bundle(lines: Sequence[Line]) -> dict[str, Any]:
    """The lines by the types of content that a notebook can show."""
    painted = "\n".join("".join(_span(text, style) for text, style in line) for line in lines)
    return {
        "text/plain": "\n".join(map(text_of, lines)),
        "text/html": f'<pre style="line-height:1.3">{painted}</pre>',
    }


def _span(text: str, style: str) -> str:
    shown = html.escape(text)
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
