"""kill -9 at random moments of runs with a budget, through faults, until it is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.spending import Plan, spend_until_done

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.real]


# Of these seeds one run is not killed, one once and one twice; with and without faults.
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_budget_is_not_passed_however_its_runs_end(tmp_path: Path, seed: int) -> None:
    figures = spend_until_done(Plan(seed=seed, kills=seed % 3), tmp_path)
    assert figures.has_ended
    assert 0.2 < figures.billed <= figures.counted <= 1, figures
