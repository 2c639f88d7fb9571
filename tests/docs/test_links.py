"""Relative links in the README, CONTRIBUTING and docs lead to existing files and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*([^)\s]+)\)")


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(text: str) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in _LINK.findall(_FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if name and not target.exists():
            yield link
        elif anchor and target.suffix == ".md":
            there = text if target == page else target.read_text("utf-8")
            if anchor not in anchors(there):
                yield link


def test_every_link_leads_somewhere() -> None:
    found = {page: [*broken(page, page.read_text("utf-8"))] for page in pages()}
    assert len(found) > 60
    assert {page.name: links for page, links in found.items() if links} == {}


def test_a_broken_link_is_found() -> None:
    text = "# One thing\n[a](#one-thing) [b](#other) [c](limits.md#no) [d](none.md) [e](limits.md)"
    assert [*broken(ROOT / "docs" / "new.md", text)] == ["#other", "limits.md#no", "none.md"]
