"""The number that a mark of an answer announces: the last mark that has one.

| after the mark                | the number is                                                    |
|-------------------------------|------------------------------------------------------------------|
| a number, at once             | that one, unless it is part of an expression or a range          |
| an expression                 | what the sentence says it is equal to                            |
| a sentence                    | the answer of that sentence (sentence_number.py)                 |
| working, after `A:`           | what the working concludes (last_number.py)                      |
| nothing, and the line ends    | any of these on the next line                                    |
"""

from __future__ import annotations

import re
from typing import NamedTuple

from redline.tasks.answers.last_number import (
    conclusion,
    is_refusal,
    refused,
    so_none_left,
    worded_answer,
)
from redline.tasks.answers.markers import Mark, marks
from redline.tasks.answers.numerals import Numeral, Reading, chinese_numeral, numerals
from redline.tasks.answers.page import Given, Page
from redline.tasks.answers.plain_text import BOLD, HASHES
from redline.tasks.answers.sections import Span
from redline.tasks.answers.sentence_number import choose, is_part

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
_IF = re.compile(r"\bif\b", re.IGNORECASE)
_WOULD = re.compile(r"\bwould\b", re.IGNORECASE)
_EQUALS = re.compile(r"=|\bequals\b")
_NEGATED = re.compile(r"\s*(?:not|never|less than|more than|greater than|fewer than)\b", re.I)
_BUT = re.compile(r"\b(?:but|rather|instead)\b", re.IGNORECASE)


class Announced(NamedTuple):
    """What the last mark announces; None where the answer was cut inside it."""

    given: Given | None


def announced(page: Page, is_cut: bool) -> Announced | None:
    """The announced number, or None where no mark announces one.

    is_cut: the text was cut, so that a number at its very end may lack digits and does not count.
    """
    found = marks(page.text)
    follows = len(page.text)
    for mark in reversed(found[-_MOST_MARKS:]):
        given = _given(page, mark, follows)
        if given is not None:
            is_open = is_cut or (mark.shape == "boxed" and not mark.is_closed)
            if is_open and given.numeral.end >= len(page.text.rstrip()):
                return Announced(None)
            return Announced(given)
        follows = min(follows, mark.start)
    return None


def _given(page: Page, mark: Mark, follows: int) -> Given | None:
    """The number after one mark, or None. follows: where the next mark begins."""
    if mark.shape == "boxed":
        return _boxed(page, mark)
    if mark.shape == "tag":
        return _spaced_numeral(page, mark, mark.limit) or _concluded(page, mark, mark.limit)
    region = _region(page, mark, follows)
    if region is None or refused(page.text, mark.start):
        return None
    first = _first(page, region)
    if first is not None and first.number is None:
        return None
    may_be_working = mark.shape == "label" and not mark.is_final
    if first is not None and _stands_alone(page, region, first):
        if not (may_be_working and _goes_on(page, first, region, follows)):
            return Given(first, mark.shape)
    elif mark.shape == "hashes" and first is None:
        return None
    return _worked_out(page, mark, region, follows) if may_be_working else _said(page, mark, region)


def _region(page: Page, mark: Mark, follows: int) -> Span | None:
    """The sentence after the mark; of `not 17 but 18`, what follows `but`."""
    regions = page.within(mark.content, min(follows, mark.content + _MOST_REGION))
    if not regions:
        return None
    start, end = regions[0]
    negated = _NEGATED.match(page.text, start, end)
    if negated is None:
        return Span(start, end)
    but = _BUT.search(page.text, negated.end(), end)
    return Span(but.end(), end) if but else None


def _stands_alone(page: Page, region: Span, first: Numeral) -> bool:
    """Whether the first numeral is a number of its own: no part of an expression or a share."""
    rest = page.numerals(Span(first.end, region.end))
    if is_part(page.text, region, [first, *rest]):
        return False
    number = first.number
    is_share = number is not None and (number.is_percent or number.value.denominator > 1)
    return not (is_share and _OF_NUMBER.match(page.text, first.end, region.end))


def _goes_on(page: Page, first: Numeral, region: Span, follows: int) -> bool:
    """Whether the number only begins a sentence of working, as in `A: 30 books weigh 7.5 ...`."""
    words = page.text[first.end : region.end].split()
    is_named = "=" in page.text[region.start : first.start]  # as in `A: x = 6`
    is_sentence = is_named or len(words) > _MOST_UNIT_WORDS
    return is_sentence and _EQUALS.search(page.text, first.end, follows) is not None


def _boxed(page: Page, mark: Mark) -> Given | None:
    limit = mark.limit
    if not mark.is_closed:
        newline = page.text.find("\n", mark.content, mark.limit)
        limit = newline if newline > 0 else mark.limit
    return _spaced_numeral(page, mark, limit) or _of_sentence(page, mark, Span(mark.content, limit))


def _spaced_numeral(page: Page, mark: Mark, limit: int) -> Given | None:
    """The one numeral that a box or tag holds and nothing else, such as `1 234`."""
    reading = Reading(page.reading.points_group, spaces_group=True)
    found = list(numerals(page.text, mark.content, limit, reading))
    if len(found) != 1 or found[0].number is None:
        return None
    rest = page.text[mark.content : found[0].start] + page.text[found[0].end : limit]
    return Given(found[0], mark.shape) if not rest.strip(f" \n$.{BOLD}") else None


def _first(page: Page, region: Span) -> Numeral | None:
    """The numeral that the region begins with, but for words such as `about`."""
    text = page.text
    filler = _FILLER.match(text, region.start, region.end)
    edge = filler.end() if filler else region.start
    reading = Reading(page.reading.points_group, spaces_group=True)
    first = next(numerals(text, region.start, region.end, reading), None)
    if first is not None:
        return first if first.start <= edge and not first.is_ordinal else None
    return chinese_numeral(text, edge)


def _said(page: Page, mark: Mark, region: Span) -> Given | None:
    """The number of a sentence, unless it only says what would be if something else were."""
    is_supposed = _WOULD.search(page.text, mark.start, mark.content) is not None
    if is_supposed and _IF.search(page.text, region.start, region.end):
        return None
    return _of_sentence(page, mark, region)


def _of_sentence(page: Page, mark: Mark, region: Span) -> Given | None:
    if is_refusal(page.text, region):
        return None
    none = so_none_left(page, region)
    if none is not None:
        return Given(none.numeral, mark.shape)
    pick = choose(page.text, region, page.numerals(region))
    if pick.numeral is not None:
        return Given(pick.numeral, mark.shape)
    return worded_answer(page, region) if pick.outcome == "nothing" else None


def _worked_out(page: Page, mark: Mark, region: Span, follows: int) -> Given | None:
    """The number of `A:` or `Answer:` with more than a number behind it.

    A sentence that states it, and what follows only explains; or working, which ends in it.
    """
    first = _of_sentence(page, mark, region)
    has_working = _EQUALS.search(page.text, region.start, follows)
    if first is not None and not has_working:
        return first
    return _concluded(page, mark, follows) or first


def _concluded(page: Page, mark: Mark, end: int) -> Given | None:
    last = conclusion(page, mark.content, end)
    return Given(last.numeral, mark.shape) if last else None
