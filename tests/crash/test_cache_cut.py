"""A cache whose files are cut while in use: the run goes on, and every answer is its row's."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.scripted import Asked, chat, said, scripted

ROWS = 60
CUT_AT = (15, 30, 45)


def run(folder: Path, base_url: str) -> subprocess.CompletedProcess[str]:
    argv = "run rows.jsonl --model m --temperature 0 --cache-dir kept -o out.jsonl -q -c 4"
    command = [sys.executable, "-m", "redline", *argv.split(), "--base-url", base_url]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 2])
def test_files_that_are_cut_while_they_are_in_use_end_nothing(tmp_path: Path, share: int) -> None:
    rows = [{"custom_id": f"r{n}", "prompt": f"say {n}"} for n in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def script(request: Asked) -> Any:
        if request.number in CUT_AT:
            for file in (tmp_path / "kept").iterdir():
                os.truncate(file, file.stat().st_size // share if share else 0)
        return chat(said(f"echo {request.body['messages'][-1]['content']}"))

    with scripted(script) as server:
        ran = run(tmp_path, server.base_url)
        assert ran.returncode == 0, ran.stderr
        (tmp_path / "out.jsonl").unlink()
        ran = run(tmp_path, server.base_url)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {line["custom_id"]: line["output"] for line in lines} == {
        f"r{n}": f"echo say {n}" for n in range(ROWS)
    }


def test_a_file_with_a_write_ahead_log_is_taken_over_without_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    with scripted(lambda _: chat(said())) as server:
        assert run(tmp_path, server.base_url).returncode == 0
        file = tmp_path / "kept" / "answers-v1.1.sqlite3"
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA journal_mode = WAL")
        (tmp_path / "out.jsonl").unlink()
        assert run(tmp_path, server.base_url).returncode == 0
        assert len(server.asked) == 1
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
