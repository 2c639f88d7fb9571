"""The durability contract names a test for its promises, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "durability.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def missing(page: str) -> list[str]:
    """The tests that the page names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED.findall(page)
        if not (ROOT / path).is_file()
        or not re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.M)
    ]


def test_every_test_that_the_contract_names_exists() -> None:
    page = PAGE.read_text("utf-8")
    assert len(NAMED.findall(page)) >= 15
    assert missing(page) == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert missing("`tests/crash/test_kill.py::test_no_such`, `tests/none.py::test_x`") == [
        "tests/crash/test_kill.py::test_no_such",
        "tests/none.py::test_x",
    ]


def test_every_row_of_what_is_safe_names_its_test() -> None:
    """A promise without a test would be a hope."""
    page = PAGE.read_text("utf-8")
    section = page.partition("## What is safe")[2].partition("\n\n**")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 6
    notes = dict(re.findall(r"^\[\^([\w-]+)\]: (.+)$", page, re.M))
    for row in rows:
        named = re.findall(r"\[\^([\w-]+)\]", row)
        assert named, row
        assert all(NAMED.search(notes[name]) for name in named), row
