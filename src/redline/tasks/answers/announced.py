"""The number that a mark of an answer announces: the last mark that has one.

| after the mark                | the number is                                                    |
|-------------------------------|------------------------------------------------------------------|
| a number, at once             | that one, unless it is part of an expression or a range          |
| a sentence                    | the answer of that sentence (sentence.py)                        |
| working, after `A:`           | what the working concludes (conclusion.py)                       |
| nothing, and the line ends    | any of these on the next line                                    |
"""

from __future__ import annotations

import re

from redline.tasks.answers.conclusion import Given, answer_of, concluded, is_refusal, is_refused
from redline.tasks.answers.mark import Mark, marks
from redline.tasks.answers.markup import BOLD, HASHES
from redline.tasks.answers.numeral import Numeral, word_numeral
from redline.tasks.answers.page import Page, Span
from redline.tasks.answers.sentence import is_part

_MOST_MARKS = 64
_MOST_REGION = 600
_MOST_UNIT_WORDS = 5  # as in `18 dollars a day`

_FILLER = re.compile(
    rf"(?:[\s\"'*_()\[:=~≈,>|.…$+—→{BOLD}{HASHES}]|(?<!\w)[a-z][ ]?=(?!=)|\([A-E]\)[ ]?|"
    r"(?<![A-Za-z])(?:therefore|thus|then|simply|just|only|exactly|approximately|approx|about|"
    r"around|roughly|nearly|equal to|equals|now|indeed|in fact|actually|as follows|clearly|also|"
    r"still|found to be|given by|the number|the|a total of|of|ist|est|es|ca|etwa|environ|unos|около"
    r")(?!\w)|约|約)*+",
    re.IGNORECASE,
)
_OF_NUMBER = re.compile(r"[ ]of[ ][^.]{0,20}?\d")
_IF = re.compile(r"\bwould\b.*?\bif\b", re.IGNORECASE | re.DOTALL)
_EQUALS = re.compile(r"=|\bequals\b")
_NOT_EQUAL = re.compile(r"\s*(?:less|more|greater|fewer) than\b", re.IGNORECASE)


def announced(page: Page, is_cut: bool) -> tuple[Given | None, bool]:
    """The announced number, or None, and whether the text was cut within an announced number.

    is_cut: the text was cut, so that a number at its very end may lack digits and does not count.
    """
    found = marks(page.text)
    follows = len(page.text)
    for mark in reversed(found[-_MOST_MARKS:]):
        given = _given(page, mark, follows)
        if given is not None:
            may_lack = is_cut or (not mark.is_closed and mark.shape == "boxed")
            is_open = may_lack and given.numeral.end >= len(page.text.rstrip())
            return None if is_open else given, is_open
        follows = min(follows, mark.start)
    return None, False


def _given(page: Page, mark: Mark, follows: int) -> Given | None:
    """The number after one mark, or None. follows: where the next mark begins."""
    if mark.shape in {"boxed", "tag"}:
        return _enclosed(page, mark)
    regions = page.within(mark.content, min(follows, mark.content + _MOST_REGION))
    if (
        not regions
        or _NOT_EQUAL.match(page.text, regions[0].start)
        or is_refused(page.text, mark.start)
    ):
        return None
    region = regions[0]
    first = _first(page, region)
    if first is not None and first.number is None:
        return None
    if first is not None and _is_alone(page, region, first):
        if not (mark.may_be_working and _goes_on(page, first, region, follows)):
            return Given(first, mark.shape)
    elif mark.shape == "hashes" and first is None:
        return None
    if _IF.search(page.text, mark.start, region.end):
        return None
    said = None if is_refusal(page.text, region) else answer_of(page, region, True).given
    if mark.may_be_working and (said is None or _EQUALS.search(page.text, region.start, follows)):
        said = concluded(page, mark.content, follows) or said
    return said and Given(said.numeral, mark.shape)


def _enclosed(page: Page, mark: Mark) -> Given | None:
    """The one number in a box or tag, such as `1 234`, or what a sentence in it says."""
    limit = mark.limit
    if not mark.is_closed and mark.shape == "boxed":
        newline = page.text.find("\n", mark.content, mark.limit)
        limit = newline if newline > 0 else mark.limit
    span = Span(mark.content, limit)
    found = page.numerals(span, spaces_group=True)
    if len(found) == 1 and found[0].number is not None:
        rest = page.text[span.start : found[0].start] + page.text[found[0].end : limit]
        if not rest.strip(f" \n$.{BOLD}"):
            return Given(found[0], mark.shape)
    if mark.shape == "tag":
        given = concluded(page, *span)
    else:
        given = None if is_refusal(page.text, span) else answer_of(page, span, True).given
    return given and Given(given.numeral, mark.shape)


def _first(page: Page, region: Span) -> Numeral | None:
    """The numeral that the region begins with, after words such as `about`."""
    filler = _FILLER.match(page.text, *region)
    edge = filler.end() if filler else region.start
    found = page.numerals(region, spaces_group=True)
    if not found:
        return word_numeral(page.text, edge)
    return found[0] if found[0].start <= edge else None


def _is_alone(page: Page, region: Span, first: Numeral) -> bool:
    """Whether the first numeral is a number of its own: no part of an expression or a share."""
    rest = page.numerals(Span(first.end, region.end))
    number = first.number
    is_share = number is not None and (number.is_percent or number.value.denominator > 1)
    if is_share and _OF_NUMBER.match(page.text, first.end, region.end):
        return False
    return not is_part(page.text, region, [first, *rest])


def _goes_on(page: Page, first: Numeral, region: Span, follows: int) -> bool:
    """Whether the number only begins a sentence of working, as in `A: 30 books weigh 7.5 ...`."""
    words = page.text[first.end : region.end].split()
    is_named = "=" in page.text[region.start : first.start]  # as in `A: x = 6`
    is_sentence = is_named or len(words) > _MOST_UNIT_WORDS
    return is_sentence and _EQUALS.search(page.text, first.end, follows) is not None
