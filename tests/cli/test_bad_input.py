"""Input that is wrong: a bad row is its own failure, a bad file is the run's error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--endpoint", "sim", "--prompt", "{{ text }}")


def failures(path: str = "out.failed.jsonl") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    return sorted(lines, key=lambda line: line["row"])


def told_of(line: dict[str, Any]) -> tuple[int, str, str]:
    return line["line"], line["error"]["where"], line["error"]["message"]


def test_bad_rows_fail_one_by_one_with_file_and_line(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"}, "not json\n", "\n", {"txt": "b"}, "[1]\n", {"text": "c"})
    told = cli("run", name, *SIM, "-o", "out.jsonl")
    assert told.status == 1
    assert told.summary.startswith("5 rows = 2 succeeded + 3 failed + 0 unfinished\n")
    assert [told_of(line) for line in failures()] == [
        (2, "in.jsonl:2", "the row cannot be read: not JSON: invalid character at byte 4"),
        (4, "in.jsonl:4",
         "the prompt template does not fit the row: 'text' is undefined; "
         "the row's columns are: txt"),
        (5, "in.jsonl:5", "the row cannot be read: not an object but a list"),
    ]  # fmt: skip
    assert [line["input"] for line in failures()] == ["not json", {"txt": "b"}, "[1]"]


def test_the_summary_names_the_first_failure(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}, "not json\n"), *SIM, "-o", "out.jsonl")
    assert told.err.splitlines()[-3:] == [
        "results: out.jsonl",
        "failures: out.failed.jsonl (--retry-failed tries them again)",
        "first failure: the row cannot be read: not JSON: invalid character at byte 4 (in.jsonl:2)",
    ]


def test_without_an_output_each_failure_is_told_at_once(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}, {"txt": "b"}), *SIM)
    assert told.err.splitlines()[0] == (
        "failed: the prompt template does not fit the row: 'text' is undefined; "
        "the row's columns are: txt (in.jsonl:2)"
    )
    assert (told.status, told.outputs) == (1, ["You said: a"])


def test_strict_ends_the_run_at_the_first_bad_row(cli: Cli, rows: Rows) -> None:
    name = rows(*[{"text": "a"}] * 3, "not json\n", *[{"text": "b"}] * 3000)
    told = cli("run", name, *SIM, "-o", "out.jsonl", "--strict", "-c", "1", "--rps", "200")
    assert told.status == 2
    assert told.err.partition("\n\n")[2].splitlines()[:2] == [
        "error: the row cannot be read: not JSON: invalid character at byte 4",
        "where: in.jsonl:4",
    ]
    assert told.err.endswith("hint: leave out --strict to continue after rows that fail\n")
    assert len(failures()) == 1
    assert "; the input was not read to its end\n" in told.err
    assert "\ncontinue with: redline run in.jsonl --endpoint sim" in told.err


@pytest.mark.parametrize("text", ["", "\n \n\n"], ids=["empty", "blank lines"])
def test_an_input_without_rows_is_an_error(cli: Cli, rows: Rows, text: str) -> None:
    name = rows(text)
    for more in ([], ["-o", "out.jsonl"], ["--dry-run"]):
        told = cli("run", name, *SIM, *more)
        assert (told.status, told.out, told.err) == (2, "", "error: no rows in in.jsonl\n")


def test_stdin_without_rows_is_an_error(cli: Cli) -> None:
    told = cli("run", "-", *SIM)
    assert (told.status, told.err) == (2, "error: no rows in stdin\n")


def test_a_missing_file_is_named_with_the_nearest(cli: Cli, rows: Rows) -> None:
    rows({"text": "a"}, name="tickets.jsonl")
    told = cli("run", "ticket.jsonl", *SIM)
    assert told.status == 2
    assert told.err == ("error: ticket.jsonl does not exist\n\nhint: did you mean tickets.jsonl?\n")


def test_a_folder_is_not_a_file_of_rows(cli: Cli, rows: Rows) -> None:
    Path("data").mkdir()
    rows({"text": "a"}, name="data/a.jsonl")
    told = cli("run", "data", *SIM)
    assert told.status == 2
    assert told.err == (
        "error: data is a folder, but not a dataset that save_to_disk wrote\n\n"
        "hint: pass one file in it, such as data/a.jsonl\n"
    )


def test_a_binary_file_is_refused(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(bytes(range(256)) * 64)
    told = cli("run", "in.jsonl", *SIM)
    assert told.status == 2
    assert told.err == (
        "error: in.jsonl is a binary file\n\nhint: rows are read from JSONL, CSV, TSV or Parquet\n"
    )


def test_a_byte_order_mark_and_crlf_are_no_matter(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(b'\xef\xbb\xbf{"text":"a"}\r\n{"text":"b"}\r\n')
    told = cli("run", "in.jsonl", *SIM)
    assert (told.status, told.outputs) == (0, ["You said: a", "You said: b"])


def test_a_row_of_50_mb_fails_and_the_next_one_is_done(cli: Cli) -> None:
    with Path("in.jsonl").open("wb") as file:
        file.write(b'{"text":"' + b"x" * 50_000_000 + b'"}\n{"text":"b"}\n')
    told = cli("run", "in.jsonl", *SIM, "-o", "out.jsonl")
    assert told.status == 1
    assert told.summary.startswith("2 rows = 1 succeeded + 1 failed + 0 unfinished\n")
    assert [told_of(line) for line in failures()] == [
        (1, "in.jsonl:1", "the row cannot be read: 47.7 MB long, above the limit of 16 MB")
    ]
    assert Path("out.failed.jsonl").stat().st_size < 10_000


def test_a_repeated_custom_id_fails_its_later_rows(cli: Cli, rows: Rows) -> None:
    name = rows(*({"custom_id": i, "text": i} for i in "aba"))
    told = cli("run", name, *SIM, "-o", "out.jsonl")
    assert told.status == 1
    assert [told_of(line) for line in failures()] == [
        (3, "in.jsonl:3", "an earlier row has the same custom_id: a")
    ]


def test_an_output_in_a_folder_that_cannot_be_written(cli: Cli, rows: Rows) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    Path("locked").mkdir(mode=0o555)
    told = cli("run", rows({"text": "a"}), *SIM, "-o", "locked/out.jsonl")
    assert told.status == 2
    assert told.err == (
        "error: cannot write beside locked/out.jsonl: Permission denied\n\n"
        "hint: make sure that its folder exists and is writable, or choose another with -o\n"
    )


def test_lines_that_the_system_cannot_read_are_no_defect(cli: Cli, rows: Rows) -> None:
    cli("run", rows({"text": "a"}), *SIM, "-o", "out.jsonl")
    # The folder stands in for a disk that fails: its bytes cannot be read.
    Path("out.failed.jsonl").mkdir()
    for command in ("verify", "show", "repair"):
        told = cli(command, "out.jsonl")
        assert told.status == 2
        assert "error: cannot read the results or the failures: Is a directory" in told.err


def test_an_output_that_is_somebody_elses_file_is_left_alone(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"})
    Path("notes.jsonl").write_text('{"mine": 1}\n')
    for flags in ((), ("--dry-run",)):
        told = cli("run", name, *SIM, "-o", "notes.jsonl", *flags)
        assert told.status == 2
        assert told.err == (
            "error: notes.jsonl exists and is not a results file of redline\n\n"
            "hint: choose another -o, or rename that file with --restart\n"
        )
    assert Path("notes.jsonl").read_text() == '{"mine": 1}\n'


def test_failures_cannot_be_both_input_and_output(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"}, name="out.failed.jsonl")
    told = cli("run", name, *SIM, "-o", "out.jsonl")
    assert told.status == 2
    assert told.err == (
        "error: out.failed.jsonl is the input, and would be written to\n\n"
        "hint: failures go there when results go to out.jsonl: to try them again, run the first "
        "command with --retry-failed\n"
    )


def test_other_settings_on_an_old_output_are_named(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"})
    assert cli("run", name, *SIM, "-o", "out.jsonl").status == 0
    for more in ([], ["--dry-run"]):
        told = cli("run", name, *SIM, "-o", "out.jsonl", "--model", "large", *more)
        assert told.status == 2
        assert told.err == (
            'error: out.jsonl was begun with different settings: model was "sim" and is now '
            '"large"\n\n'
            "hint: choose another -o, start over with --restart (the old files are kept aside), or "
            "mix both in one file with --force\n"
        )
    assert cli("run", name, *SIM, "-o", "out.jsonl", "--model", "large", "--restart").status == 0
    assert Path("out.old-1.jsonl").exists()
