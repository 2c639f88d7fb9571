"""Files that somebody removes, moves, cuts or replaces while a run works with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import await_lines, ended, ids, sim_flags, started, write_rows
from crash.killing import redline as command
from redline.errors import JournalError, Rejected

pytestmark = pytest.mark.crash

COUNT = 12
MIDDLE = 6


class Job:
    """A run of some rows, in whose middle something is done to its files; r3 fails.

    asked: the rows, each as often as it was asked.
    """

    def __init__(self, folder: Path) -> None:
        self.output = folder / "labels.jsonl"
        self.asked: list[int] = []

    def run(
        self, act: Callable[[], object] | None = None, *, at: int = MIDDLE, **options: Any
    ) -> redline.Report:
        async def call(row: dict[str, Any]) -> str:
            self.asked.append(row["n"])
            if row["n"] == at and act is not None:
                act()
            if row["n"] == 3:
                raise Rejected("one row fails")
            return f"answer {row['n']}"

        rows = options.pop("rows", [{"n": number} for number in range(COUNT)])
        return redline.run(
            rows, call=call, output=self.output, concurrency=1, progress=False, **options
        )

    def lines(self, path: Path | None = None) -> set[str]:
        lines = (path or self.output).read_text().splitlines()
        return {json.loads(line)["output"] for line in lines}


def changes(output: Path) -> dict[str, Callable[[], object]]:
    """What may befall a file, by how an error names it."""
    copy = output.with_name("copy")

    def replace() -> None:
        shutil.copy(output, copy)
        copy.rename(output)

    return {
        "was removed": output.unlink,
        "was moved to": lambda: output.rename(output.with_name("mine.jsonl")),
        "was replaced by another file": replace,
        "was replaced": lambda: (output.unlink(), output.touch()),
        "was truncated": lambda: os.truncate(output, 0),
        "was truncated or": lambda: os.truncate(output, output.stat().st_size - 40),
        "was changed by another program": lambda: output.write_bytes(b"notes\n" * 900),
    }


@pytest.mark.parametrize("at", [MIDDLE, COUNT - 1], ids=["middle", "end"])
@pytest.mark.parametrize("kind", list(changes(Path("x"))))
def test_results_that_are_taken_away_end_the_run_with_an_error(
    tmp_path: Path, kind: str, at: int
) -> None:
    job = Job(tmp_path)
    report = job.run(lambda: changes(job.output)[kind](), at=at)
    assert isinstance(report.stopped, JournalError)
    assert str(report.stopped).startswith(f"{job.output} {kind}")
    assert not report.is_complete
    assert "run the same command again" in report.stopped.hint


@pytest.mark.parametrize("kind", ["was removed", "was moved to", "was replaced by another file"])
def test_every_answer_is_kept_when_the_results_lose_their_name(tmp_path: Path, kind: str) -> None:
    """Those of calls in flight, too: only what nobody has asked is left for the next run."""
    job = Job(tmp_path)
    report = job.run(lambda: changes(job.output)[kind]())
    answered = set(job.asked) - {3}
    places = {
        "was removed": job.output,
        "was moved to": tmp_path / "mine.jsonl",
        "was replaced by another file": tmp_path / "labels.rescued-1.jsonl",
    }
    assert job.lines(places[kind]) == {f"answer {number}" for number in answered}
    assert report.succeeded == len(answered)
    if places[kind] != job.output:
        places[kind].rename(job.output)
    assert job.run().is_complete
    assert sorted(job.asked) == list(range(COUNT))


def test_a_cut_file_is_continued_with_what_it_lacks(tmp_path: Path) -> None:
    job = Job(tmp_path)
    report = job.run(lambda: os.truncate(job.output, 0))
    assert report.stopped is not None
    assert job.run().is_complete
    assert job.lines() == {f"answer {number}" for number in range(COUNT) if number != 3}


@pytest.mark.parametrize("kind", ["was removed", "was moved to", "was truncated"])
def test_failures_that_are_taken_away_end_the_run_as_well(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path)
    failed = tmp_path / "labels.failed.jsonl"
    report = job.run(lambda: changes(failed)[kind]())
    assert isinstance(report.stopped, JournalError)
    assert str(report.stopped).startswith(f"{failed} {kind}")


def test_results_without_their_folder_of_state_get_it_back(tmp_path: Path) -> None:
    job = Job(tmp_path)
    report = job.run(lambda: shutil.rmtree(tmp_path / "labels.redline"))
    assert "labels.redline was removed" in str(report.stopped)
    assert job.run().is_complete
    assert sorted(job.asked) == list(range(COUNT))


def test_the_command_notices_says_what_is_left_and_continues(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 40)
    with started(sim_flags(rows, output, "--rps", "20")) as process:
        await_lines(output, 3, process)
        output.unlink()
        status, _, err = ended(process)
    assert status == 2, err
    assert f"error: {output} was removed while results were written to it" in err
    kept = ids(output)
    assert f"saved: {len(kept)} lines in {output}" in err
    again = command(*sim_flags(rows, output))
    assert again.returncode == 0, again.stderr
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, 41)]
    assert ids(output)[: len(kept)] == kept


def input_of(folder: Path, count: int = COUNT) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f'{{"n": {number}, "text": "one"}}\n' for number in range(count)))
    return path


def in_place(path: Path) -> None:
    path.write_text(path.read_text().replace("one", "two"))


def by_name(path: Path) -> None:
    subprocess.run(["sed", "-i", "s/one/two/", str(path)], check=True)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda path: os.truncate(path, 0), "was truncated"),
        (lambda path: os.truncate(path, 40), "was truncated"),
        (lambda path: path.write_text(path.read_text() * 2 + "more"), ""),
        (in_place, "was overwritten"),
        (by_name, "was replaced by another file"),
    ],
    ids=["emptied", "cut", "grown", "written over", "sed -i"],
)
def test_an_input_that_changes_during_a_run_is_an_error(
    tmp_path: Path, act: Callable[[Path], object], said: str, suffix: str
) -> None:
    rows = input_of(tmp_path)
    if suffix == ".csv":
        lines = "".join(f"{number},one\n" for number in range(COUNT))
        rows = tmp_path / "rows.csv"
        rows.write_text(f"n,text\n{lines}")
    seen: list[object] = []

    async def call(row: dict[str, Any]) -> str:
        seen.append(row)
        if len(seen) == MIDDLE:
            act(rows)
        return "yes"

    report = redline.run(rows, call=call, concurrency=1, progress=False)
    assert (said in str(report.stopped)) if said else report.stopped is None
    assert report.is_complete == (not said)


@pytest.mark.slow
def test_a_long_input_that_is_cut_ends_the_run_at_its_next_block(tmp_path: Path) -> None:
    rows = input_of(tmp_path, 60_000)
    asked = 0

    async def call(row: dict[str, Any]) -> str:
        nonlocal asked
        asked += 1
        if asked == 10:
            os.truncate(rows, 200_000)
        return "yes"

    report = redline.run(rows, call=call, output=tmp_path / "labels.jsonl", progress=False)
    assert f"{rows} was truncated" in str(report.stopped)
    assert not report.is_complete
    # What was read before has its results.
    assert report.succeeded == report.offered == (tmp_path / "labels.jsonl").read_text().count("\n")


def test_an_input_that_is_touched_or_removed_is_whole(tmp_path: Path) -> None:
    rows = input_of(tmp_path)

    async def call(row: dict[str, Any]) -> str:
        if row["n"] == 2:
            os.utime(rows, (1, 1))
        if row["n"] == 4:
            rows.unlink()
        return "yes"

    assert redline.run(rows, call=call, concurrency=1, progress=False).is_complete


def test_the_command_stops_on_a_changed_parquet_file_and_on_a_changed_stdin(
    tmp_path: Path,
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": [f"row {n}" for n in range(60)]}), table)
    plain = tmp_path / "rows.jsonl"
    write_rows(plain, 60)
    for rows, given in ((table, str(table)), (plain, "-")):
        output = tmp_path / f"{rows.suffix[1:]}.jsonl"
        flags = sim_flags(Path(given), output, "--rps", "40")
        with rows.open("rb") as stdin, started(flags, stdin=stdin.fileno()) as process:
            await_lines(output, 2, process)
            os.truncate(rows, 100)
            status, _, err = ended(process)
        assert status == 2, err
        assert " changed " in err or " truncated " in err
        assert "Traceback" not in err
