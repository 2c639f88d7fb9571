"""Outputs that commit 4294e90 left in every state are continued, verified and repaired today.

tests/fixtures/make.py says how they were made. What is asked is counted at the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli
from fixtures.make import FOLDER, restored
from support.simulated import Simulated, simulated

OLD = FOLDER / "4294e90"
Restore = Callable[[str], list[str]]
# State: the rows of its input.
INTERRUPTED = {
    "named": 11,
    "unnamed": 10,
    "batch-format": 10,
    "whole-lines": 10,
    "no-suffix": 11,
    "killed": 11,
    "torn": 11,
    "eval": 10,
    "tag": 11,
    "synth": 10,
    "budget": 10,
}


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulated]:
    with simulated() as server:
        yield server


@pytest.fixture
def restore(sim: Simulated, tmp_path: Path) -> Restore:
    """Puts a state's files into the current folder; the arguments of its command."""
    return lambda name: restored(OLD / name, tmp_path, sim.base_url)


def results() -> bytes:
    return next(path for path in map(Path, ("out.jsonl", "out")) if path.exists()).read_bytes()


def failures() -> bytes:
    path = Path("out.failed.jsonl")
    return path.read_bytes() if path.exists() else b""


def whole_lines(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


def row_numbers(data: bytes) -> list[int]:
    return sorted(json.loads(line)["row"] for line in whole_lines(data))


def asked(sim: Simulated) -> int:
    found: int = sim.stats()["received"]
    return found


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_is_continued_and_asks_no_row_twice(
    cli: Cli, restore: Restore, sim: Simulated, name: str
) -> None:
    arguments, rows = restore(name), INTERRUPTED[name]
    old, begun = whole_lines(results()), asked(sim)
    left = rows - len(old) - len(whole_lines(failures()))
    assert 0 < left < rows
    if arguments[0] == "run":
        told = cli(*arguments, "--dry-run")
        assert f"= {rows - left} done already + {left} to send" in told.out

    told = cli(*arguments, "--log", "json")
    assert told.status == (1 if failures() else 0), told.err
    summary = json.loads(told.err.splitlines()[-1])
    assert (summary["offered"], summary["skipped"]) == (left, rows - left)
    assert asked(sim) - begun == left
    assert whole_lines(results())[: len(old)] == old
    assert row_numbers(results() + failures()) == list(range(1, rows + 1))

    told = cli(*arguments, "--log", "json")
    assert json.loads(told.err.splitlines()[-1])["offered"] == 0
    assert asked(sim) - begun == left


@pytest.mark.parametrize("name", sorted(INTERRUPTED.keys() - {"synth"}))
def test_verify_tells_what_is_missing_and_accepts_the_whole(
    cli: Cli, restore: Restore, name: str
) -> None:
    arguments, rows = restore(name), INTERRUPTED[name]
    output = arguments[arguments.index("-o") + 1]
    done = len(whole_lines(results() + failures()))
    told = cli("verify", output)
    assert told.status == 1
    assert f"verify: {done} of {rows}" in told.out
    assert f"{rows - done} missing" in told.out
    assert ("damaged" in told.out) == (name == "torn")
    cli(*arguments)
    told = cli("verify", output)
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith(f"verify: {rows} of {rows}, each once")


def test_an_old_output_of_an_input_that_was_renamed_is_continued(
    cli: Cli, restore: Restore, sim: Simulated
) -> None:
    arguments = restore("named")
    Path("in.jsonl").rename("renamed.jsonl")
    begun = asked(sim)
    arguments[1] = "renamed.jsonl"
    assert cli(*arguments).status == 1
    assert asked(sim) - begun == 6
    assert cli("verify", "out.jsonl").out.startswith("verify: 11 of 11, each once")


def test_a_changed_setting_is_refused_and_restart_keeps_the_old_lines(
    cli: Cli, restore: Restore, sim: Simulated
) -> None:
    arguments = restore("named")
    old, begun = results(), asked(sim)
    told = cli(*arguments, "--temperature", "0.5")
    assert told.status == 2
    assert "was begun with different settings" in told.err
    assert asked(sim) == begun
    assert cli(*arguments, "--temperature", "0.5", "--restart").status == 1
    assert Path("out.old-1.jsonl").read_bytes() == old
    assert asked(sim) - begun == 11


def test_failures_are_kept_and_asked_again_only_by_retry_failed(
    cli: Cli, restore: Restore, sim: Simulated
) -> None:
    """Seven failed: five by faults of the server, one is refused, and one line is no JSON."""
    arguments = restore("failures")
    old, begun = whole_lines(results()), asked(sim)
    assert len(whole_lines(failures())) == 7
    assert cli("verify", "out.jsonl").out == "verify: 12 of 12, each once; 7 of them as failures\n"
    assert cli(*arguments).status == 1
    assert asked(sim) == begun

    told = cli(*arguments, "--retry-failed")
    assert told.status == 1
    assert told.summary.startswith("7 rows = 5 succeeded + 2 failed + 0 unfinished")
    assert asked(sim) - begun == 6
    assert whole_lines(results())[: len(old)] == old
    assert row_numbers(failures()) == [11, 12]
    assert cli("verify", "out.jsonl").out == "verify: 12 of 12, each once; 2 of them as failures\n"


def test_a_damaged_line_is_refused_until_it_is_repaired(
    cli: Cli, restore: Restore, sim: Simulated
) -> None:
    arguments = restore("damaged")
    old, begun = whole_lines(results()), asked(sim)
    # In a process of its own: after such an error nothing more is written to stdout.
    command = [sys.executable, "-m", "redline", *arguments]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 2
    assert "line 1 of out.jsonl is damaged" in refused.stderr
    assert asked(sim) == begun
    assert b"".join(old) == results()

    assert cli("repair", "out.jsonl").status == 0
    assert Path("out.damaged-1.jsonl").read_bytes() == old[0]
    assert whole_lines(results()) == old[1:]
    left = 11 - len(old[1:]) - len(whole_lines(failures()))
    assert cli(*arguments).status == 1
    assert asked(sim) - begun == left
    assert cli("verify", "out.jsonl").out == "verify: 11 of 11, each once; 1 of them as failures\n"


@pytest.mark.parametrize("name", ["named", "batch-format", "tag"])
def test_repair_finds_nothing_in_sound_lines(cli: Cli, restore: Restore, name: str) -> None:
    restore(name)
    old = results(), failures()
    told = cli("repair", "out.jsonl")
    assert (told.status, told.out) == (0, "repair: nothing to repair, 5 sound lines\n")
    assert (results(), failures()) == old


def test_the_score_of_an_evaluation_counts_the_old_answers(cli: Cli, restore: Restore) -> None:
    """Ten questions, of which all but every third are answered right."""
    arguments = restore("eval")
    assert cli(*arguments).out.splitlines()[-1] == "accuracy: 7/10"


def test_the_budget_counts_what_was_spent_before(
    cli: Cli, restore: Restore, sim: Simulated
) -> None:
    arguments = restore("budget")
    old, begun = len(whole_lines(results())), asked(sim)
    spent, _ = json.JSONDecoder().raw_decode(Path("out.redline/spent").read_text())
    at = arguments.index("--budget-tokens") + 1
    told = cli(*arguments[:at], str(spent["tokens"]), *arguments[at + 1 :])
    assert told.status == 2
    assert "the budget does not allow the next call" in told.err
    assert asked(sim) == begun

    told = cli(*arguments, "--log", "json")
    new = [json.loads(line)["usage"]["total_tokens"] for line in whole_lines(results())[old:]]
    summary = json.loads(told.err.splitlines()[-1])
    assert len(new) == 10 - old
    assert summary["spent_tokens"] == spent["tokens"] + sum(new)


def test_answers_that_were_cached_are_given_again(cli: Cli, restore: Restore) -> None:
    arguments = restore("cache")
    arguments[arguments.index("-o") + 1] = "other.jsonl"
    told = cli(*arguments, "--log", "json")
    cache = json.loads(told.err.splitlines()[-1])["cache"]
    assert (told.status, cache["hits"], cache["misses"]) == (0, 10, 0)
    lines = [json.loads(line) for line in whole_lines(Path("other.jsonl").read_bytes())]
    new = {line["row"]: line for line in lines}
    assert all(line["cached"] for line in new.values())
    for line in whole_lines(results()):
        assert new[json.loads(line)["row"]]["output"] == json.loads(line)["output"]
    assert len(new) == 10


def test_requests_of_the_last_window_count_against_the_limit(
    cli: Cli, restore: Restore, sim: Simulated
) -> None:
    """Six an hour are allowed, and some were sent just now."""
    arguments = restore("sends")
    sent, begun = len(whole_lines(results())), asked(sim)
    told = cli(*arguments, "--deadline", "1")
    assert told.status == 2
    assert asked(sim) - begun == 6 - sent
    assert len(whole_lines(results())) == 6


def test_a_batch_that_is_with_the_provider_is_collected(cli: Cli, tmp_path: Path) -> None:
    """The server is given what the old run had sent it, and names it alike."""
    with simulated() as server:
        arguments = restored(OLD / "in-batch", tmp_path, server.base_url)
        _send_batch(server)
        told = cli(*arguments)
        assert told.status == 0, told.err
        stats = server.stats()
    assert (stats["received"], stats["batches"]["created"]) == (0, 1)
    assert row_numbers(results()) == list(range(1, 11))
    assert all(json.loads(line)["batched"] for line in whole_lines(results()))
    assert cli("verify", "out.jsonl").out == "verify: 10 of 10, each once\n"
    assert not list(Path("out.redline/batches").iterdir())


def _send_batch(server: Simulated) -> None:
    """Uploads the file of the part that the notes speak of, and makes a batch of it."""
    notes = Path("out.redline/batches.jsonl").read_text().splitlines()
    told: dict[str, Any] = {}
    for line in notes:
        told |= json.loads(line.rpartition(" ")[0])
    kept = Path("out.redline/batches/part-1.jsonl").read_text().splitlines()
    lines = "".join(f"{json.dumps(json.loads(line)['request'])}\n" for line in kept)
    parts = {'name="purpose"': "batch", 'name="file"; filename="part-1.jsonl"': lines}
    form = "".join(
        f"--limit\r\nContent-Disposition: form-data; {name}\r\n\r\n{value}\r\n"
        for name, value in parts.items()
    )
    kind = "multipart/form-data; boundary=limit"
    file = _posted(f"{server.base_url}/files", f"{form}--limit--\r\n".encode(), kind)
    batch = {
        "input_file_id": file["id"],
        "endpoint": told["url"],
        "completion_window": "24h",
        "metadata": {"redline_run": told["run"], "redline_part": str(told["part"])},
    }
    made = _posted(f"{server.base_url}/batches", json.dumps(batch).encode(), "application/json")
    assert (file["id"], made["id"]) == (told["file"], told["batch"])


def _posted(url: str, data: bytes, kind: str) -> dict[str, Any]:
    request = urllib.request.Request(url, data, {"Content-Type": kind})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as reply:
        found: dict[str, Any] = json.load(reply)
    return found
