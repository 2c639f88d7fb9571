"""The pictures of who does what when are up to date, and show what their pages say."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import script

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"window.svg": "limits-proof.md", "step.svg": "engine.md", "binding.svg": "fleet.md"}


@pytest.fixture(scope="module")
def lanes() -> ModuleType:
    return script("bench/lanes.py", "diagrams")


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_is_what_the_script_draws(lanes: ModuleType, name: str) -> None:
    if name == "step.svg":
        pytest.importorskip("torch")
    drawn = lanes.PICTURES[name]()
    assert (DOCS / "pictures" / name).read_text("utf-8") == drawn, "run python bench/lanes.py"
    assert f"(pictures/{name})" in (DOCS / PAGES[name]).read_text("utf-8")
    assert {*lanes.PICTURES} == {*PAGES}


def test_a_window_without_a_guard_is_exceeded_and_one_with_it_is_not(lanes: ModuleType) -> None:
    most = lanes.LIMIT.count
    assert lanes.most_in_a_window(lanes.sent(0.0)) == most + 1
    assert lanes.most_in_a_window(lanes.sent(lanes.GUARD_S)) == most


def test_late_binding_ends_in_half_the_time(lanes: ModuleType) -> None:
    early, late = (lanes.works(is_late=is_late) for is_late in (False, True))
    assert len(early) == len(late) == lanes.CALLS
    ends = [max(work.done_s for work in works) for works in (early, late)]
    assert ends[1] == ends[0] / 2
