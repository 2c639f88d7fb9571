"""A run that is killed and started again within a window keeps to the limit: 0 rejections."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from support.forked import Command
from support.simulated import simulated

ROWS, COUNT, WINDOW_S = 900, 40, 2


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(400)
# What is spread over a window takes longer to fill one.
@pytest.mark.parametrize(("profile", "times"), [("any", 20), ("moving", 6)])
def test_kills_within_windows_draw_no_rejection(tmp_path: Path, profile: str, times: int) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "Say {number}."}}\n' for number in range(ROWS)))
    moments = random.Random(profile)
    limit = f"{COUNT}/{WINDOW_S}s"
    with simulated("--requests", limit, "--algorithm", "moving", "--headers", "none") as server:
        words = ["run", str(rows), "-o", str(tmp_path / "o.jsonl")]
        words += ["--base-url", server.base_url, "--model", "m", "--quiet"]
        # The guard is for the way to the server, which a busy test machine makes long.
        words += ["--requests", limit, "--profile", profile, "--guard", "200ms"]
        kills = 0
        for _ in range(times):
            process = Command(words)
            before, given_up_s = server.stats()["received"], time.monotonic() + 10
            # Killed soon after it has sent something, or where the limit lets it send nothing.
            while server.stats()["received"] == before and time.monotonic() < given_up_s:
                time.sleep(0.02)
            time.sleep(moments.uniform(0.0, 0.2))
            process.kill()
            process.communicate(timeout=20)
            kills += process.returncode == -signal.SIGKILL
        stats = server.stats()
    assert kills == times
    assert stats["received"] > COUNT
    assert stats["rejected"] == 0
