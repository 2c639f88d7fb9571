"""Finds the number that an answer announces: the number after the last mark that has one.

A phrase whose number is not the next word, such as `The answer makes sense because it is less than
20.`, is a remark if an answer was announced before it. Its number replaces the announced one only
if the phrase corrects (`Wait, ...`) or concludes (`So the answer is ...`).

| after the mark                | the number is                                                    |
|-------------------------------|------------------------------------------------------------------|
| a number, directly            | that number, unless it is part of an expression or a range       |
| a sentence                    | the answer of that sentence (sentence.py)                        |
| working, after `A:`           | what the working concludes (conclusion.py)                       |
| nothing, and the line ends    | found on the next line, by the rules above                       |
"""

from __future__ import annotations

import re
from itertools import pairwise

from redline.tasks.answers.conclusion import (
    answer_of,
    concluded,
    concludes,
    correction_start,
    is_refused,
)
from redline.tasks.answers.mark import Mark, marks
from redline.tasks.answers.markup import BOLD, HASHES
from redline.tasks.answers.numeral import Numeral, Span, chinese_numeral, word_numerals
from redline.tasks.answers.page import Page
from redline.tasks.answers.sentence import is_part

_MOST_MARKS = 64
_MOST_REGION = 600
_MOST_UNIT_WORDS = 5  # as in `18 dollars a day`

_FILLER = re.compile(
    rf"(?i)(?:[\s\"'*_()\[:=~≈,>|.…$+—→{BOLD}{HASHES}]|(?<!\w)[a-z][ ]?=(?!=)|\([A-E]\)[ ]?|"
    r"(?<![A-Za-z])(?:therefore|thus|then|simply|just|only|exactly|approximately|about|"
    r"around|roughly|equal to|now|indeed|actually|clearly|also|still|the number|the|of|"
    r"ist|est|es)(?!\w)|约|約)*+",
)
_AND = re.compile(r"[ ]*(?:[,;][ ]*)?(?:(?:and|or)[ ]*)?")
# Comes before a number in a text that begins with another one, such as a title or a year.
_TOTAL = re.compile(r"(?i)\W{0,8}the (?:\w+ )?(?:total|sum|result)(?: \w+){0,4} (?:is|was)\W{0,8}")
_EQUALS = re.compile(r"=|\bequals\b")


def announced(page: Page, is_cut: bool) -> tuple[Numeral | None, bool]:
    """Returns the announced number, or None, and whether the text was cut within a number.

    is_cut: the text was cut, so a number at its very end may lack digits and does not count.
    """
    follows = len(page.text)
    own = [mark for mark in marks(page.text) if not mark.is_doubtful]
    remark: tuple[Mark, Numeral] | None = None
    for mark in reversed(own[-_MOST_MARKS:]):
        is_enclosed = mark.shape in {"boxed", "tag"}
        given = _enclosed(page, mark) if is_enclosed else _following(page, mark, follows)
        follows = min(follows, mark.start)
        if given is None:
            continue
        is_next = is_enclosed or _is_next(page, mark, given)
        if mark.shape == "phrase" and not is_next and not concludes(page, mark.start):
            remark = remark or (mark, given)
            continue
        # Working after `A:` may itself contain the phrase.
        is_working = mark.may_be_working and not is_next
        if remark and (is_working or correction_start(page, given.end) <= remark[0].start):
            break
        return _whole(page, mark, given, is_cut)
    return _whole(page, *remark, is_cut) if remark else (None, False)


def opening(page: Page) -> Numeral | None:
    """Returns the number that an answer begins with, alone in a paragraph before an explanation."""
    if len(page.sentences) < 2:
        return None
    first, second = page.sentences[:2]
    is_paragraph = "\n\n" in page.text[first.end : second.start]
    is_corrected = correction_start(page, first.end) < len(page.text)
    given = _alone(page, first) if is_paragraph and not is_corrected else None
    if given and given.number and given.number.value == 1:
        return None  # the number of a first step
    later = given and concluded(page, second.start, len(page.text))
    if later is None:
        return given
    is_total = _TOTAL.fullmatch(page.text, page.sentence_start(later.start), later.start)
    return None if is_total or concludes(page, later.start) else given


def _whole(page: Page, mark: Mark, given: Numeral, is_cut: bool) -> tuple[Numeral | None, bool]:
    """Returns the number, or None if the text was cut within it, and whether it was cut there."""
    is_open = (is_cut or mark.is_open) and given.end >= len(page.text.rstrip())
    return None if is_open else given, is_open


def _is_next(page: Page, mark: Mark, given: Numeral) -> bool:
    """Returns whether nothing but filler is between a mark and its number."""
    filler = _FILLER.match(page.text, mark.content, given.start)
    return filler is not None and filler.end() == given.start


def _following(page: Page, mark: Mark, follows: int) -> Numeral | None:
    """Returns the number after a mark, or None. follows: the start of the next mark."""
    regions = page.within(mark.content, min(follows, mark.content + _MOST_REGION))
    if not regions or is_refused(page.text, mark.start):
        return None
    region = regions[0]
    filler = _FILLER.match(page.text, *region)
    edge = filler.end() if filler else region.start
    found = page.numerals(region, spaces_group=True)
    first = next(iter(found or word_numerals(page.text, edge, region.end)), None)
    if first is None and edge < region.end:
        first = chinese_numeral(page.text, edge)
    is_worked_out = mark.may_be_working and _EQUALS.search(page.text, region.start, follows)
    if first is not None and first.start <= edge:
        if first.number is None:
            return None
        # In `A: 30 books weigh 7.5 ...` the working begins with the first number.
        words = page.text[first.end : region.end].split()
        begins_working = is_worked_out and (
            "=" in page.text[region.start : first.start] or len(words) > _MOST_UNIT_WORDS
        )
        if not begins_working and not is_part(page.text, region, found or [first]):
            return first
    elif mark.shape == "hashes":
        return None
    given = answer_of(page, region, may_be_worded=True).numeral
    if mark.may_be_working and (given is None or is_worked_out):
        given = concluded(page, mark.content, follows) or given
    return given


def _enclosed(page: Page, mark: Mark) -> Numeral | None:
    """Returns the only number in a box or tag, such as `1 234`, or the answer of its sentence.

    A box with numbers but no answer is a numeral without a number, so no earlier number counts.
    """
    span = Span(mark.content, mark.limit)
    if mark.is_open:
        line = page.of(span).partition("\n")[0]
        span = Span(mark.content, mark.content + len(line))
    alone = _alone(page, span)
    if alone is not None:
        return alone
    if mark.shape == "tag":
        return concluded(page, *span)
    found = page.numerals(span)
    is_list = all(_AND.fullmatch(page.text, a.end, b.start) for a, b in pairwise(found))
    if is_list and len({one.number for one in found}) > 1:
        return Numeral(*span, None)  # `17, 18` is not one number
    given = answer_of(page, span, may_be_worded=True).numeral
    return given or (Numeral(*span, None) if found else None)  # `2√3` is not a number


def _alone(page: Page, span: Span) -> Numeral | None:
    """Returns the number in this part of the text, or None if anything else is in it."""
    found = page.numerals(span, spaces_group=True)
    if len(found) != 1 or found[0].number is None:
        return None
    rest = page.text[span.start : found[0].start] + page.text[found[0].end : span.end]
    return None if rest.strip(f" \n$.{BOLD}") else found[0]
