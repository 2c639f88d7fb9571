"""Outputs side by side: none reads, changes or removes what belongs to another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redline
from redline.journal import Output

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--model", "m", "--endpoint", "sim", "-q")
BAD = {"custom_id": "bad", "prompt": "x", "max_tokens": 0}

# As the first release wrote them, when `labels` and `labels.jsonl` had the same names beside them.
OLD_ROWS = (
    '{"custom_id":"a","prompt":"one"}\n',
    '{"prompt":"two"}\n',
    '{"custom_id":"c","prompt":"x","max_tokens":0}\n',
)
OLD_RESULTS = (
    '{"v":1,"hash":"6ea9456bb683dbd3","custom_id":null,"row":2,"output":"You said: two",'
    '"tool_calls":null,"finish_reason":"stop","usage":{"prompt_tokens":1,"completion_tokens":4,'
    '"total_tokens":5},"model":"m","endpoint":"sim","attempts":1,"latency_s":0.0016,'
    '"crc":"a7254ec1"}\n'
    '{"v":1,"hash":"c146173d66400b15","custom_id":"a","row":1,"output":"You said: one",'
    '"tool_calls":null,"finish_reason":"stop","usage":{"prompt_tokens":1,"completion_tokens":4,'
    '"total_tokens":5},"model":"m","endpoint":"sim","attempts":1,"latency_s":0.0101,'
    '"crc":"28a9f3c3"}\n'
)
OLD_FAILURE = (
    '{"v":1,"hash":"aebce1730ed8bf07","custom_id":"c","row":3,"line":3,"status":"rejected",'
    '"error":{"kind":"rejected","message":"the endpoint rejected the request: HTTP 400: The body '
    'of the request is not valid: Expected `int` >= 1 - at `$.max_tokens`","status":400,'
    '"where":"in.jsonl:3, endpoint sim, attempt 1 of 9","hint":"compare the row with the API\'s '
    'documentation; --dry-run shows the request"},"output":null,"endpoint":"sim","attempts":1,'
    '"latency_s":0.0104,"input":{"custom_id":"c","prompt":"x","max_tokens":0},"crc":"c0bf6a4f"}\n'
)


def old_output(name: str, rows: Rows) -> str:
    """Makes it; the name of its input."""
    stem = name.removesuffix(".jsonl")
    Path(name).write_text(OLD_RESULTS, "utf-8")
    Path(f"{stem}.failed.jsonl").write_text(OLD_FAILURE, "utf-8")
    Path(f"{stem}.redline").mkdir()
    settings = {"method": "POST", "model": "m", "format": "redline"}
    manifest = {"input": str(Path("in.jsonl").absolute()), "rows": 3, "settings": settings}
    Path(f"{stem}.redline/manifest.json").write_text(json.dumps(manifest), "utf-8")
    return rows(*OLD_ROWS)


def contents() -> dict[str, bytes]:
    """Every file below the working folder, but locks."""
    paths = (path for path in Path().rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in paths if path.name != ".stdin"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("labels.jsonl", "labels"),
        ("labels", "labels.jsonl"),
        ("labels.json", "labels.json.jsonl"),
        ("labels.jsonl.jsonl", "labels.jsonl"),
        ("labels.txt", "labels.ndjson"),
        ("labels", "labels.redline.jsonl"),
        ("labels-failed", "labels"),
        ("labels.old-1.jsonl", "labels.jsonl"),
        (".jsonl", ".jsonl.jsonl"),
    ],
)
def test_two_outputs_whose_names_are_alike_have_nothing_in_common(
    cli: Cli, rows: Rows, first: str, second: str
) -> None:
    one = rows({"custom_id": "good", "prompt": "hi"}, BAD, name="one.jsonl")
    two = rows({"custom_id": "other", "prompt": "hello"}, BAD, name="two.jsonl")
    assert cli("run", one, *SIM, "-o", first).status == 1
    before = contents()
    other = ("run", two, "--model", "m2", "--endpoint", "sim", "-q", "-o", second)
    assert cli(*other).status == 1
    assert cli(*other, "--retry-failed").status == 1
    assert cli(*other, "--restart").status == 1
    assert before.items() <= contents().items()
    both = "verify: 2 of 2, each once; 1 of them as failures\n"
    assert (cli("verify", first).out, cli("verify", second).out) == (both, both)
    told = cli("run", one, *SIM, "-o", first)
    assert told.err.startswith("Nothing to do: 1 done, 1 failed\n")


@pytest.mark.parametrize(
    ("name", "aside"),
    [
        ("labels", "labels.old-1"),
        ("labels.txt", "labels.old-1.txt"),
        ("labels.jsonl", "labels.old-1.jsonl"),
    ],
)
def test_restart_puts_failures_where_those_of_the_old_results_are_looked_for(
    cli: Cli, rows: Rows, name: str, aside: str
) -> None:
    source = rows({"prompt": "hi"}, BAD)
    assert cli("run", source, *SIM, "-o", name).status == 1
    output = Output.at(name)
    before = output.path.read_bytes(), output.failed_path.read_bytes()
    assert cli("run", source, *SIM, "-o", name, "--restart").status == 1
    old = Output.at(aside)
    assert (old.path.read_bytes(), old.failed_path.read_bytes()) == before
    files = {path.name for path in Path().iterdir() if "old-1" in path.name}
    assert files == {old.path.name, old.failed_path.name}


def test_results_that_are_private_are_so_after_a_restart_and_so_are_their_failures(
    cli: Cli, rows: Rows
) -> None:
    output = Output.at("labels.jsonl")
    assert cli("run", rows({"prompt": "hi"}), *SIM, "-o", "labels.jsonl").status == 0
    output.path.chmod(0o600)
    source = rows({"prompt": "hi"}, BAD)
    assert cli("run", source, *SIM, "-o", "labels.jsonl", "--restart").status == 1
    modes = [path.stat().st_mode & 0o777 for path in (output.path, output.failed_path)]
    assert modes == [0o600, 0o600]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("labels.jsonl", "labels.failed.jsonl", "failures of labels.jsonl go to labels.failed"),
        ("labels", "labels-failed.jsonl", "failures of labels go to labels-failed.jsonl"),
        ("labels.failed.jsonl", "labels.jsonl", "failures of labels.jsonl would go to labels."),
        ("labels-failed.jsonl", "labels", "failures of labels would go to labels-failed.jsonl"),
        ("labels.jsonl", "labels.redline/spent", "labels.redline holds the state of another"),
        ("labels.jsonl", "labels.redline", "cannot write beside labels.redline"),
    ],
)
def test_an_output_that_would_write_to_anothers_files_is_refused(
    cli: Cli, rows: Rows, first: str, second: str, said: str
) -> None:
    name = rows({"prompt": "hi"})
    assert cli("run", name, *SIM, "-o", first).status == 0
    before = contents()
    told = cli("run", name, *SIM, "-o", second)
    if second == "labels.redline":
        said = "labels.redline"
    assert (told.status, said in told.err) == (2, True), told.err
    assert contents() == before


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.json", "labels"])
def test_a_failures_file_is_repaired_with_its_results_only(cli: Cli, rows: Rows, name: str) -> None:
    """By itself it would not be under the lock of its run."""
    cli("run", rows({"prompt": "hi"}, BAD), *SIM, "-o", name)
    failed = Output.at(name).failed_path
    with failed.open("ab") as file:
        file.write(b"notes\n")
    before = contents()
    told = cli("repair", str(failed))
    assert told.status == 2
    assert f"error: {failed} holds the failures of {name}\n" in told.err
    assert f"hint: pass {name}: its failures are read along with it\n" in told.err
    assert contents() == before


@pytest.mark.parametrize("length", [249, 300])
def test_a_name_that_the_system_refuses_is_told(cli: Cli, rows: Rows, length: int) -> None:
    """At 249, only the names beside it are too long. A folder without permission is alike."""
    name = "x" * (length - 6) + ".jsonl"
    told = cli("run", rows({"prompt": "one"}), *SIM, "-o", name)
    assert told.status == 2
    assert told.err.startswith("error: cannot use xxx")
    assert told.err.endswith("File name too long\n\nhint: choose a shorter name\n")
    if length > 255:
        for command in ("show", "verify", "repair", "compare"):
            told = cli(command, name, *(["other.jsonl"] if command == "compare" else []))
            assert told.status == 2
            assert "File name too long" in told.err


@pytest.mark.parametrize("name", ["labels", "labels.jsonl", "labels.json"])
def test_an_output_of_an_older_redline_is_found_and_resumed(
    cli: Cli, rows: Rows, name: str
) -> None:
    source = old_output(name, rows)
    both = "verify: 3 of 3, each once; 1 of them as failures\n"
    assert cli("verify", name).out == both
    told = cli("run", source, *SIM, "-o", name)
    assert told.err.startswith("Nothing to do: 2 done, 1 failed\n")
    assert Path(name).read_text("utf-8") == OLD_RESULTS
    assert cli("repair", name).out == "repair: nothing to repair, 3 sound lines\n"

    rows(*OLD_ROWS[:2], OLD_ROWS[2].replace("0", "9"))
    assert cli("run", source, *SIM, "-o", name, "--retry-failed").status == 0
    assert cli("verify", name).out == "verify: 3 of 3, each once\n"
    found = sorted(path for path in contents() if not path.endswith("in.jsonl"))
    assert not any("failed" in path for path in found)
    assert not Path(f"{name}-redline").exists()


def test_an_output_beside_one_of_an_older_redline_does_not_take_its_folder(
    cli: Cli, rows: Rows
) -> None:
    source = old_output("labels", rows)
    before = contents()
    told = cli("run", source, *SIM, "-o", "labels.jsonl")
    assert told.status == 2
    assert "labels.redline belongs to labels, which an older version of redline began" in told.err
    assert contents() == before


def test_an_input_that_has_nothing_to_do_with_an_existing_output_is_refused(
    cli: Cli, rows: Rows, odd: Any
) -> None:
    """The same names, and other contents: all rows would be paid for, and all results replaced."""
    flags = ("--base-url", odd.url, "--model", "m", "-q", "-o", "out.jsonl")
    one = rows({"custom_id": "1", "prompt": "hi"}, {"prompt": "hello"}, name="one.jsonl")
    two = rows({"custom_id": "1", "prompt": "tea?"}, {"prompt": "coffee?"}, name="two.jsonl")
    cli("run", one, *flags)
    before = contents()
    told = cli("run", two, *flags)
    assert (told.status, told.out) == (2, "")
    assert told.err == (
        "error: out.jsonl was made from one.jsonl, and has no row of two.jsonl\n\n"
        "hint: choose another -o, or add these rows to that output with --force\n"
    )
    assert cli("run", two, *flags, "--dry-run").status == 2
    assert (len(odd.asked), contents()) == (2, before)

    told = cli("run", two, *flags, "--force")
    assert told.status == 0
    assert told.err.startswith(
        "note: the last run of out.jsonl had another input: one.jsonl\n2 rows = 2 succeeded"
    )
    assert cli("run", two, *flags).err.startswith("Nothing to do: 2 done\n")


def test_a_file_is_matched_with_an_output_of_python_rows_by_its_json_text(
    cli: Cli, rows: Rows
) -> None:
    made: list[dict[str, Any]] = [{"prompt": "hi"}, {"prompt": "hello"}]
    redline.run(made, model="m", endpoint="sim", output="out.jsonl", progress=False)
    name = rows(*made)
    told = cli("verify", "out.jsonl", "--input", name)
    assert (told.status, told.out[:15]) == (1, "verify: 0 of 2;")
    assert "is the text of msgspec.json.encode(row)" in told.err
    told = cli("run", name, *SIM, "-o", "out.jsonl")
    assert (told.status, told.err.splitlines()[0]) == (
        2,
        f"error: out.jsonl was made from another input, and has no row of {name}",
    )

    Path(name).write_bytes(b"\n".join(map(msgspec.json.encode, made)))
    told = cli("verify", "out.jsonl", "--input", name)
    assert (told.out, told.err) == ("verify: 2 of 2, each once\n", "")
    assert cli("run", name, *SIM, "-o", "out.jsonl").err.startswith("Nothing to do: 2 done\n")


@pytest.mark.parametrize("old_rows", ["-", "old.jsonl"])
def test_a_log_is_continued_after_its_old_rows_were_read_elsewhere(
    cli: Cli, rows: Rows, old_rows: str
) -> None:
    """As after a rotation that no run has seen: the log itself has only new rows."""
    flags = (*SIM, "-q", "-o", "out.jsonl")
    cli("run", rows({"prompt": "one"}, name="log.jsonl"), *flags)
    log, old = Path("log.jsonl"), Path("old.jsonl")
    log.rename(old)
    with old.open("a") as file:
        file.write('{"prompt": "two"}\n')
    log.write_text('{"prompt": "three"}\n')
    cli("run", old_rows, *flags, stdin=old.read_text())
    assert cli("run", "log.jsonl", *flags).status == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 3


def test_an_input_with_rows_of_an_existing_output_is_named_and_continues_it(
    cli: Cli, rows: Rows
) -> None:
    flags = (*SIM, "-o", "out.jsonl")
    one = rows({"prompt": "hi"}, {"prompt": "hello"}, name="one.jsonl")
    cli("run", one, *flags)
    two = rows({"prompt": "new"}, {"prompt": "hi"}, name="two.jsonl")
    told = cli("run", two, *flags)
    assert told.err.startswith(
        "note: the last run of out.jsonl had another input: one.jsonl\n1 row = 1 succeeded"
    )
    told = cli("run", one, *flags, "--log", "json")
    assert json.loads(told.err.splitlines()[0]) == {
        "event": "note",
        "text": "the last run of out.jsonl had another input: two.jsonl",
    }


def test_an_input_that_was_renamed_or_moved_along_is_the_same(cli: Cli, rows: Rows) -> None:
    flags = (*SIM, "-o", "out.jsonl")
    cli("run", rows({"prompt": "hi"}, name="one.jsonl"), *flags)
    Path("one.jsonl").rename("two.jsonl")
    with Path("two.jsonl").open("a") as file:
        file.write('{"prompt": "hello"}\n')
    assert cli("run", "two.jsonl", *flags).summary.startswith("1 row = 1 succeeded")
    Path("link.jsonl").symlink_to("two.jsonl")
    assert cli("run", "link.jsonl", *flags).err.startswith("Nothing to do: 2 done\n")


def test_results_that_were_copied_without_their_folder_are_continued_by_force(
    cli: Cli, rows: Rows
) -> None:
    name = rows(*({"custom_id": str(number), "prompt": "hi"} for number in range(3)))
    cli("run", name, *SIM, "-o", "labels.jsonl")
    Path("o.jsonl").write_bytes(Path("labels.jsonl").read_bytes())
    assert cli("verify", "o.jsonl", "--input", name).out == "verify: 3 of 3, each once\n"
    told = cli("verify", "o.jsonl")
    assert (told.status, "hint: pass the input with --input" in told.err) == (2, True)
    told = cli("run", name, *SIM, "-o", "o.jsonl")
    assert told.status == 2
    assert told.err.startswith(
        "error: o.jsonl holds results, but o.redline/manifest.json is missing\n\n"
        "hint: put o.redline back, or continue these results with --force; "
    )
    assert cli("run", name, *SIM, "-o", "o.jsonl", "--force").err.startswith("Nothing to do: 3")
    assert cli("verify", "o.jsonl").out == "verify: 3 of 3, each once\n"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.csv", "a table"),
        ("x.TSV", "a table"),
        ("x.parquet", "a table"),
        ("x.xlsx", "a spreadsheet"),
        ("x.jsonl.gz", "compressed"),
        ("x.jsonl.zst", "compressed"),
        ("s3://bucket/dir/x.csv", "a table"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_an_output_that_promises_another_format_is_refused_before_anything_is_sent(
    cli: Cli, rows: Rows, odd: Any, name: str, kind: str, flags: tuple[str, ...]
) -> None:
    told = cli("run", rows({"prompt": "a"}), "--base-url", odd.url, "-o", name, *flags)
    better = name.rpartition(".jsonl" if ".jsonl" in name else ".")[0] + ".jsonl"
    assert (told.status, told.err) == (
        2,
        f"error: results are JSON lines, so {name} would not be {kind}\n\n"
        f"hint: name it {better}; it can be converted when the run is done\n",
    )
    assert odd.asked == []
    assert set(contents()) == {"in.jsonl"}
    with pytest.raises(redline.errors.ConfigError, match="results are JSON lines"):
        redline.run([{"prompt": "a"}], endpoint="sim", output=name)


def test_an_older_output_with_such_a_name_is_continued(cli: Cli, rows: Rows) -> None:
    source = old_output("labels.csv", rows)
    told = cli("run", source, *SIM, "-o", "labels.csv")
    assert told.err.startswith("Nothing to do: 2 done, 1 failed\n")


@pytest.mark.parametrize("command", ["status", "show", "report", "verify", "repair"])
@pytest.mark.parametrize(
    ("name", "holds"), [("labels.failed.jsonl", "failures"), ("labels.redline", "state")]
)
def test_a_file_or_folder_beside_an_output_is_told_from_it_by_every_command(
    cli: Cli, rows: Rows, command: str, name: str, holds: str
) -> None:
    cli("run", rows(BAD), *SIM, "-o", "labels.jsonl")
    told = cli(command, name)
    assert told.status == 2
    assert told.err.startswith(f"error: {name} holds the {holds} of labels.jsonl\n")
    assert "hint: pass labels.jsonl" in told.err


def test_lines_with_the_ends_of_windows_are_sound(cli: Cli, rows: Rows) -> None:
    """As git or an editor makes them: the answers that they hold are paid for."""
    lines = [f'{{"custom_id":"{name}","prompt":"{name}"}}\n' for name in "abcd"]
    command = ("run", rows(*lines[:3]), *SIM, "-c", "1", "-o", "labels.jsonl")
    assert cli(*command).status == 0
    path = Path("labels.jsonl")
    kept = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(kept)
    assert cli("verify", "labels.jsonl").out == "verify: 3 of 3, each once\n"
    assert cli("repair", "labels.jsonl").out == "repair: nothing to repair, 3 sound lines\n"
    # Row b has another content, and is the only one that is done again.
    rows(lines[0], '{"custom_id":"b","prompt":"bee"}\n', *lines[2:])
    assert cli(*command).err.startswith("2 rows = 2 succeeded + 0 failed + 0 unfinished; 2 were ")
    first, old, third = kept.splitlines(keepends=True)
    assert path.read_bytes().startswith(first + third)
    assert Path("labels.redline/labels.outdated-1.jsonl").read_bytes() == old


def test_a_run_that_is_refused_leaves_the_settings_of_the_output(cli: Cli, rows: Rows) -> None:
    name = rows({"custom_id": "a", "prompt": "one"}, {"custom_id": "b", "prompt": "two"})
    assert cli("run", name, *SIM, "-o", "out.jsonl").status == 0
    results = Path("out.jsonl")
    results.write_text(results.read_text().replace("said: one", "says: one"))
    Path("other.jsonl").write_text('{"prompt":"three"}\n')
    other = ("run", "other.jsonl", "--model", "n", "--endpoint", "sim", "-q", "--force")
    assert "is damaged" in cli(*other, "-o", "out.jsonl").err
    assert cli("repair", "out.jsonl").status == 0
    assert cli("run", name, *SIM, "-o", "out.jsonl").status == 0
    assert cli("verify", "out.jsonl").status == 0
