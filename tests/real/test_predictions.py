"""What a job is expected to gain is written before its next run, and scored by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from redline.timeline import NAME, read_timeline
from support.sim_process import SimProcess

LATENCY_S, SECONDS, LAST_SECONDS = 0.1, 3.6, 6.0
CHANGE = "12 -> 24 calls in flight"


def redline(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "redline", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_with_other_settings_is_predicted_and_scored(tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"Sort {n}."}) for n in range(4000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    done = 0
    with SimProcess("--latency", f"{0.9 * LATENCY_S}-{1.1 * LATENCY_S}") as sim:
        for slots in (4, 8, 12, 24):
            seconds = LAST_SECONDS if slots == 24 else SECONDS
            done += round(slots * seconds / LATENCY_S)
            redline(tmp_path, "run", "rows.jsonl", "--base-url", sim.base_url, "--model", "m",
                    "-c", str(slots), "--limit", str(done), "-o", "out.jsonl", "-q")  # fmt: skip
        shown = " ".join(redline(tmp_path, "status", "out.jsonl").split())
        status = json.loads(redline(tmp_path, "status", "out.jsonl", "--json"))
        report = redline(tmp_path, "report", "out.jsonl", "--format", "md")
    *earlier, last = read_timeline(tmp_path / "out.redline" / NAME).runs
    # The second and the third run were predicted from too few levels.
    assert [run.prediction is not None for run in earlier] == [False, True, True]
    assert all(run.prediction.unknown for run in earlier[1:] if run.prediction)
    found = last.prediction
    assert found is not None
    assert found.change == CHANGE
    assert found.before_per_s * 1.3 < found.likely_per_s
    assert found.high_per_s < found.before_per_s * 2.3
    score = status["scores"][-1]
    is_right = found.low_per_s <= score["measured_per_s"] <= found.high_per_s
    assert f"{CHANGE}: " in shown
    assert f"measured: {'right' if is_right else 'wrong'}" in shown
    assert "helps 48 calls in flight: " in shown
    assert "## What would help" in report
    assert "## Predictions" in report
