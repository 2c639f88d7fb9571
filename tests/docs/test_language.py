"""Words that recur in prose which reads as if translated are kept out of sources and pages.

`src`, every page but the decisions, which are a record, README, CONTRIBUTING and CHANGELOG.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The word, and what to write in its place.
WORDS = {
    r"\bso (?:many|often)\b": "name the number or the parameter",
    r"\bnobody\b": "name the subject: no process, no caller, no other client",
    r"\bwhoever\b": "name the subject: the caller, the holder, the next consumer",
}
# A line of these, as it is in the file, and why.
EXCEPTIONS = {
    """    r"(?:\\b(?:no(?: [a-z]+){1,2}|none|nothing|nobody)|(?:n't|\\bnot)(?: be|\"""": (
        "a word of models' answers"
    ),
}


def files() -> Iterator[Path]:
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))


def found(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if line in EXCEPTIONS:
            continue
        for word, advice in WORDS.items():
            if match := re.search(word, line, re.IGNORECASE):
                yield f"{name}:{number}: {match[0]}: {advice}"


def test_sources_and_pages_are_free_of_them() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files()}
    assert len(texts) > 500
    assert [one for name, text in texts.items() for one in found(name, text)] == []
    assert {line for text in texts.values() for line in text.splitlines()} >= {*EXCEPTIONS}


def test_such_a_word_is_found() -> None:
    assert [*found("a.md", "one\nNobody waits so often.")] == [
        "a.md:2: so often: name the number or the parameter",
        "a.md:2: Nobody: name the subject: no process, no caller, no other client",
    ]
