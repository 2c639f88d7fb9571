"""Outputs side by side: none reads, changes or removes what belongs to another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    assert "labels.redline belongs to labels, which an older redline has begun" in told.err
    assert contents() == before
