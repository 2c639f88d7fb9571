"""Files as a run of `redline tag` leaves them, written by what writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from redline.calls import Outcome, Reply
from redline.errors import Rejected
from redline.journal import Manifest, Output, Result, failure_writer, line_writer
from redline.journal import manifest as manifests
from redline.sources import Row


def tagged(path: Path, *rows: tuple[dict[str, Any], Any], reasks: int = 0) -> Output:
    """An output whose rows, each with its tag, have succeeded; they are numbered from 1."""
    output = Output(path=path, keep_input=True)
    lines = [line_writer(output)(_result(key, row, tag, reasks)) for key, row, tag in _keyed(rows)]
    path.write_bytes(b"".join(lines))
    return output


def failed(output: Output, *keys: int, reasks: int = 2) -> None:
    """Lines of rows that failed, in the order of `keys`, which are the rows' numbers."""
    lines = []
    for key in keys:
        result = _result(key, {"text": "x"}, "no", reasks)
        result.outcome.status, result.outcome.error = "rejected", Rejected("no valid answer")
        lines.append(failure_writer(output)(result))
    output.failed_path.write_bytes(b"".join(lines))


def ended(output: Output, rows: int | None) -> None:
    """The manifest of a run; rows: None for one that is not over."""
    output.state_path.mkdir(exist_ok=True)
    manifests.save(output, Manifest(rows=rows, settings={}))


def _keyed(rows: tuple[tuple[dict[str, Any], Any], ...]) -> list[tuple[int, dict[str, Any], Any]]:
    return [(key, row, tag) for key, (row, tag) in enumerate(rows, start=1)]


def _result(key: int, row: dict[str, Any], tag: Any, reasks: int) -> Result:
    reply = Reply(output=tag, finish_reason="stop", usage={}, model="m")
    outcome = Outcome(status="succeeded", reply=reply, fields={"reasks": reasks})
    content = msgspec.json.encode(row)
    return Result(row=Row(key, key, row, content), key=key, custom_id=None, outcome=outcome)
