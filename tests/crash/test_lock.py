"""One process per output, and a lock that ends with its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.killing import ended, ids, sim_flags, started, write_rows
from crash.killing import redline as command
from redline.errors import ConfigError
from redline.run.lock import OutputLock
from redline.run.settings import Output

pytestmark = pytest.mark.crash


def test_the_second_process_on_one_output_is_turned_away_and_the_first_unharmed(
    tmp_path: Path,
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 60)
    with started(sim_flags(rows, output, "--rps", "15")) as first:
        while not (output.exists() and output.read_bytes()):
            assert first.poll() is None
        second = command(*sim_flags(rows, output, "--rps", "15"))
        assert second.returncode == 2
        assert (
            f"error: {output} is being written by another redline (process {first.pid} since"
            in (second.stderr)
        )
        assert first.poll() is None, "the first had already ended, which proves nothing"
        status, _, err = ended(first)
    assert status == 0, err
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, 61)]


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 40)
    with started(sim_flags(rows, output, "--rps", "20")) as first:
        while not (output.exists() and output.read_bytes()):
            assert first.poll() is None
        first.kill()
        first.wait()
        # At once: nothing has to be removed or waited for.
        assert command(*sim_flags(rows, output)).returncode == 0
    assert len(set(ids(output))) == 40


def test_two_runs_in_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    output = Output(path=tmp_path / "labels.jsonl")
    with OutputLock(output), pytest.raises(ConfigError, match="another redline"):
        OutputLock(output)
    OutputLock(output).release()
