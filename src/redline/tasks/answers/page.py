"""Splits a plain text into sentences, and finds out how its language writes numerals."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from redline.tasks.answers.markup import BOLD, THIN
from redline.tasks.answers.numeral import Numeral, Span, numerals

# Words of languages that group digits with points. A text with English words does not count as one
# in such a language.
_POINTS_GROUP = re.compile(
    r"(?i)\b(?:de[rlsmn]?|die|das|und|ist|sie|es|el|los?|las?|son|une?|eine?[mnr]?|von|les?|uma|il|"
    r"gli|het|een|är|"
    r"antwort|svaret|jawaban|cevap|[éè]|(?-i:er)|blir|este|totale|totaal|yang|adalah|jadi|"
    r"toplam)\b|[а-яёãõđğşạ-ỹ]",
)
_ENGLISH = re.compile(r"(?i)\b(?:the|of|is|and|answer)\b")

_BREAK = re.compile(rf"(?P<stop>[.!?…])[\"')\]{BOLD}]*[ {THIN}]+|[。！？]|[ ]*\n\s*")
# A period after an abbreviation of the first group never ends a sentence; after one of the second
# group, such as `Rs.`, it ends a sentence unless a number follows.
_ABBREVIATION = re.compile(
    r"(?i)(?<!\w)(?:(mrs?|ms|dr|e\.g|i\.e|st|[ap]\.m|bzw|mio|mrd|tsd)|"
    r"approx|nos?|nr|rs|rp|ca|eq|fig|vs|vol|p)$",
)
_NEAR = 12
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Page:
    """A plain text and its sentences in order, each within one line and none blank.

    points_group: the text's language writes `70.000` for 70000.
    """

    text: str
    sentences: list[Span]
    points_group: bool

    def of(self, span: Span) -> str:
        """Returns a part of the text."""
        return self.text[span.start : span.end]

    def numerals(self, span: Span, *, spaces_group: bool = False) -> list[Numeral]:
        """Returns the numerals in digits of a part of the text."""
        return list(numerals(self.text, *span, self.points_group, spaces_group))

    def sentence_start(self, place: int) -> int:
        """Returns the start of the sentence around `place`, or of the last sentence before it."""
        at = bisect_right(self.sentences, place, key=lambda span: span.start) - 1
        return self.sentences[max(at, 0)].start if self.sentences else 0

    def within(self, start: int, end: int) -> list[Span]:
        """Returns the sentences of a part of the text; the first and the last may be cut.

        A colon alone, such as the rest of `**The answer is:**`, is not a sentence.
        """
        first = bisect_right(self.sentences, start, key=lambda span: span.end)
        last = bisect_right(self.sentences, end - 1, key=lambda span: span.start)
        cut = (Span(max(start, one), min(end, other)) for one, other in self.sentences[first:last])
        return [span for span in cut if self.of(span).strip(f" :*{BOLD}")]


def page_of(text: str) -> Page:
    """Splits a plain text into sentences; one of more than 2,000 characters becomes several."""
    points_group = _POINTS_GROUP.search(text) is not None and not _ENGLISH.search(text)
    found: list[Span] = []
    start = 0
    for end in _ends(text):
        for first in range(start, end, _LONGEST):
            part = text[first : min(end, first + _LONGEST)].rstrip()
            if part:
                found.append(Span(first + len(part) - len(part.lstrip()), first + len(part)))
        start = end
    return Page(text, found, points_group)


def _ends(text: str) -> Iterator[int]:
    """Yields the ends of the sentences."""
    for cut in _BREAK.finditer(text):
        if cut["stop"] == ".":
            short = _ABBREVIATION.search(text, max(0, cut.start() - _NEAR), cut.start())
            if short is not None and (short[1] or text[cut.end() : cut.end() + 1].isdigit()):
                continue
        yield cut.end()
    yield len(text)
