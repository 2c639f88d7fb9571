"""The sum of a budget is durable before the results that it has paid for are."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.errors import JournalError
from redline.job.outputs import resume
from redline.journal import Journal
from support.catching import assert_caught

pytestmark = pytest.mark.crash

ROWS = [{"prompt": f"row {number}"} for number in range(30)]


def work(output: Path) -> redline.Report:
    return redline.run(
        ROWS, model="m", endpoint="sim", output=output, budget_tokens="1m", progress=False, rps=200
    )


class SyncsResultsAlone(Journal):
    def start(self, before_sync: Any = None) -> None:
        super().start()


def synced_first(
    journal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Before each fsync of results there is one of the sum, with nothing else between."""
    monkeypatch.setattr(resume, "Journal", journal)
    names.clear()
    output = tmp_path / f"{journal.__name__}.jsonl"
    assert work(output).succeeded == len(ROWS)
    begun = names.index("spent")
    results = [at for at, name in enumerate(names) if name == output.name and at > begun]
    assert results
    assert all(names[at - 1] == "spent" for at in results), names


def test_the_sum_is_synced_before_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    fsync = os.fsync

    def heard(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", heard)
    assert_caught(
        lambda journal: synced_first(journal, tmp_path, monkeypatch, names),
        Journal,
        SyncsResultsAlone,
    )


def test_a_sum_that_cannot_be_synced_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def failing(fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name == "spent":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    report = work(tmp_path / "labels.jsonl")
    assert isinstance(report.stopped, JournalError)
    assert "spent: Input/output error" in report.stopped.what
    assert report.succeeded == 0
    monkeypatch.setattr(os, "fsync", fsync)
    assert work(tmp_path / "labels.jsonl").is_complete
