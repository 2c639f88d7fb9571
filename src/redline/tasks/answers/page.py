"""An answer's plain text with its sentences, and how the text's language writes numerals."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from redline.tasks.answers.numerals import Numeral, Reading, numerals
from redline.tasks.answers.sections import Span, sentences

# Words of languages that group digits by points or spaces. A text with English ones does not.
_POINTS_GROUP = re.compile(
    r"\b(?:Antwort|Ergebnis|beträgt|insgesamt|das|der|und|ist|sind|sie|kostet|nicht|für|mit|"
    r"respuesta|resultado|los|las|por|el|la|es|son|cuesta|réponse|résultat|les|des|le|est|donc|"
    r"resposta|uma|custa|risposta|della|gli|il|sono|antwoord|het|een|zijn|svaret|jawaban|cevap|"
    r"toplam)\b|[а-яё]",
    re.IGNORECASE,
)
_ENGLISH = re.compile(r"\b(?:the|of|is|and|answer)\b", re.IGNORECASE)


class Given(NamedTuple):
    """A numeral that is the answer, and what shows it."""

    numeral: Numeral
    shape: str


@dataclass(frozen=True, slots=True)
class Page:
    """Plain text, its sentences in order, and how its numerals are read."""

    text: str
    sentences: list[Span]
    reading: Reading

    def numerals(self, span: Span) -> list[Numeral]:
        """The numerals in digits of a part of the text."""
        return list(numerals(self.text, span.start, span.end, self.reading))

    def within(self, start: int, end: int) -> list[Span]:
        """The sentences of a part of the text; the first and the last are cut to it."""
        first = bisect_right(self.sentences, start, key=lambda span: span.end)
        last = bisect_right(self.sentences, end - 1, key=lambda span: span.start)
        cut = (
            Span(max(start, span.start), min(end, span.end)) for span in self.sentences[first:last]
        )
        return [span for span in cut if self.text[span.start : span.end].strip()]


def page_of(text: str) -> Page:
    """The page of a plain text."""
    points = _POINTS_GROUP.search(text) is not None and _ENGLISH.search(text) is None
    return Page(text, sentences(text), Reading(points_group=points))
