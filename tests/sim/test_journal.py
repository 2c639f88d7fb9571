"""What a journal keeps of rows whose lines it replaces."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from redline.calls import Outcome, Reply
from redline.journal import Brief, Journal, Output, Result
from redline.sources import Row


def result(number: int, output: str) -> Result:
    content = json.dumps({"n": number}).encode()
    row = Row(number, number, {"n": number}, content)
    outcome = Outcome(status="succeeded", reply=Reply(output=output))
    return Result(row=row, key=number, mark=1, custom_id=f"r{number}", outcome=outcome)


def test_the_new_line_of_a_row_that_was_outdated_in_a_new_output_is_kept(tmp_path: Path) -> None:
    """A batch of an earlier run holds row 2 as it was before; no line is in the output yet."""
    output = Output.at(tmp_path / "out.jsonl")
    acknowledged: list[Brief] = []

    async def main() -> None:
        output.state_path.mkdir()
        journal = Journal(output, acknowledged.extend)
        journal.start()
        journal.outdate(2)
        for number in (1, 2, 3):
            journal.append(result(number, f"answer {number}"))
        await journal.saved()
        await journal.close()

    asyncio.run(main())
    found = [json.loads(line)["output"] for line in output.path.read_text().splitlines()]
    assert found == ["answer 1", "answer 2", "answer 3"]
    assert len(acknowledged) == 3
