"""The live view in a notebook: an output of the cell that is updated."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import redline
from redline.job.show import is_notebook


class Kernel:
    """What IPython offers in a kernel, as far as it is used; keeps what is displayed."""

    def __init__(self, *, has_kernel: bool = True) -> None:
        self.shown: list[dict[str, str]] = []
        self.kernel = object() if has_kernel else None

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        return SimpleNamespace(update=self.update)

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: self))
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=self.display))


async def answer(row: Any) -> str:
    await asyncio.sleep(0.01)
    return "<b>"


def test_a_cell_shows_the_run_and_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.install(monkeypatch)
    report = redline.run([{"n": number} for number in range(20)], call=answer)
    assert report.succeeded == 20
    last = kernel.shown[-1]
    assert "20 of 20 done" in last["text/plain"]
    assert last["text/html"].startswith("<pre")
    assert "&lt;iterable&gt;" in last["text/html"]


def test_nothing_is_shown_if_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.install(monkeypatch)
    redline.run([{"n": 1}], call=answer, progress=False)
    assert not kernel.shown


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_notebook()
    Kernel(has_kernel=False).install(monkeypatch)
    assert not is_notebook()
