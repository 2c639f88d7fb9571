"""What a run makes of a repaired output. test_steps.py has a repair die at each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import ids, sim_flags, write_rows
from crash.killing import redline as command
from redline.errors import JournalError
from redline.job.outputs import verify
from redline.journal import Output

pytestmark = pytest.mark.crash


def test_after_a_repair_the_same_command_does_the_rows_that_were_lost_and_no_other(
    tmp_path: Path,
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 20)
    given = sim_flags(rows, output)
    assert command(*given).returncode == 0
    lines = output.read_bytes().splitlines(keepends=True)
    damaged = lines[3].replace(b'"output":', b'"outpot":')
    lost = lines[7]
    output.write_bytes(b"".join([*lines[:3], damaged, *lines[4:7], *lines[8:], lines[0]]))
    refused = command(*given)
    assert refused.returncode == 2
    assert f"line 4 of {output} is damaged" in refused.stderr
    told = command("repair", str(output))
    beside = tmp_path / "labels.damaged-1.jsonl"
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == (
        f"repair: 1 damaged line and 1 repeated line of {output} moved to {beside}, 18 kept\n"
        "next: run the original command again; it sends the rows that no longer have a line\n"
    )
    kept = output.read_bytes()
    assert command(*given).returncode == 0
    assert output.read_bytes().startswith(kept)
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, 21)]
    assert lost not in kept
    assert command("verify", str(output)).stdout == "verify: 20 of 20, each once\n"
    again = command("repair", str(output))
    assert again.stdout == "repair: nothing to repair, 20 sound lines\n"


def test_only_the_rows_without_a_line_are_asked_again(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    rows = [{"custom_id": f"r{number}", "text": "text"} for number in range(1, 9)]
    asked: list[str] = []

    async def call(row: dict[str, Any]) -> str:
        asked.append(row["custom_id"])
        return "yes"

    def work() -> None:
        redline.run(rows, call=call, output=output, concurrency=1, progress=False)

    work()
    output.write_bytes(output.read_bytes().replace(b'"custom_id":"r6"', b'"custom_id":"r7"'))
    asked.clear()
    with pytest.raises(JournalError):
        work()
    assert command("repair", str(output)).returncode == 0
    work()
    assert asked == ["r6"]
    assert verify(Output(path=output), rows).is_whole
