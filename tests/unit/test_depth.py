"""Chains of imports are as long as their modules are many, rings included."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from scripts import script


@pytest.fixture(scope="module")
def depth() -> ModuleType:
    return script("bench/depth.py", "record")


def test_the_longest_chain_counts_a_ring_by_its_modules(depth: ModuleType) -> None:
    """a imports b and c; c, d and e import each other in a ring, and then f."""
    graph = {"a": {"b", "c"}, "b": {"f"}, "c": {"d"}, "d": {"e"}, "e": {"c", "f"}, "f": set()}
    assert depth.longest(graph) == [["a"], ["c", "d", "e"], ["f"]]
    assert depth.longest({**graph, "e": {"f"}}) == [["a"], ["c"], ["d"], ["e"], ["f"]]


def test_every_kind_of_import_is_followed(
    depth: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depth, "SOURCE", tmp_path)
    (tmp_path / "p" / "q").mkdir(parents=True)
    path = tmp_path / "p" / "q" / "m.py"
    path.write_text(
        "import p.one\nfrom p import two, Name\nfrom ..three import x\nfrom . import four\n"
        "def late():\n    import_module('p.five')\n"
    )
    known = {"p", "p.one", "p.two", "p.three", "p.q", "p.q.four", "p.five"}
    assert {*depth.targets(path, known)} >= known - {"p.q"}


def test_lines_of_code_leave_out_what_is_said_of_them(depth: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text('"""Said."""\n\n# Said.\nTEXT = """\nkept\n"""\n\ndef f():\n    """Said."""\n')
    assert depth.code_lines(path) == 4
