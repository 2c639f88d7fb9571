"""Which number of one sentence is its answer.

| role    | numbers                                                     | is the answer         |
|---------|-------------------------------------------------------------|-----------------------|
| operand | `9 * 2`, the 2 of `2x`: parts of what is to be worked out   | never                 |
| name    | `Step 3`, `question 5`, `not 17`                            | never                 |
| range   | `between 3 and 5`, `3 to 5`                                 | never                 |
| result  | what stands after `=`                                       | the last of these two |
| main    | what the sentence says of its subject                       | the last of these two |
| side    | `in 3 days`, `per 7 eggs`, `(2 blue)`, `because she has 9`  | where none is main    |
| ordinal | `the 18th day`                                              | where nothing is left |

A number in bold goes before others of its sentence. The words that make a number a side remark are
English; elsewhere the last number of the sentence is taken, which is where a result stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from redline.tasks.answers.numerals import Numeral
from redline.tasks.answers.plain_text import BOLD, THIN
from redline.tasks.answers.sections import Span

Outcome = Literal["found", "nothing", "unsolved", "valueless"]
Role = Literal["operand", "name", "range", "main", "result", "side", "ordinal"]

_NEAR = 60
_MOST_NUMERALS = 64
_RANKS = {"ordinal": 0, "side": 1}  # of all other roles: 2
_BLANK = rf"[ $*\"'{BOLD}{THIN}]*"
_EQUALS = re.compile(r"(?<![<>!=])=(?![=>])|≈|\bequals\b|\bis equal to\b")
_TO_RESULT = re.compile(rf"{_BLANK}\(?(?:(?:approximately|about|roughly|around) )?{_BLANK}")

_UNITS = rf"(?:{_BLANK}(?:\([^()]{{0,40}}\)|[A-Za-z/°%²]+)){{0,5}}?"
_OPERATOR = (
    r"(?:[+×÷*·^]|/(?!\w*[A-Za-z]{2})|[xX](?=[ ]?\d)|times(?=[ ]\d)|multiplied by|divided by)"
)
_UNIT_ONLY = re.compile(r"[^,;.\d]{0,24}")
_NEXT = re.compile(rf"{_BLANK}\)?{_BLANK}(?:{_OPERATOR}|-){_BLANK}\(?-?[$€£]?(?:[\d.(]|[a-z]\b)")
_NEXT_TERM = re.compile(rf"{_BLANK}{_OPERATOR}{_BLANK}[A-Za-z_]\w*")
_NEXT_BY_UNIT = re.compile(rf"{_UNITS}{_BLANK}(?:{_OPERATOR}|[ ]-){_BLANK}\(?[$€£]?[\d(]")
_NEXT_UNIT_TIMES = re.compile(rf"{_UNITS}{_BLANK}[×÷*·+]{_BLANK}\(?[$€£]?[\d(]")
_LAST = re.compile(rf"(?:[\d)%²]|(?<![A-Za-z])[a-z]){_BLANK}(?:{_OPERATOR}|-){_BLANK}\(?$")
_LAST_BY_UNIT = re.compile(rf"[A-Za-z)°]{_BLANK}(?:[ ]-[ ]|[ ]/){_BLANK}\(?$")
_LAST_UNIT_TIMES = re.compile(rf"[A-Za-z)°]{_BLANK}[×÷*·+]{_BLANK}\(?$")
_LAST_WORD_OPERATOR = re.compile(r"(?:times|multiplied by|divided by|plus|minus)[ ]$")

_NAMES = re.compile(
    r"(?:\b(?:step|part|problem|question|exercise|example|option|method|case|equation|eq\.|figure|"
    r"table|item|phase|chapter|page|section|scenario|approach|stage|round|note|schritt|paso|étape|"
    r"not|isn't|wasn't)|第)[ ]*#?$",
    re.IGNORECASE,
)
_WORDS = re.compile(rf"((?:[A-Za-z']+[ ]+){{0,3}})([A-Za-z']+)[ $\"'({BOLD}{THIN}]*$")
_ADVERB = re.compile(
    r"about|approximately|roughly|around|exactly|only|just|nearly|almost|another|additional|extra|"
    r"further|full|whole|remaining"
)
_SIDE = re.compile(
    r"per|every|after|before|in|within|during|over|from|than|at|among|between|on|since|until|till|"
    r"the|these|those|all|both|its|their|his|my|our|your|each|first|last|next|other|with|by|as|or|"
    r"through|across|into|against|versus|vs|day|week|month|year|hour|class|grade|level|number|no|"
    r"room|age|aged|nach|pro|für|bei|mit|en|por|para|pour|après|за|через"
)
_BEFORE_GERUND = re.compile(r"by|from|after|for|when|while|of|before|since|with")
_OBLIGED = re.compile(r"need(?:s|ed)?|has|have|had|going|able|wants?|ought|expects?")
_SHARED = re.compile(r"out|each|all|any|half|one|most|some|rest")
_OF_NUMBER = re.compile(r"[\d%][\w ]{0,12}\bof[ $]*$|\bat an? (?:\w+ ){1,3}of[ $]*$")
_COMPARISON = re.compile(r"compared|relative|close|next")
_EACH = re.compile(r"[ ](?:[A-Za-z]+[ ])?(?:each|apiece|per|a piece)\b|/[A-Za-z]")
_COMPARED = re.compile(
    r"%?[ ](?:[A-Za-z]+[ ]){0,2}?(?:(?:more|fewer|less|older|younger|taller|longer)\b"
    r"[^.,;]{0,30}\bthan\b|times (?:as|the|more|larger|bigger|that)\b)"
)
_CLOCK = re.compile(r"[ ]?(?:[ap]\.?m\b|o'clock)", re.IGNORECASE)
_COMPOUND = re.compile(r"-[A-Za-z]")
_CLAUSE = re.compile(
    r"\b(?:because|since|if|when|while|given|assuming|considering|although|though|where|unless|"
    r"whereas|after|before|once|until|weil|wenn|parce que|porque)\b[^,;:]*$",
    re.IGNORECASE,
)
_REASON = re.compile(r"\b(?:because|since)\b(?:(?!\b(?:so|then|that)\b)[^,;:])*$", re.IGNORECASE)
_BETWEEN = re.compile(rf"\b(?:between|zwischen|entre)[ ]{_BLANK}$", re.IGNORECASE)
_FROM = re.compile(rf"\b(?:from|by)[ ]{_BLANK}$", re.IGNORECASE)
_AND = re.compile(r"[A-Za-z ]{0,20}[ ](?:and|und|et|y)[ $]*")
_TO = re.compile(rf"{_BLANK}[ ]to[ ]{_BLANK}")
_NEW_CLAUSE = re.compile(r"[,;:]|\b(?:so|thus|therefore|hence|making|which)\b")


class Pick(NamedTuple):
    """What a sentence answers.

    found: `numeral` is it. nothing: it has no number. unsolved: only parts of an expression, such
    as `9 * 2`. valueless: a range, a time or a number without end.
    """

    outcome: Outcome
    numeral: Numeral | None = None
    shape: Literal["bold", "equation", "sentence"] = "sentence"


def choose(text: str, span: Span, found: Sequence[Numeral]) -> Pick:
    """The answer among the numerals `found` of one sentence of plain text, which stands at `span`.

    Only the last 64 numerals are looked at, so that a sentence of any length takes linear time.
    """
    numerals = list(found[-_MOST_NUMERALS:])
    if not numerals:
        return Pick("nothing")
    roles = _roles(text, span, numerals)
    open_roles = ("main", "result", "side", "ordinal")
    candidates = [numeral for numeral in numerals if roles[numeral.start] in open_roles]
    if not candidates:
        kinds = set(roles.values())
        if "range" in kinds or any(numeral.number is None for numeral in numerals):
            return Pick("valueless")
        return Pick("unsolved" if "operand" in kinds else "nothing")
    bold = [numeral for numeral in candidates if _is_bold(text, numeral)]
    is_marked = 0 < len(bold) < len(candidates)
    pool = bold if is_marked else candidates
    best = max(pool, key=lambda numeral: (_RANKS.get(roles[numeral.start], 2), numeral.start))
    if best.number is None:
        return Pick("valueless")
    is_result = roles[best.start] == "result"
    shape: Literal["bold", "equation", "sentence"] = "equation" if is_result else "sentence"
    return Pick("found", best, "bold" if bold and best in bold else shape)


def is_part(text: str, span: Span, found: Sequence[Numeral]) -> bool:
    """Whether the first numeral of a sentence is part of an expression or of a range."""
    return _roles(text, span, list(found[:_MOST_NUMERALS]))[found[0].start] in ("operand", "range")


def _roles(text: str, span: Span, numerals: list[Numeral]) -> dict[int, Role]:
    equals = [found.span() for found in _EQUALS.finditer(text, span.start, span.end)]
    results = _results(text, span, numerals, equals)
    last = max((numeral.end for numeral in results), default=None)
    roles: dict[int, Role] = {}
    for numeral in numerals:
        if numeral in results:
            head = text[max(span.start, numeral.start - _NEAR) : numeral.start]
            roles[numeral.start] = "side" if _REASON.search(head) else "result"
            continue
        is_solved = last is not None and numeral.end <= last and _is_left(numeral, equals, text)
        if is_solved or _is_operand(text, span, numeral, bool(equals)):
            roles[numeral.start] = "operand"
            continue
        role = _spoken_role(text, span, numeral)
        is_unit = last is not None and numeral.start >= last and role == "main"
        if is_unit and not _NEW_CLAUSE.search(text, last or 0, numeral.start):
            role = "side"  # as the 2 of `= $18 a day at 2 markets`
        roles[numeral.start] = role
    _mark_ranges(text, span, numerals, roles)
    _mark_breakdown(text, span, numerals, roles)
    return roles


def _results(
    text: str, span: Span, numerals: list[Numeral], equals: list[tuple[int, int]]
) -> list[Numeral]:
    """The numerals that stand right after an equals sign with no operator behind them."""
    found: list[Numeral] = []
    at = 0
    for _, end in equals:
        while at < len(numerals) and numerals[at].start < end:
            at += 1
        if at == len(numerals):
            break
        numeral = numerals[at]
        gap = _TO_RESULT.fullmatch(text, end, numeral.start)
        if gap and not numeral.is_coefficient and not _has_operator_next(text, span, numeral, True):
            found.append(numeral)
    return found


def _is_left(numeral: Numeral, equals: list[tuple[int, int]], text: str) -> bool:
    """Whether an equals sign follows the numeral with nothing but a unit between."""
    after = next((start for start, _ in equals if start >= numeral.end), None)
    return after is not None and _UNIT_ONLY.fullmatch(text, numeral.end, after) is not None


def _is_operand(text: str, span: Span, numeral: Numeral, has_equals: bool) -> bool:
    if numeral.is_coefficient or _has_operator_next(text, span, numeral, has_equals):
        return True
    head = text[max(span.start, numeral.start - _NEAR) : numeral.start]
    patterns = (_LAST, _LAST_WORD_OPERATOR, _LAST_UNIT_TIMES)
    if any(pattern.search(head) for pattern in patterns):
        return True
    return has_equals and _LAST_BY_UNIT.search(head) is not None


def _has_operator_next(text: str, span: Span, numeral: Numeral, has_equals: bool) -> bool:
    end = min(span.end, numeral.end + _NEAR)
    patterns = (_NEXT, _NEXT_TERM, _NEXT_UNIT_TIMES)
    if any(pattern.match(text, numeral.end, end) for pattern in patterns):
        return True
    return has_equals and _NEXT_BY_UNIT.match(text, numeral.end, end) is not None


def _spoken_role(text: str, span: Span, numeral: Numeral) -> Role:
    head = text[max(span.start, numeral.start - _NEAR) : numeral.start]
    if _NAMES.search(head):
        return "name"
    if numeral.is_ordinal:
        return "ordinal"
    tail = text[numeral.end : min(span.end, numeral.end + _NEAR)]
    opening = head.rfind("(")
    if opening > head.rfind(")") and head[:opening].strip():
        return "side"
    if _CLOCK.match(tail):
        return "main"
    if _CLAUSE.search(head) or _COMPARED.match(tail) or _COMPOUND.match(tail):
        return "side"
    return "side" if _is_circumstance(head, tail, numeral.is_money) else "main"


def _is_circumstance(head: str, tail: str, is_money: bool) -> bool:
    """Whether the words before make the number a circumstance, as in `in 3 days`."""
    found = _WORDS.search(head)
    if found is None:
        return False
    words = ["", "", *found[1].lower().split(), found[2].lower()]
    while len(words) > 3 and _ADVERB.fullmatch(words[-1]):
        words.pop()
    first, before, word = words[-3:]
    if word == "for":
        return not is_money or _EACH.match(tail) is not None
    if word == "to":
        return _COMPARISON.fullmatch(before) is not None
    if word == "of":
        return bool(_SHARED.fullmatch(before) or _OF_NUMBER.search(head))
    if word.endswith("ing") and _BEFORE_GERUND.fullmatch(before):
        return True
    if before == "to" and first:
        return not _OBLIGED.fullmatch(first)
    if word == "her":  # the 5 of `take her 5 weeks` is no circumstance
        return before == "of" or _SIDE.fullmatch(before) is not None
    return _SIDE.fullmatch(word) is not None


def _mark_ranges(text: str, span: Span, numerals: list[Numeral], roles: dict[int, Role]) -> None:
    for one, other in pairwise(numerals):
        head = text[max(span.start, one.start - _NEAR) : one.start]
        is_between = _BETWEEN.search(head) and _AND.fullmatch(text, one.end, other.start)
        is_to = _TO.fullmatch(text, one.end, other.start) and not _FROM.search(head)
        if is_between or is_to:
            roles[one.start] = roles[other.start] = "range"


def _mark_breakdown(text: str, span: Span, numerals: list[Numeral], roles: dict[int, Role]) -> None:
    """After a colon that follows a main number, several more are its parts: `150: 100 and 50`."""
    colon = text.find(": ", span.start, span.end)
    before = [numeral for numeral in numerals if numeral.end <= colon]
    after = [numeral for numeral in numerals if numeral.start > colon]
    if colon < 0 or not before or roles[before[-1].start] != "main":
        return
    if sum(roles[numeral.start] == "main" for numeral in after) > 1:
        roles.update((numeral.start, "side") for numeral in after)


def _is_bold(text: str, numeral: Numeral) -> bool:
    line = max(text.rfind("\n", 0, numeral.start) + 1, numeral.start - 2000)
    return text.count(BOLD, line, numeral.start) % 2 == 1
