"""kill -9 at random moments of a run of 1,000 rows, resumed until it is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from crash.killing import LIMITED, SATURATED, Plan, kill_until_done

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.real]


@pytest.mark.parametrize("plan", [LIMITED, SATURATED], ids=["limited", "saturated"])
def test_a_run_killed_again_and_again_loses_no_row_and_repeats_none(
    tmp_path: Path, plan: Plan
) -> None:
    figures = kill_until_done(replace(plan, rows=1000), tmp_path)
    assert figures.kills == plan.kills
    assert figures.verdict == "verify: 1,000 of 1,000, each once"
    assert figures.retries > 0
    assert figures.received <= figures.allowed, figures
