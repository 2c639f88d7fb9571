"""Picks the number that is the answer of one sentence.

| numbers                                                                | rank                    |
|------------------------------------------------------------------------|-------------------------|
| `9 * 2`, the 2 of `2x`, `2π` or `√2`: parts of an expression           | none                    |
| `Step 3`, `question 5`, `not 17`: names; `3 to 5`: ranges              | none                    |
| `(2 blue)`: asides                                                     | 0                       |
| `in 3 days`, `because she has 9`, `when x = 9`: remarks                | 1                       |
| numbers after `=`, or stated by the sentence about its subject         | 2                       |

The last number of the highest rank is the answer; numbers in bold take precedence over all others.
The words that make a number a remark are mostly English; in other languages the last number usually
counts, since results come last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from redline.tasks.answers.markup import BOLD, THIN
from redline.tasks.answers.numeral import Numeral, Span

Outcome = Literal["found", "nothing", "unsolved", "valueless"]

_NEAR = 60
_MOST_NUMERALS = 64
_RANGE, _NAMING, _OPERAND, _ASIDE, _REMARK, _MAIN = range(-3, 3)
_BLANK = rf"[ $*\"'{BOLD}{THIN}]*"
_EQUALS = re.compile(r"(?<![<>!=])=(?![=>])|≈|\bequals\b|\bis equal to\b")
_TO_RESULT = re.compile(rf"{_BLANK}\(?(?:(?:approximately|about|roughly|around) )?{_BLANK}")
_NEW_CLAUSE = re.compile(r"[,;:]|\b(?:so|thus|therefore|hence|making|which|because|since)\b")

_OPERATOR = (
    r"(?:[+×÷*·^]|/(?!\w*[A-Za-z]{2})|[xX](?=[ ]?\d)|(?:times|multiplied by|divided by)(?=[ ]\d))"
)
_UNIT = rf"(?:{_BLANK}(?:\([^()]{{0,40}}\)|[A-Za-z/°%²]+)){{0,5}}?"
# After a unit, a dash is a minus only in a sentence with an equals sign.
_OPERATOR_NEXT = re.compile(
    rf"[xyznXYZNi](?![A-Za-z])|{_BLANK}(?:π|√(?:[(\[a-z]|[ ]?\d))|"
    rf"{_BLANK}\)?{_BLANK}(?:{_OPERATOR}|-){_BLANK}\(?-?[$€£]?(?:[\d.(√π]|"
    rf"[a-z]\b)|{_UNIT}{_BLANK}[×÷*·+/]{_BLANK}\(?[$€£]?[\d(]|{_BLANK}[+×*·]{_BLANK}[A-Za-z]"
)
_OPERATOR_BEFORE = re.compile(
    rf"(?:(?:[\d)%²π]|(?<![A-Za-z])[A-Za-z]){_BLANK}(?:{_OPERATOR}|-)|"
    rf"[A-Za-z)°]{_BLANK}(?:[×÷*·+]|/[ ])){_BLANK}\(?$|"
    r"√(?:\[\w\])?[ \[(]?$|\b(?:times|multiplied by|divided by|plus|minus)[ ]$"
)

# A comma or colon within a numeral (`1,500`, `3:4`) does not end a clause.
_IN_CLAUSE = r"(?:[^,;:]|(?<=\d)[,:](?=\d))"
_NAME = re.compile(
    r"(?i)(?:\b(?:step|part|problem|question|exercise|example|option|method|case|equation|figure|"
    r"table|item|phase|chapter|page|section|approach|stage|round|not|isn't|wasn't)|第)[ ]*#?$",
)
_REMARK_BEFORE = re.compile(
    rf"(?i)(?:\b(?:per|every|after|before|in|within|during|over|from|than|at|among|between|on|since|"
    r"(?:as|than) \w+'s|nearest|"
    r"until|till|the|these|those|all|both|its|their|his|my|our|your|each|first|last|next|other|"
    r"with|by|as|or|through|across|into|against|versus|vs|day|week|month|year|hour|class|grade|"
    r"level|number|no|room|age|aged|nach|pro|für|bei|mit|en|por|para|pour|après|за|через|(?:by|"
    r"from|after|for|when|while|of|before|since|with)[ ]\w+ing|(?:out|each|all|any|half|one|most|"
    r"some|rest)[ ]of|\d[\w% ]{0,12}\bof|of her|(?:earlier|previous|initial) "
    r"(?:answer|result|guess) of|at an?(?: \w+){1,3} of|(?:compared|relative|close|"
    r"next)[ ]to|of[ ]which|including|(?:goal|target|capacity|budget|limit)[ ]of|"
    r"(?!needs?|needed|has|have|had|going|able|wants?|ought|expects?)\w+[ ]to[ ]\w+)|"
    r"(?P<money_too>\bfor))(?:[ ](?:about|approximately|roughly|around|exactly|only|just|nearly|"
    r"almost|another|additional|"
    rf"extra|further|full|whole|remaining|original|initial))*[ $\"'({BOLD}{THIN}]*$",
)
# Precedes what is left or reached in the end: `leaving him with 18`.
_LEFT_WITH = re.compile(
    r"(?i)\b(?:left|leav(?:es?|ing)(?: \w+)?|end(?:s|ed|ing)?(?: up)?) with\b[^\d,;:]{0,20}$"
)
# Precedes the value of a variable that a condition sets: `when x = 3`.
_GIVEN = re.compile(
    r"(?i)\b(?:when|at|for|if|with|let|substitut(?:e|es|ing)|plug(?:ging)? in)[ ][ $(]*[a-z]\)?"
    r"[ ]?=[ $(]*-?$"
)
# `after adding the tip` has no finite verb, so a finite verb is part of the main clause.
_CLAUSE = re.compile(
    r"(?i)\b(?!(?:after|before|when|while)[ ]\w+ing\b[^,;:]* (?:is|are|was|were|has|have)\b)"
    r"(?:because|since|if|when|while|given|assuming|considering|although|though|where|unless|"
    r"whereas|after|before|once|until|weil|wenn|indem|nachdem|bevor|parce que|puisque|porque|"
    r"ya que)\b"
    rf"{_IN_CLAUSE}*$",
)
_REASON = re.compile(rf"(?i)\b(?:because|since)\b(?:(?!\b(?:so|then|that)\b){_IN_CLAUSE})*$")
_REMARK_AFTER = re.compile(
    r"-[A-Za-z]|%?[ ](?:[A-Za-z]+[ ]){0,2}?(?:(?:more|fewer|less|older|younger|taller|longer)\b"
    r"[^.,;]{0,30}\bthan\b|times (?:as|the|more|larger|bigger|that)\b)"
)
_CONCLUDED = re.compile(r"(?i)\b(?:so|thus|therefore|hence)\b" + _IN_CLAUSE + "*$")
# Finds the 3 and the 20 of `200 minutes, or 3 hours and 20 minutes`.
_LARGE_UNIT = re.compile(
    r"[ ](?:years?|weeks?|days?|hours?|hrs?|minutes?|feet|foot|ft)(?:,?[ ]and)?[ ]"
)
_SMALL_UNIT = re.compile(
    r"[ ](?:months?|days?|hours?|hrs?|min(?:ute)?s?|sec(?:ond)?s?|inch(?:es)?)\b"
)
# Finds the 100 and the 50 of `150 loaves: 100 white and 50 brown`, and the 12 of `20, 12 of them`.
_PART_OF_TOTAL = re.compile(
    r"\d[^:]*:[ ](?:[^:]*\d[^:]*\0|\0[^:]*(?:,| and)[^:]*\d)|"
    r"\d[^:]*,[ ]\0(?:[ ][A-Za-z]+)?[ ]of (?:which|them)\b"
)
_EACH = re.compile(r"[ ](?:[A-Za-z]+[ ])?(?:each|apiece|per|a piece)\b|/[A-Za-z]")
_IN_RANGE = re.compile(
    rf"(?:\b(?:between|zwischen|entre)[ ]{_BLANK}\0[A-Za-z ]{{0,20}}[ ](?:and|und|et|y)[ $]*|"
    rf"(?<!\bfrom[ ])(?<!\bby[ ])\0{_BLANK}[ ]to[ ]{_BLANK})$"
)
# Finds the 50 and the 60 of `20 %, from 50 to 60`.
_FROM_TO = re.compile(rf"\bfrom[ ]{_BLANK}\0[^\d.,;:]{{0,20}}[ ]to[ ]{_BLANK}$")


class Pick(NamedTuple):
    """The answer of a sentence.

    found: `numeral` is the answer. nothing: the sentence has no number. unsolved: it has only parts
    of an expression, such as `9 * 2`. valueless: it has a range, a time or an overlong number, or
    declines to answer. is_result: the answer follows an equals sign, in digits and not in bold.
    """

    outcome: Outcome
    numeral: Numeral | None = None
    is_result: bool = False


def choose(text: str, span: Span, found: Sequence[Numeral]) -> Pick:
    """Chooses the answer among the numerals `found` in the sentence of plain text at `span`.

    Only the last 64 numerals are considered, so that a sentence of any length takes linear time.
    """
    numerals = list(found[-_MOST_NUMERALS:])
    ranks, result = _ranks(text, span, numerals)
    candidates = [(rank, one) for rank, one in zip(ranks, numerals, strict=True) if rank >= 0]
    if not candidates:
        if _RANGE in ranks or any(numeral.number is None for numeral in numerals):
            return Pick("valueless")
        return Pick("unsolved" if _OPERAND in ranks else "nothing")
    bold = [(rank, one) for rank, one in candidates if is_bold(text, one)]
    _, best = max(bold or candidates, key=lambda candidate: (candidate[0], candidate[1].start))
    if best.number is None:
        return Pick("valueless")
    return Pick("found", best, is_result=best is result and not bold)


def is_part(text: str, span: Span, found: Sequence[Numeral]) -> bool:
    """Returns whether the first numeral of a sentence is part of an expression or of a range."""
    ranks, _ = _ranks(text, span, list(found[:_MOST_NUMERALS]))
    return ranks[0] in (_OPERAND, _RANGE)


def _ranks(text: str, span: Span, numerals: list[Numeral]) -> tuple[list[int], Numeral | None]:
    """Returns the rank of each numeral, and the last result."""
    results = _results(text, span, numerals)
    result = results[-1] if results else None
    ranks: list[int] = []
    for numeral in numerals:
        head = text[max(span.start, numeral.start - _NEAR) : numeral.start]
        tail = text[numeral.end : min(span.end, numeral.end + _NEAR)]
        rank = _rank(head, tail, text[numeral.start])
        if numeral in results:
            is_remark = _REASON.search(head) or _is_aside(head)
            rank = _REMARK if is_remark else _MAIN
        elif _OPERATOR_NEXT.match(tail) or _OPERATOR_BEFORE.search(head):
            rank = _OPERAND
        elif result is not None and rank == _MAIN:
            first, last = sorted((numeral, result))
            if not _NEW_CLAUSE.search(text, first.end, last.start):
                # The 2 of `= $18 a day at 2 markets`, and of `9 eggs - 2 eggs = 7 eggs`.
                rank = _REMARK if first is result else _OPERAND
        ranks.append(rank)
    for at, (one, other) in enumerate(pairwise(numerals)):
        head = text[max(span.start, one.start - _NEAR) : one.start]
        if _IN_RANGE.search(f"{head}\0{text[one.end : other.start]}"):
            ranks[at] = ranks[at + 1] = _RANGE
        elif _FROM_TO.search(f"{head}\0{text[one.end : other.start]}"):
            ranks[at + 1] = min(_REMARK, ranks[at + 1])  # `20 %, from 50 to 60`
        elif _LARGE_UNIT.fullmatch(text, one.end, other.start) and _SMALL_UNIT.match(
            text, other.end, span.end
        ):
            ranks[at] = ranks[at + 1] = min(_REMARK, ranks[at])
    return ranks, result


def _results(text: str, span: Span, numerals: list[Numeral]) -> list[Numeral]:
    """Returns the numerals that directly follow an equals sign and precede no operator."""
    found: list[Numeral] = []
    equals = [sign.end() for sign in _EQUALS.finditer(text, span.start, span.end)]
    for before, numeral in pairwise([Numeral(0, span.start, None), *numerals]):
        signs = [end for end in equals if before.end <= end <= numeral.start]
        head = text[max(span.start, numeral.start - _NEAR) : numeral.start]
        is_next = (
            signs
            and not _GIVEN.search(head)
            and _TO_RESULT.fullmatch(text, signs[0], numeral.start)
        )
        if is_next and not _OPERATOR_NEXT.match(text, numeral.end, span.end):
            found.append(numeral)
    return found


def _is_aside(head: str) -> bool:
    opening = head.rfind("(")
    return opening > head.rfind(")") and bool(head[:opening].strip())


def _rank(head: str, tail: str, first: str) -> int:
    if _NAME.search(head):
        return _NAMING
    remark = None if _LEFT_WITH.search(head) else _REMARK_BEFORE.search(head)
    is_price = remark and remark["money_too"] and not first.isdigit() and not _EACH.match(tail)
    is_remark = remark and not is_price
    is_remark = is_remark or _PART_OF_TOTAL.search(f"{head}\0{tail}") is not None
    if _is_aside(head):
        return _ASIDE
    if is_remark or _CLAUSE.search(head) or _GIVEN.search(head):
        return _REMARK
    if _REMARK_AFTER.match(tail) and not _CONCLUDED.search(head):
        return _REMARK
    return _MAIN


def is_bold(text: str, numeral: Numeral) -> bool:
    """Returns whether a numeral of plain text is in bold."""
    line = max(text.rfind("\n", 0, numeral.start) + 1, numeral.start - 2000)
    return text.count(BOLD, line, numeral.start) % 2 == 1
