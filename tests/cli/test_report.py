"""`redline report`: its formats, what it refuses, and jobs that run or have died."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.journal import Output, OutputLock
from support.recorded_jobs import FINISHED, output_of, window

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Output:
    """out.jsonl in the current folder, of a run that was killed."""
    monkeypatch.chdir(tmp_path)
    return output_of(Path("out.jsonl"), [([window(n) for n in range(5)], None)], model="m")


def test_it_is_told_on_stdout_without_o(cli: Cli) -> None:
    told = cli("report", "out.jsonl")
    assert (told.status, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "# redline report of out.jsonl"
    assert lines[2] == "**Bound by 200k tokens/min for 100 % of the time**"
    assert lines[4] == "died 2026-09-21 14:13 UTC, after 5.0 s: its process was killed"
    found = json.loads(cli("report", "out.jsonl", "--format", "json").out)
    assert found["jobs"][0]["state"] == "dead"


def test_a_job_that_runs_is_reported_as_it_is_now(cli: Cli, job: Output) -> None:
    with OutputLock(job):
        told = cli("report", "out.jsonl")
    assert "still running after 5.0 s; as of 2026-09-21 14:13 UTC" in told.out


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("page.html", "<!doctype html>"),
        ("report.md", "# redline report of "),
        ("report.json", '{"report":1,'),
        ("chart.svg", "<svg "),
    ],
)
def test_the_suffix_chooses_the_format_and_a_report_may_be_replaced(
    cli: Cli, name: str, begin: str
) -> None:
    if name.endswith("html"):
        pytest.importorskip("plotly")
    for _ in range(2):
        told = cli("report", "out.jsonl", "-o", name)
        assert (told.status, told.err) == (0, "")
        assert told.out.startswith(f"{name}: ")
        assert Path(name).read_text("utf-8").startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "OUT is missing"),
        (("no.jsonl",), "no.jsonl does not exist"),
        (("out.jsonl", "-o", "page.pdf"), "no report format has the suffix of page.pdf"),
        (("out.jsonl", "--format", "htm"), "did you mean html?"),
        (("out.jsonl", "-o", "no/page.html"), "is in a folder that does not exist"),
        (("out.jsonl", "-o", "notes.md"), "notes.md exists and is not a report that"),
        (("out.jsonl", "-o", "kept.jsonl", "--format", "json"), "choose another -o"),
        (("out.jsonl", "-o", "out.jsonl", "--format", "json"), "choose another -o"),
        (("out.jsonl", "out.jsonl", "--format", "svg"), "a chart shows one job"),
        (("out.jsonl",) * 8, "pass at most 7"),
    ],
)
def test_a_mistake_is_named_and_replaces_nothing(
    cli: Cli, arguments: tuple[str, ...], words: str
) -> None:
    for name in ("notes.md", "kept.jsonl"):
        Path(name).write_text("mine\n", "utf-8")
    told = cli("report", *arguments)
    assert (told.status, told.out) == (2, "")
    assert words in told.err
    assert {Path(name).read_text("utf-8") for name in ("notes.md", "kept.jsonl")} == {"mine\n"}


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("page.html", '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'),
        ("chart.svg", '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"></svg>\n'),
        ("report.md", "# Report of a long journey\n"),
        ("report.json", '{"report":1,"pages":[]}\n'),
    ],
)
def test_a_file_of_another_program_is_never_replaced(cli: Cli, name: str, mine: str) -> None:
    Path(name).write_text(mine, "utf-8")
    told = cli("report", "out.jsonl", "-o", name)
    assert told.status == 2
    assert f"{name} exists and is not a report that redline wrote" in told.err
    assert "hint: choose another -o, or move the file away first; a report of an older" in told.err
    assert Path(name).read_text("utf-8") == mine


def test_a_file_that_cannot_be_read_is_not_replaced(cli: Cli) -> None:
    Path("page.html").symlink_to("/proc/self/mem")
    told = cli("report", "out.jsonl", "-o", "page.html")
    assert told.status == 2
    assert "error: cannot read page.html: Input/output error" in told.err


def test_an_output_of_an_older_version_says_what_to_do(cli: Cli, job: Output) -> None:
    (job.state_path / "timeline.jsonl").unlink()
    told = cli("report", "out.jsonl", "-o", "page.html")
    assert told.status == 2
    assert "out.jsonl has no timeline: it was removed, or an older redline ran the job" in told.err
    assert "the next run with this output records a timeline" in told.err


def test_without_plotly_the_command_that_installs_it_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    told = cli("report", "out.jsonl", "-o", "page.html")
    assert told.status == 2
    assert "a page needs plotly, which is not installed" in told.err
    assert "pip install 'redline[report]'" in told.err
    assert not Path("page.html").exists()


def test_several_outputs_are_one_table(cli: Cli, tmp_path: Path) -> None:
    output_of(tmp_path / "b.jsonl", [([window(n, rows=80) for n in range(5)], FINISHED)])
    told = cli("report", "out.jsonl", "b.jsonl")
    assert told.out.startswith("# redline report of 2 outputs")
    assert "| rows done | 200 | 400 |" in told.out


def test_a_restarted_job_is_reported_without_the_runs_before(cli: Cli, rows: Any) -> None:
    flags = ("--endpoint", "sim", "-o", "new.jsonl", "--quiet")
    cli("run", rows({"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"}), *flags)
    told = cli("run", rows({"prompt": "one"}), *flags, "--restart")
    assert told.status == 0
    (job,) = json.loads(cli("report", "new.jsonl", "--format", "json").out)["jobs"]
    assert len(job["runs"]) == 1
    assert Path("new.redline/timeline.old-1.jsonl").exists()
