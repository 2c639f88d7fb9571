"""What is said of the whole input while it is still being read, and when a run ends before that."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.job.show import JsonProgress

Cli = Callable[..., Any]

ROWS = 30_000
SIM = ("--endpoint", "sim", "--model", "m", "--prompt", "{{ text }}")
SLOWLY = ("--rps", "40", "--deadline")
# On a busy machine, a run may end before its first row, or before all rows are counted.
DEADLINES = (*("700ms",) * 4, *("3s",) * 3, *("12s",) * 3)


def texts() -> list[str]:
    """Long enough that reading ahead does not come near the end."""
    return [f'{number}\n"{"padding, " * 9}"' for number in range(ROWS)]


def jsonl() -> str:
    lines = (json.dumps({"text": text}) + "\n" for text in texts())
    return "\n  \t\n".join(lines) + "\r\n"


def csv() -> str:
    """Each row goes over two lines, and there are blank ones."""
    lines = ('"' + text.replace('"', '""') + f'",{number}\n' for number, text in enumerate(texts()))
    return "text,n\n\n" + "\n".join(lines)


def write(name: str) -> str:
    """An input of ROWS rows in this format."""
    path = Path(name)
    if name.endswith(".parquet"):
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": texts()}), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(jsonl().encode(), 1))
    else:
        path.write_text(csv() if ".csv" in name else jsonl(), "utf-8")
    return name


def left_of(err: str, least: str = "") -> tuple[int, int, int, int]:
    """`30,000 rows: 28 done, 0 failed, 29,972 left` as numbers; least: before those it may add."""
    number = r"([\d,]+)"
    pattern = rf"^{least}{number} rows: {number} done, {number} failed, {least}{number} left$"
    found = re.search(pattern, err, re.M)
    assert found is not None, err
    rows, done, failed, left = (int(number.replace(",", "")) for number in found.groups())
    return rows, done, failed, left


def is_counted(summary: str) -> bool:
    """All rows were counted before the end. If not, what the run says of them is checked."""
    if "at least" not in summary:
        return True
    rows, done, failed, left = left_of(summary, "at least ")
    assert rows < ROWS
    assert left == rows - done - failed
    return False


def told_of_all(cli: Cli, *command: str, stdin: str = "") -> Any:
    """A run that ended early, and late enough to have counted all rows."""
    for deadline in DEADLINES:
        told = cli(*command, *SLOWLY, deadline, stdin=stdin)
        if is_counted(told.summary):
            return told
    raise AssertionError("no run has counted its rows")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.csv", "in.parquet"])
def test_a_run_that_ends_early_says_how_many_rows_are_left(cli: Cli, name: str) -> None:
    command = ("run", write(name), *SIM, "-o", "out.jsonl", *SLOWLY)
    done = useful = 0
    for deadline in DEADLINES:
        told = cli(*command, deadline)
        found = re.match(r"[\d,]+ rows? = (\d+) succeeded", told.summary)
        assert found is not None
        done += int(found[1])
        if not is_counted(told.summary):
            continue
        useful += int(found[1]) > 0
        assert left_of(told.err) == (ROWS, done, 0, ROWS - done)
        if useful == 2:
            return
    raise AssertionError("fewer than two of ten runs had a success")


def test_stdin_that_is_a_file_is_counted_too(cli: Cli) -> None:
    told = told_of_all(cli, "run", "-", *SIM, "-o", "out.jsonl", stdin=jsonl())
    rows, done, _, left = left_of(told.err)
    assert (rows, left) == (ROWS, ROWS - done)


def test_a_limit_is_the_whole_input(cli: Cli) -> None:
    name = write("in.jsonl")
    told = told_of_all(cli, "run", name, *SIM, "-o", "out.jsonl", "--limit", "20000")
    rows, done, _, left = left_of(told.err)
    assert (rows, left) == (20_000, 20_000 - done)


def test_retrying_failures_counts_these_and_not_the_others(cli: Cli) -> None:
    lines = [json.dumps({"text": str(n)} if n % 3 else {"txt": "x"}) + "\n" for n in range(3000)]
    Path("in.jsonl").write_text("".join(lines), "utf-8")
    assert cli("run", "in.jsonl", *SIM, "-o", "out.jsonl").status == 1
    repaired = ("--prompt", "{{ txt }}", "--force", "--retry-failed")
    for deadline in DEADLINES:
        told = cli("run", "in.jsonl", *SIM[:4], *repaired, "-o", "out.jsonl", *SLOWLY, deadline)
        if not is_counted(told.summary):
            continue
        rows, done, failed, left = left_of(told.err)
        assert (rows, failed) == (3000, 0)
        assert left == 3000 - done
        if done > 2000:
            break
    assert 2000 < done < 2600


def test_progress_speaks_of_the_whole_input_and_never_goes_back(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def often(self: Any, stream: Any, every_s: float = 10.0) -> None:
        self._stream, self._every_s = stream, 0.05

    monkeypatch.setattr(JsonProgress, "__init__", often)
    name = write("in.jsonl")
    for number, deadline in enumerate(DEADLINES):
        command = ("run", name, *SIM, "--log", "json", "-o", f"out-{number}.jsonl")
        told = cli(*command, *SLOWLY, deadline)
        *lines, summary = [json.loads(line) for line in told.err.splitlines()]
        counted = [line for line in lines if line["input"]["is_exact"]]
        if len(counted) >= 5:
            break
    assert len(counted) >= 5
    assert {line["input"]["rows"] for line in counted} == {ROWS}
    assert all(line["left"] == ROWS - line["done"] for line in counted)
    fractions = [line["fraction"] for line in counted]
    assert fractions == sorted(fractions)
    assert summary["input"]["left"] == ROWS - summary["succeeded"]


def test_rows_that_cannot_be_counted_are_at_least_those_that_came() -> None:
    endless = ({"text": str(number)} for number in range(ROWS))
    report = redline.run(
        endless, endpoint="sim", prompt="{{ text }}", rps=40, deadline_s=0.3, progress=False
    )
    assert report.input is not None
    assert not report.input.is_exact
    assert report.offered <= report.input.rows < ROWS
