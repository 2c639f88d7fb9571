"""Files of an output, written line by line as a run would leave them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redline.journal import Output

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def key_of(row: int) -> str:
    """The key of the row of this number, as scattered as the hashes that keys are."""
    return f"{(row + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}"


def sealed(fields: dict[str, Any], mark: int = 0) -> bytes:
    """The line of these fields. mark: of the row's content, 0 for a row without a name."""
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)[:-1]
    if mark:
        body += f',"row_hash":"{mark:08x}"'
    return b'%b,"crc":"%08x"}\n' % (body.encode(), zlib.crc32(body.encode()))


def result(row: int, output: Any = "yes", *, mark: int = 0, **more: Any) -> bytes:
    """The line of a success of the row of this number."""
    fields = {
        "v": 1,
        "hash": key_of(row),
        "custom_id": f"r{row}" if mark else None,
        "row": row,
        "output": output,
        "tool_calls": None,
        "finish_reason": "stop",
        "usage": USAGE,
        "model": "m",
        "endpoint": "api",
        "attempts": 1,
        "latency_s": 0.5,
    }
    return sealed({**fields, **more}, mark)


def failure(row: int, kind: str = "server_failed", *, mark: int = 0, **more: Any) -> bytes:
    """The line of a failure of the row of this number."""
    error = {"kind": kind, "message": f"{kind} it is", "status": 500, "where": "", "hint": ""}
    fields = {
        "v": 1,
        "hash": key_of(row),
        "custom_id": f"r{row}" if mark else None,
        "row": row,
        "line": row,
        "status": "exhausted",
        "error": error,
        "output": None,
        "endpoint": "api",
        "attempts": 3,
        "latency_s": 9.0,
        "input": {"text": f"text {row}"},
    }
    return sealed({**fields, **more}, mark)


def write_output(
    path: Path,
    results: Iterable[bytes],
    failures: Iterable[bytes] = (),
    *,
    rows: int | None = None,
    **settings: Any,
) -> Output:
    """An output at this path with these lines. rows: of its input, None if it was not read."""
    output = Output(path=path)
    output.state_path.mkdir(exist_ok=True)
    manifest = {"input": "", "rows": rows, "settings": {"model": "m", **settings}}
    (output.state_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    path.write_bytes(b"".join(results))
    output.failed_path.unlink(missing_ok=True)
    if failed := b"".join(failures):
        output.failed_path.write_bytes(failed)
    return output
