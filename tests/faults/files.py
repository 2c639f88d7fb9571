"""The lines of an output as they stand, each proved by its checksum."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redline.journal import Output


@dataclass
class Files:
    """Results and failures by their order in the files; torn: bytes behind the last whole line."""

    succeeded: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    torn: int = 0
    damaged: list[str] = field(default_factory=list)


def read_files(output: Output) -> Files:
    """What is there; an output that is not begun is empty."""
    files = Files()
    files.succeeded = _lines(output.path, files)
    files.failed = _lines(output.failed_path, files)
    return files


def _lines(path: Path, files: Files) -> list[dict[str, Any]]:
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    files.torn += len(data) - end
    found = []
    for number, line in enumerate(data[:end].splitlines(), 1):
        body, _, tail = line.rpartition(b',"crc":"')
        if tail != b'%08x"}' % zlib.crc32(body):
            files.damaged.append(f"{path.name}:{number}")
            continue
        found.append(json.loads(line))
    return found


def text_of(line: dict[str, Any]) -> Any:
    """The answer in a success's line, in either format."""
    if "output" in line:
        return line["output"]
    body = line["response"]["body"]
    return body["choices"][0]["message"]["content"] if isinstance(body, dict) else body
