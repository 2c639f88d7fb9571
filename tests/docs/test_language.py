"""Words that recur in prose which reads as if translated are kept out of sources and pages.

`src`, every page but the decisions, which are a record, README, CONTRIBUTING and CHANGELOG. In
sources only comments and strings count, docstrings included: identifiers may have such names.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The word, and what to write in its place.
WORDS = {
    r"\bso (?:many|often)\b": "name the number or the parameter",
    r"\bnobody\b": "name the subject: no process, no caller, no other client",
    r"\bwhoever\b": "name the subject: the caller, the holder, the next consumer",
    r"(?<!`)\btold\b": "notified, stated, given, reported; or say who calls what",
    r"\b(?:stands|stood)\b": "is, comes, occurs",
    r"\b(?:hears?|heard)\b(?!,| \(|: places)": "is notified, receives, learns",
    r"\blets? go\b": "releases, grants",
    r"\bmisshapen\b": "malformed",
    r"(?:[,;]|\ball|\bwould) else\b": "otherwise; everything else",
    r"\bexclude each other\b": "cannot be combined",
    r"\b(?:None|True|False|inf|nothing|[A-Z]\w*Error|Refusal) where\b": "if",
    r"(?<!there )\bis no (?:timeline|trace|request|number|text|object|JSON)\b": "is not a, is not",
}
# A line of these, as it is in the file, and why.
EXCEPTIONS = {
    """    r"(?:\\b(?:no(?: [a-z]+){1,2}|none|nothing|nobody)|(?:n't|\\bnot)(?: be|\"""": (
        "a word of models' answers"
    ),
    """        parts = [f"{', '.join(told)} ({self.algorithm})" if told else """
    '"no rate limit"]': "code",
    """            f"received {self._received} = {' + '.join(told) or '0'}\"""": "code",
    "$ redline run rows.jsonl --model m --endpoint http://127.0.0.1:8000/v1 --endpoint "
    "http://127.0.0.1:8001/v1 -c 16 --balance round_robin --trace calls.trace -q -o told.jsonl "
    "2> summary.txt": "a file's name",
}
_PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}


def files() -> Iterator[Path]:
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))


def prose(name: str, text: str) -> list[str]:
    """The lines, without what is neither comment nor string in a Python source."""
    lines = text.splitlines()
    if not name.endswith(".py"):
        return lines
    kept = [[" "] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _PROSE:
            (first, begin), (last, end) = token.start, token.end
            for number in range(first, last + 1):
                line = lines[number - 1]
                left = begin if number == first else 0
                right = end if number == last else len(line)
                kept[number - 1][left:right] = line[left:right]
    return ["".join(line) for line in kept]


def found(name: str, text: str) -> Iterator[str]:
    whole = text.splitlines()
    for number, line in enumerate(prose(name, text), 1):
        if whole[number - 1] in EXCEPTIONS:
            continue
        for word, advice in WORDS.items():
            if match := re.search(word, line, re.IGNORECASE):
                yield f"{name}:{number}: {match[0]}: {advice}"


def test_sources_and_pages_are_free_of_them() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files()}
    assert len(texts) > 500
    assert [one for name, text in texts.items() for one in found(name, text)] == []
    assert {line for text in texts.values() for line in text.splitlines()} >= {*EXCEPTIONS}


def test_identifiers_are_no_prose() -> None:
    text = 'told = heard(x)  # told\nnames = """one\n  of whom stands"""\n'
    assert [one.split(": ")[:2] for one in found("a.py", text)] == [
        ["a.py:1", "told"],
        ["a.py:3", "stands"],
    ]


def test_such_a_word_is_found() -> None:
    assert [*found("a.md", "one\nNobody waits so often.")] == [
        "a.md:2: so often: name the number or the parameter",
        "a.md:2: Nobody: name the subject: no process, no caller, no other client",
    ]
