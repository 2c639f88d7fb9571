"""Chains of imports are as long as their modules are many, rings included, and none is too long."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import script


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


def too_long(depth: ModuleType) -> list[str]:
    """The folders with a chain of more than MOST_LEVELS of their own modules."""
    paths, graph = depth.modules()
    chains = {door: depth.chain_in(here, graph) for door, (here, _) in depth.folders(paths).items()}
    return [
        f"{door}: {depth.shown(chain, door)}"
        for door, chain in chains.items()
        if depth.size(chain) > depth.MOST_LEVELS
    ]


@pytest.mark.slow
def test_no_folder_has_too_long_a_chain(depth: ModuleType) -> None:
    assert not too_long(depth)


def test_a_planted_chain_of_seven_is_too_long(
    depth: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of six, whose last module imports from a folder below, is not."""
    monkeypatch.setattr(depth, "SOURCE", tmp_path)
    for folder, names in (("seven", "abcdefg"), ("six", "abcdef"), ("six/lower", "gh")):
        path = tmp_path / "redline" / folder
        path.mkdir(parents=True)
        package = f"redline.{folder.replace('/', '.')}"
        (path / "__init__.py").write_text(f"from {package}.{names[0]} import x\n")
        for name, below in zip(names, [*names[1:], ""], strict=True):
            line = f"from {package}.{below} import x\n" if below else "x = 1\n"
            (path / f"{name}.py").write_text(line)
    (tmp_path / "redline" / "six" / "f.py").write_text("from redline.six.lower import x\n")
    assert too_long(depth) == ["redline.seven: a > b > c > d > e > f > g"]
