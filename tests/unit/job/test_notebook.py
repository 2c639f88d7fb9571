"""The live view in a notebook: an output of the cell that is updated."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
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


def test_a_frame_has_the_rows_done_before_while_the_input_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The first frame is drawn before a row is read.
    monkeypatch.setattr("redline.job.show.row_count._PAUSE_S", 0.5)
    monkeypatch.setattr("redline.job.show.notebook._FIRST_LOOKS", 0)
    rows, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(f'{{"n": {number}}}\n' for number in range(20)), "utf-8")
    redline.run(rows, call=answer, output=output, limit=12, progress=False)
    kernel = Kernel()
    kernel.install(monkeypatch)
    report = redline.run(rows, call=answer, output=output)
    assert (report.succeeded, report.skipped) == (8, 12)
    assert "12 done" in kernel.shown[0]["text/plain"]
    assert "20 of 20 done" in kernel.shown[-1]["text/plain"]


def test_the_first_frame_has_the_rows_of_a_list_that_were_done_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [{"n": number} for number in range(20)]
    redline.run(rows, call=answer, output=tmp_path / "out.jsonl", limit=12, progress=False)
    kernel = Kernel()
    kernel.install(monkeypatch)
    redline.run(rows, call=answer, output=tmp_path / "out.jsonl")
    assert "12 of 20 done" in kernel.shown[0]["text/plain"]


def test_nothing_is_shown_if_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.install(monkeypatch)
    redline.run([{"n": 1}], call=answer, progress=False)
    assert not kernel.shown


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_notebook()
    Kernel(has_kernel=False).install(monkeypatch)
    assert not is_notebook()
