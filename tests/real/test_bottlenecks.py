"""Bottlenecks planted in real runs are named by their timelines; bench/binds.py plants others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bottlenecks import Scenario, played, scenarios

pytestmark = [pytest.mark.real]

SHORT = [one for one in scenarios(seed=3) if one.name in ("endpoint", "writer")]


@pytest.mark.parametrize("scenario", SHORT, ids=[one.name for one in SHORT])
def test_what_was_planted_is_named(scenario: Scenario, tmp_path: Path) -> None:
    verdict = played(scenario, tmp_path)
    assert verdict.seconds >= 3
    assert verdict.share >= 0.9, verdict.wrong
