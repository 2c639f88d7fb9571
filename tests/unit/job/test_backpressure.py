"""A run reads on only while what it holds of rows, and of lines that are not synced, is bounded."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.job import build
from redline.job.work import backpressure as load
from redline.journal import journal, results_file

KB = 1024
ROW = 100 * KB
FITS = 10
ROWS = 60
KINDS = ("iterable", "async iterable", "file")


def rows_of(kind: str, folder: Path) -> Any:
    row = {"prompt": "x" * ROW}
    if kind == "iterable":
        return (row for _ in range(ROWS))
    if kind == "file":
        path = folder / "rows.jsonl"
        path.write_text((json.dumps(row) + "\n") * ROWS)
        return path

    async def some() -> AsyncIterator[dict[str, str]]:
        for _ in range(ROWS):
            yield row

    return some()


async def most_in_flight(rows: Any, lasts_s: float = 60) -> int:
    """Of rows that all are begun as soon as they may be, and end some time later."""
    in_flight = most = done = 0
    fit = asyncio.Event()

    async def call(row: dict[str, Any]) -> str:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        if most >= FITS:
            fit.set()
        await fit.wait()
        await asyncio.sleep(0.05)
        in_flight -= 1
        return "done"

    async with asyncio.timeout(lasts_s):
        async for outcome in redline.stream(rows, call=call, concurrency=50):
            done += outcome.is_success
    assert done == ROWS
    return most


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MOST_ROW_BYTES", FITS * ROW)


# A file's rows come by the block of 1 MB.
AT_ONCE = {"iterable": 2, "async iterable": 2, "file": 2 + 1024 * KB // ROW}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kind", KINDS)
def test_large_rows_in_flight_are_bounded_by_their_bytes(kind: str, tmp_path: Path) -> None:
    most = asyncio.run(most_in_flight(rows_of(kind, tmp_path)))
    assert FITS <= most <= FITS + AT_ONCE[kind]


@pytest.mark.usefixtures("narrow")
def test_a_row_that_counts_for_ever_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Growing(load.Backpressure):
        def remove(self, row_bytes: int) -> None:
            return

    monkeypatch.setattr(build, "Backpressure", Growing)
    with pytest.raises(TimeoutError):
        asyncio.run(most_in_flight(rows_of("iterable", tmp_path), lasts_s=1))


# A disk that hangs.


class Disk:
    """Its fsyncs hang until `is_well`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_well = threading.Event()
        self.is_asked = threading.Event()
        real = results_file.ResultsFile.sync

        def sync(file: results_file.ResultsFile) -> None:
            if file.path.stat().st_size:
                self.is_asked.set()
                self.is_well.wait(20)
            real(file)

        monkeypatch.setattr(results_file.ResultsFile, "sync", sync)


# A line of these rows is hardly shorter.
LINE_BYTES = 250


async def asked_while_it_hangs(disk: Disk, output: Path) -> int:
    """Calls made until the run stands still, at most 2,000."""
    asked = 0

    async def call(row: dict[str, Any]) -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return "done"

    def rows() -> Iterator[dict[str, str]]:
        while asked < 2000:
            yield {"prompt": "x"}

    async def read() -> None:
        async for _ in redline.stream(rows(), call=call, concurrency=4, output=output):
            pass

    reading = asyncio.create_task(read())
    async with asyncio.timeout(100):
        while not disk.is_asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        seen = -1
        while asked > seen:
            seen = asked
            await asyncio.sleep(0.3)
        # All of it is written though, and outlives the process.
        lines = output.read_bytes().count(b"\n")
        disk.is_well.set()
        await reading
    assert lines == seen
    assert asked == output.read_bytes().count(b"\n") >= 2000
    return seen


def test_a_disk_that_hangs_stops_the_reading_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_UNSYNCED_BYTES", 100 * (journal.KEPT_ROW_BYTES + LINE_BYTES))
    asked = asyncio.run(asked_while_it_hangs(Disk(monkeypatch), tmp_path / "out.jsonl"))
    # A group that is being synced, one that is full, and what 20 workers had at hand.
    assert 100 <= asked <= 2 * 100 + 2 * 20


def test_a_journal_that_never_is_behind_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_UNSYNCED_BYTES", 100 * (journal.KEPT_ROW_BYTES + LINE_BYTES))
    monkeypatch.setattr(journal.Journal, "is_behind", False)
    asked = asyncio.run(asked_while_it_hangs(Disk(monkeypatch), tmp_path / "out.jsonl"))
    assert asked > 2 * 100 + 2 * 20


def test_a_stream_gives_an_outcome_once_its_line_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def call(row: dict[str, int]) -> str:
        if row["n"] == 1:
            raise ValueError
        return "done"

    async def main() -> dict[int | None, str]:
        rows, output = [{"n": 0}, {"n": 1}], tmp_path / "out.jsonl"
        async with redline.stream(rows, call=call, output=output) as outcomes:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(outcomes), 0.5)
            assert disk.is_asked.is_set()
            disk.is_well.set()
            return {outcome.row: outcome.status async for outcome in outcomes}

    assert asyncio.run(main()) == {1: "succeeded", 2: "rejected"}


def test_a_run_with_an_output_waits_for_a_slow_reader_of_its_stream(tmp_path: Path) -> None:
    asked = 0

    async def call(row: dict[str, int]) -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.001)
        return row["n"]

    async def main() -> None:
        rows = ({"n": number} for number in itertools.count())
        async with redline.stream(
            rows, call=call, concurrency=4, output=tmp_path / "out.jsonl"
        ) as outcomes:
            for _ in range(2):
                await anext(outcomes)
                seen = -1
                while asked > seen:
                    seen = asked
                    await asyncio.sleep(0.5)
                # What the reader may be behind, and at most the lines of two groups.
                assert 256 <= asked < 256 + 2 * 1000
            for _ in range(3 * asked):
                await anext(outcomes)

    asyncio.run(main())
