"""The letter that an answer to a multiple-choice question chooses.

| in this order                      | as in                                                     |
|------------------------------------|-----------------------------------------------------------|
| the last that is announced,        | `The answer is (C).`, `Answer: b`, `\\boxed{C}`            |
| or chosen, or called right         | `I choose C`, `So (C).`, `Option C is correct`, `选C`     |
| the letter that a line begins with | `C`, `**C) 18**`, `C. Because ...`: the first or the last |
| the only letter that is mentioned  | `That leaves option C`, in the last sentence              |

Two letters at once (`A and C`, `A or B`) choose none. Options that are only listed choose none. A
small letter counts where it can be no word: `b)`, `(b)`, `the answer is b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from redline.tasks.answers.mark import marks
from redline.tasks.answers.markup import BOLD, BOX_END, HASHES, TAG_END, plain_text
from redline.tasks.answers.page import Page, page_of
from redline.tasks.answers.reasoning import spoken, without_run_on

_ALIKE = str.maketrans("АВСЕабсе", "ABCEabce")  # Cyrillic letters that look like Latin ones
_ALONE = r"(?![A-Za-z0-9'])"
_BLANK = rf"[\s\"'*_$:{BOLD}{HASHES}]{{0,8}}"
_FILLER = re.compile(
    rf"(?:[\s\"'*_$:=,—{BOLD}{HASHES}]|(?:therefore|thus|then|indeed|clearly|simply|probably|"
    r"likely|most likely|the|option|choice|letter|answer|alternative|number|item|вариант|la|el|le|"
    r"die|der|das|opción|opção|lettre|letra|buchstabe|选项|選項)(?!\w))*+",
    re.IGNORECASE,
)
_LETTER = re.compile(
    rf"(?P<open>[\[(])?{_BLANK}(?P<letter>[A-Za-zАВСЕабсе]){_BLANK}(?P<close>[\])])?"
    rf"(?P<end>[.,;:!?。]|$|\n|[{BOLD}{BOX_END}{TAG_END}\"'$])?(?![A-Za-z'’])"
)
_MORE = re.compile(
    rf"{_BLANK}[\])]?{_BLANK}(?:,|/|&|(?:,[ ]?)?(?:and|or|und|oder|y|et|ou|和|或|と)(?![a-z]))"
    rf"{_BLANK}(?:option |choice )?[\[(]?(?P<letter>[A-Z]){_ALONE}"
)
_WORD_NEXT = re.compile(
    r"[ ](?!because|since|as|and|or|but|not|which|is|for|rather|with|given|here|due|would)[a-z]"
)
_INNER = re.compile(r"(?:option|choice|letter|选项)[ ]?[\[(]?([A-Z])(?!\w)|[\[(]([A-Z])[\])]")

_X = rf"{_BLANK}[\[(]?{_BLANK}(?P<letter>[A-Z]|[a-z](?=[).\]])){_BLANK}[\])]?{_ALONE}"
_CHOSEN = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        rf"(?<![A-Za-z]){_X}[.:,]?(?i:[ ](?:is|must be|seems to be|would be|being)[ ](?:the |"
        r"indeed |therefore |thus |clearly |most |also )*(?:correct|right|best|answer|accurate|"
        r"true)\b)",
        r"\b(?i:i(?:'d|'ll| would| will)? (?:choose|select|pick|go with|prefer|say)|choose|select|"
        r"pick|it(?:'s| is| must be| has to be| should be)|my (?:choice|pick) is|but)(?:[ ]?:)?"
        rf"(?i:[ ](?:option|choice|answer))?{_X}",
        r"\b(?i:so|thus|therefore|hence)[ ,:]*(?i:(?:it is|it's|the|we choose|we have)[ ])?"
        rf"(?i:option |choice )?{_X}[ {BOLD}]{{0,8}}[.!]?[ {BOLD}]{{0,8}}$",
        r"(?i:(?:best|correct|right|proper|good) (?:option|choice|guess|alternative|statement))"
        rf"[^.\n]{{0,40}}?(?:\bis\b|:){_X}",
        rf"(?i:option|choice)[ ]?(?:is\b|:){_X}",
        rf"\"(?:choice|option|letter|label)\"[ ]?:{_X}",
        rf"(?:答案|答え|正解|정답)[】\]\s:是为為はは은는]{{0,4}}{_X}",
        rf"(?:选|選)(?:项|項|择|擇)?{_X}",
    )
)
_NOT_BEFORE = re.compile(
    r"\b(?:not|isn't|n't|neither|if|either)[ ]?(?:option |choice |answer )?\(?(?:[A-Z]\)?)?$", re.I
)
_LINE = re.compile(
    rf"^{_BLANK}(?i:(?:option|choice|answer)[ ])?(?:[\[(][ ]?(?P<a>[A-Za-z])[ ]?[\])]|"
    rf"(?P<b>[A-Za-z])[).:]|(?P<c>[A-Za-z])[ {BOLD}\"'$.!]*$|"
    rf"(?P<d>[A-Z])(?:{BOLD}|[ ]?[—(]|[ ]-|[ ](?:because|since)\b))"
)
_OPTION = re.compile(r"(?:^|[\s(\[])([A-Z])[).:\]][ ]")
_MENTIONED = re.compile(
    r"[\[(]([A-Za-z])[\])]|(?i:\b(?:options?|choice|letter|leaves|leaving|opción|opção))"
    rf"[ ]\(?([A-Z]){_ALONE}"
)
_ANSWERED = re.compile(
    rf"^{_BLANK}[\[(]?[A-Z][\])]?[ {BOLD}.]*$|^[ {BOLD}]*(?:A|(?i:answer))[ {BOLD}]*:|"
    rf"(?:\b(?i:answer)\b|答案|[{HASHES}])[^\n.]{{0,40}}?(?<!\w)[A-Z](?!\w)",
    re.MULTILINE,
)
_NEAR = 24
_MOST_CHOSEN = 64


class _Choice(NamedTuple):
    """Where a letter is chosen, and which; none where two are."""

    at: int
    letter: str | None


def final_choice(answer: str, letters: str = "ABCD") -> str | None:
    """The letter, as in `letters`, that the answer chooses, or None where it chooses none or two.

    letters: the options there are, as capitals. Time is linear in the answer's length. Never
    raises.
    """
    page = page_of(without_run_on(plain_text(spoken(answer)), _ANSWERED))
    chosen = [*_announced(page, letters), *_called(page, letters)]
    if chosen:
        return max(chosen, key=lambda choice: choice.at).letter
    return _line_letter(page, letters) or _only_mentioned(page, letters)


def _announced(page: Page, letters: str) -> Iterator[_Choice]:
    for mark in marks(page.text)[-_MOST_CHOSEN:]:
        regions = page.within(mark.content, mark.limit)
        if not regions:
            continue
        start, end = regions[0]
        filler = _FILLER.match(page.text, start, end)
        found = _LETTER.match(page.text, filler.end() if filler else start, end)
        if found is not None and (letter := _accepted(page.text, found, letters)):
            is_two = _two(page.text, found, letters)
            yield _Choice(found.start("letter"), None if is_two else letter)
            continue
        inner = _INNER.search(page.text, start, end)
        is_denied = inner and _NOT_BEFORE.search(page.text, start, inner.end())
        if inner is not None and not is_denied and (inner[1] or inner[2]) in letters:
            yield _Choice(inner.start(), inner[1] or inner[2])


def _accepted(text: str, found: re.Match[str], letters: str) -> str | None:
    """The option that the match names, or None where the letter may be a word or is no option."""
    letter = found["letter"].translate(_ALIKE)
    is_marked = found["close"] or found["end"] is not None
    may_be_word = letter.islower() or letter == "A"
    if may_be_word and not is_marked and _WORD_NEXT.match(text, found.end("letter")):
        return None
    if letter.islower() and not is_marked and not found["open"]:
        return None
    return letter.upper() if letter.upper() in letters else None


def _two(text: str, found: re.Match[str], letters: str) -> bool:
    more = _MORE.match(text, found.end("letter"))
    return more is not None and more["letter"] in letters


def _called(page: Page, letters: str) -> Iterator[_Choice]:
    for pattern in _CHOSEN:
        for count, found in enumerate(pattern.finditer(page.text)):
            head = page.text[max(0, found.start() - _NEAR) : found.start("letter")]
            letter = found["letter"].upper()
            if count < _MOST_CHOSEN and letter in letters and not _NOT_BEFORE.search(head):
                yield _Choice(found.start("letter"), letter)


def _line_letter(page: Page, letters: str) -> str | None:
    """The letter that the first line or the last begins with, unless options are listed."""
    if len({option for option in _OPTION.findall(page.text) if option in letters}) > 1:
        return None
    lines = [line for line in page.text.split("\n") if line.strip()]
    for line in (*lines[:1], *lines[-1:]):
        found = _LINE.match(line)
        letter = found and (found["a"] or found["b"] or found["c"] or found["d"])
        if letter and letter.upper() in letters:
            return letter.upper()
    return None


def _only_mentioned(page: Page, letters: str) -> str | None:
    if not page.sentences:
        return None
    last = page.sentences[-1]
    found = {
        (mention[1] or mention[2]).upper()
        for mention in _MENTIONED.finditer(page.text, last.start, last.end)
        if (mention[1] or mention[2]).upper() in letters
        and not _NOT_BEFORE.search(page.text, last.start, mention.end())
    }
    return found.pop() if len(found) == 1 else None
