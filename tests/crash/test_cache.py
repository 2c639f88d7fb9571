"""The cache among processes: shared by two at once, and its writer killed at random moments."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import pytest

from crash.killing import (
    Server,
    await_lines,
    ended,
    redline,
    run_flags,
    sealed_lines,
    serving,
    started,
    write_rows,
)

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.real]

FIXED = ("--temperature", "0")


def outputs(path: Path) -> dict[str, str]:
    return {line["custom_id"]: line["output"] for line in sealed_lines(path)}


def check_file(folder: Path) -> int:
    """SQLite finds nothing wrong with the one file there is; its answers are counted."""
    (path,) = folder.glob("*.sqlite3")
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        count: int = database.execute("SELECT count(*) FROM answers").fetchone()[0]
    database.close()
    return count


def flags_of(folder: Path, name: str, server: Server, *more: str) -> list[str]:
    cache = ("--cache-dir", str(folder / "cache"))
    return run_flags(
        folder / "rows.jsonl", folder / name, server, *FIXED, *cache, "-c", "32", *more
    )


def test_two_processes_share_one_cache(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 600)
    with serving("--latency", "0.02-0.1") as server:
        with (
            started(flags_of(tmp_path, "a.jsonl", server)) as one,
            started(flags_of(tmp_path, "b.jsonl", server)) as two,
        ):
            for process in (one, two):
                status, _, told = ended(process)
                assert status == 0, told
                assert "damaged" not in told
                assert "cannot" not in told
        asked = server.requests()
        assert 600 <= asked <= 1200
        third = redline(*flags_of(tmp_path, "c.jsonl", server, "--rpm", "1"))
        assert third.returncode == 0
        assert "\ncache: 600 hits, 0 shared in flight, 0 misses: 100 %" in third.stderr
        assert server.requests() == asked, "a hit is no request, and no limit holds it"
    assert outputs(tmp_path / "a.jsonl") == outputs(tmp_path / "c.jsonl")
    assert outputs(tmp_path / "b.jsonl") == outputs(tmp_path / "c.jsonl")
    assert check_file(tmp_path / "cache") == 600


def test_a_writer_that_is_killed_leaves_answers_and_never_a_wrong_one(tmp_path: Path) -> None:
    chance, kills = random.Random(1), 2
    write_rows(tmp_path / "rows.jsonl", 900)
    output = tmp_path / "out.jsonl"
    with serving("--latency", "0.02-0.06") as server:
        for _ in range(kills):
            before = len(output.read_bytes().splitlines()) if output.exists() else 0
            with started(flags_of(tmp_path, "out.jsonl", server)) as process:
                await_lines(output, before + 300, process)
                time.sleep(chance.uniform(0, 0.3))
                process.kill()
        done = redline(*flags_of(tmp_path, "out.jsonl", server))
        assert done.returncode == 0, done.stderr
        assert "damaged" not in done.stderr
        asked = server.requests()
        again = redline(*flags_of(tmp_path, "again.jsonl", server))
        assert again.returncode == 0
        missed = server.requests() - asked
    # What a kill costs: the group that was not written, of 0.2 s and of the write before it.
    assert check_file(tmp_path / "cache") == 900
    assert missed <= kills * 300, missed
    assert outputs(output) == outputs(tmp_path / "again.jsonl")
    assert redline("verify", str(output)).stdout == "verify: 900 of 900, each once\n"
