"""Many connections at once: all of them are used, none is left, and too few files are told of."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONNECTIONS, ROWS = 1000, 1100

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def test_a_thousand_connections_at_once(tmp_path: Path) -> None:
    """bench/connections.py in its small form; it says so by its status where one is left open."""
    flags = ["--connections", str(CONNECTIONS), "--rows", str(ROWS), "--latency", "3"]
    command = [sys.executable, str(ROOT / "bench" / "connections.py"), *flags]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "connections.json").read_text())
    assert result["raw"]["client"]["succeeded"] == ROWS
    assert result["raw"]["client"]["most_in_flight"] == CONNECTIONS
    assert result["raw"]["server"]["answered"] >= ROWS
    assert CONNECTIONS <= result["summary"]["most_files"] < CONNECTIONS + 30
    assert result["summary"]["files_after"] == result["summary"]["files_before"]
    # A worker and its task, a connection and its transport, a row.
    assert result["summary"]["kb_per_connection"] < 40


def test_a_limit_on_open_files_that_is_too_low_is_told_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt":"x"}\n')
    words = ["run", "rows.jsonl", "--model", "m", "--endpoint", "sim", "-c", "1000", "-o", "o"]
    done = subprocess.run(
        [sys.executable, "-m", "redline", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)),
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: concurrency 1,000 needs 1,064 open files, and this process may have 300\n"
        "\n"
        "hint: lower --concurrency to 236, or raise `ulimit -Hn`\n"
    )
