"""The number that an answer concludes with where no mark announces it, or corrects itself to.

The sentences are read from the last one back. Passed over are closing words (`Let me know ...`),
sentences without a number, and those that only state an expression. A question that is not put to
the reader takes its paragraph with it: what stands before it there is the question that was asked.
A refusal ends the search, and so does a range or a time: that is the answer, and it is no number.
"""

from __future__ import annotations

import re
from fractions import Fraction

from redline.tasks.answers.numerals import Number, Numeral, word_numerals
from redline.tasks.answers.page import Given, Page
from redline.tasks.answers.plain_text import BOLD, BOX_END, TAG_END
from redline.tasks.answers.sections import Span
from redline.tasks.answers.sentence_number import choose

_CLOSING = re.compile(
    r"[^\w]{0,8}(?:(?:i )?hope|let me know|feel free|if you|please|tell me|would you|do you|"
    r"does (?:that|this)|is there|any (?:other |more )?questions|thank|happy to|glad to|"
    r"you're welcome|good luck|cheers|great (?:job|question)|don't hesitate|can i|shall i|want me|"
    r"i can|i'd be|i would be|have a|best|regards|enjoy|keep|note|remember|p\.?s|confidence)\b",
    re.IGNORECASE,
)
_TO_READER = re.compile(r"\b(?:you|your|help|sense|else|further|clear)\b", re.IGNORECASE)
_TAG_QUESTION = 16  # characters of `Right?` and `Does that fit?`
_GUESS = re.compile(
    r"(?!how|what|which|who|when|where|why|is |are |do |does |did )[^?]{1,24}\?$", re.I
)
_REFUSAL = re.compile(
    r"(?:\bnot|n't|\bno|without)\b[^.\n]{0,24}\b(?:enough|sufficient) (?:information|data|details)"
    r"|\binsufficient (?:information|data|details)|\bmissing (?:some |the )?(?:information|details)"
    r"|\b(?:information|data|details)(?: \w+)? (?:is|are) "
    r"(?:insufficient|incomplete|missing|not (?:enough|sufficient))"
    r"|(?<!\bno )\b(?:more|additional|further) (?:information|details) (?:is|are|would be) "
    r"(?:needed|required)|\bwould need to know\b"
    r"|\b(?:need|require)s? (?:more|additional|further) (?:information|details)"
    r"|can(?:not|'t) (?:be )?(?:determined?|answer(?:ed)?|solved?|say|tell|know|calculated?|"
    r"help|provide|assist)|(?:don't|do not) (?:know|have enough(?: information| data)?)"
    r"|\bi(?:'m| am) not sure|(?:unable|not able) to "
    r"(?:determine|answer|solve|say|tell|calculate|find|help|provide|assist)"
    r"|\bi can only (?:help|discuss|answer)\b|\bas an ai\b"
    r"|(?:\bimpossible|\bnot possible|\bno way) to "
    r"(?:determine|say|know|tell|answer|solve|give|find|calculate)"
    r"|\bunanswerable\b|\bno (?:definite |numerical )?answer is possible\b",
    re.IGNORECASE,
)
_TO_MARK = re.compile(r"[ ](?:to[ ]|the[ ])?")
_NEAR = 80
_AFTERWARDS = re.compile(
    r"^[^\w\n]{0,8}(?:(?:explanation|verification|(?:double[- ])?check|proof|justification|notes?|"
    rf"nb|disclaimer|p\.s\.)[ {BOLD}]*(?::|$)|(?:note that|to verify|we can (?:verify|check)|"
    r"let(?:'s| me) (?:verify|check|double))\b)",
    re.IGNORECASE | re.MULTILINE,
)
_CONCLUDES = re.compile(
    r"\b(?:so|therefore|thus|hence|altogether|total|finally|in all|left|now)\b", re.IGNORECASE
)
_IS_ONE = re.compile(r"\b(?:is|only|just|has|exactly|answer:?|left)[ ]*$", re.IGNORECASE)

_DANGLING = re.compile(
    r"(?:[-+*/×÷=(,:<]|\b(?:to|the|a|an|and|or|of|so|is|are|was|were|be|for|by|from|with|in|on|at|"
    r"we|she|he|they|it|i|her|his|their|its|then|because|since|which|that|if|but|as|than|have|has|"
    r"had|will|would|can|multiply|divide|subtract|add|both|equals))$",
    re.IGNORECASE,
)
_ENDINGS = frozenset(".!?。！？…)]}\"'|;」】") | {BOX_END, TAG_END}
_SHORT_LINE_WORDS = 3
_MOST_TRIED = 32  # sentences with numbers, of which none answers

_CORRECTION = re.compile(
    r"[^\w]{0,4}(?:wait|actually|correction|oops|sorry|hold on|no(?=[,.:])|no,? wait|hmm|apologies|"
    r"scratch that|my mistake|on (?:second thought|reflection)|i apologi[sz]e|i made an?|let me "
    r"(?:correct|fix|redo|re-?calculate|re-?examine|reconsider|re-?check)|(?:edit|update)(?=:)|oh|"
    r"i (?:mean|meant|miscounted|miscalculated)|make (?:that|it)|however|"
    r"my bad|strike that|rather(?=,)|i was (?:wrong|mistaken)|i (?:need|have) to correct|"
    r"(?:that|this|it|which|(?:that|this|my|the)(?: \w+)? (?:answer|result|number|calculation))"
    r"(?:'s| is| was) (?:wrong|incorrect|not (?:right|correct)|a mistake|an error)(?=[.,;:!]|$))"
    r"(?!\w)",
    re.IGNORECASE,
)
# A correction that is little more than the number itself, as in `Edit: 22.` or `Sorry, 22 eggs.`
_BARE = re.compile(
    r"[\s,:;—-]*(?:(?:so|then|the|right|correct|answer|total|it|that|this|is|it's|that's|should|be|"
    r"must|would|to)[\s:]+){0,8}$",
    re.IGNORECASE,
)
_MOST_BARE_WORDS = 2
_CORRECTS = re.compile(
    r"\b(?:wrong|mistakes?|errors?|incorrect|should be|not right|not correct|forgot|missed|"
    r"overlooked|misread|miscounted|miscalculated|recalculat\w+|correction|corrected|instead|"
    r"i mean|i meant)\b",
    re.IGNORECASE,
)
_RECONSIDERS = re.compile(r"\b(?:actually|wait|oops)\b", re.IGNORECASE)
_DENIES = re.compile(r"[^.\n]{0,24}\bno\b", re.IGNORECASE)
_IF = re.compile(r"\bif\b", re.IGNORECASE)
_NONE = (
    r"(?:(?:\b(?:no [a-z]+(?: [a-z]+)?|none|nothing|nobody|no one)|(?:n't|\bnot)(?: be| have)? any"
    r"(?: [a-z]+){0,2})(?: of (?:them|the [a-z]+))?"
    r"(?: (?:is|are|was|were|will be|would be|has|have|had))?(?: been)? "
    r"(?:left|remain(?:s|ing|ed)?)|\bno remaining [a-z]+)\b"
)
_NONE_LEFT = re.compile(_NONE, re.IGNORECASE)
# Numbers before it, as in `She gave away all 12, so she has none left`, are no amounts of money.
_SO_NONE_LEFT = re.compile(
    rf"[^=$€£]*\b(?:so|therefore|thus|hence)\b[^=$€£\d.;]{{0,80}}?(?P<none>{_NONE})(?: over)?\W*$",
    re.IGNORECASE,
)
_THEREFORE = re.compile(r"\b(?:so|therefore|thus|hence|finally)\b", re.IGNORECASE)
_CONFIRMED = re.compile(
    r"\b(?:(?:that|this|it|which|answer) (?:is|was)|that's|it's|yes,?|looks|checks|seems) ?"
    r"(?:indeed |still |all |also )?(?:correct|right|out|good|fine)\b|\bconfirm(?:s|ed)\b",
    re.IGNORECASE,
)


def conclusion(page: Page, start: int, end: int) -> Given | None:
    """The answer of the last sentence of a part of the text that gives one.

    Notes and checks that stand after an answer are left out, unless they find a mistake. What
    follows a refusal is no answer unless it is worked out or concluded.
    """
    afterwards = _AFTERWARDS.search(page.text, start, end)
    if afterwards is not None:
        rest = (page.text, afterwards.end(), end)
        is_corrected = _CORRECTS.search(*rest) or _RECONSIDERS.search(*rest)
        before = None if is_corrected else _last_given(page, start, afterwards.start())
        if before is not None:
            return before
    return _last_given(page, start, end)


def correction(page: Page, start: int) -> Given | None:
    """What the text after an announced number corrects it to, or None where it lets it stand.

    `Actually` and its kin may also open a remark that corrects nothing, so a mistake must be named,
    or an equation be worked out again.
    """
    end = len(page.text)
    for span in page.within(start, end):
        opening = _CORRECTION.match(page.text, span.start, span.end)
        if opening is not None:
            if _CONFIRMED.search(page.text, span.start):
                return None
            given = _last_given(page, span.start, end)
            if given is None:
                return None
            is_meant = (
                given.shape == "equation"
                or _DENIES.match(page.text, span.start)
                or _CORRECTS.search(page.text, span.start)
                or _is_bare(page, opening.end(), given)
                or _is_reworked(page.text[opening.end() : given.numeral.start])
            )
            return given if is_meant else None
    return None


def _is_bare(page: Page, start: int, given: Given) -> bool:
    """Whether from `start` on there is the number, and next to nothing else in its sentence."""
    head = page.text[start : given.numeral.start]
    line = page.text[given.numeral.end :].split("\n", 1)[0]
    return bool(_BARE.match(head)) and len(line.split(". ", 1)[0].split()) <= _MOST_BARE_WORDS


def _is_reworked(text: str) -> bool:
    """Whether the text before a number works it out and concludes, as in `11 * 2 = 22. So ...`."""
    _, equals, after = text.partition("=")
    return bool(equals and _THEREFORE.search(after)) and not _IF.search(text)


def worded_answer(page: Page, span: Span) -> Given | None:
    """The number that a sentence gives in words; `one` only where it can be no pronoun.

    That none are left is 0.
    """
    found = [
        numeral
        for numeral in word_numerals(page.text, span.start, span.end)
        if not _is_pronoun(page.text, span, numeral)
    ]
    pick = choose(page.text, span, found)
    if pick.numeral is not None:
        return Given(pick.numeral, "words")
    none = None if found else _NONE_LEFT.search(page.text, span.start, span.end)
    return _zero(none.span()) if none else None


def so_none_left(page: Page, span: Span) -> Given | None:
    """Zero, if a sentence concludes that none are left, whatever numbers it names before."""
    none = _SO_NONE_LEFT.match(page.text, span.start, span.end)
    return _zero(none.span("none")) if none else None


def _zero(at: tuple[int, int]) -> Given:
    return Given(Numeral(*at, Number(Fraction(0))), "words")


def is_refusal(text: str, span: Span) -> bool:
    """Whether a sentence says that there is no answer."""
    return _REFUSAL.search(text, span.start, span.end) is not None


def refused(text: str, start: int) -> bool:
    """Whether a refusal ends where `start` is, as in `I cannot determine` before `the answer`."""
    begin = max(0, start - _NEAR)
    ends = [found.end() for found in _REFUSAL.finditer(text, begin) if found.start() < start]
    return any(end >= start or _TO_MARK.fullmatch(text, end, start) for end in ends)


def _is_refused(page: Page, spans: list[Span]) -> bool:
    """Whether one of these sentences is a refusal, and nothing is worked out after it."""
    for span in reversed(spans):
        if is_refusal(page.text, span):
            return True
        if "=" in page.text[span.start : span.end]:
            return False
    return False


def looks_cut(page: Page) -> bool:
    """Whether the text ends inside a sentence, so that its number may not have come yet."""
    if not page.sentences:
        return False
    last = page.sentences[-1]
    line = page.text[last.start : last.end].rstrip(f" *_`${BOLD}")
    if "<<" in line or _DANGLING.search(line):
        return True  # the first is a calculator's annotation that does not end
    is_spoken = line.isascii() and line[-1:].isalnum()  # no emoji, no tick, no other script
    if len(page.sentences) == 1 or not is_spoken:
        return False
    is_own_line = page.text[page.sentences[-2].end : last.start].count("\n") > 0
    is_short = is_own_line and len(line.split()) <= _SHORT_LINE_WORDS
    if is_short or _CLOSING.match(line):
        return False
    return not page.numerals(last) and not any(word_numerals(page.text, last.start, last.end))


def _last_given(page: Page, start: int, end: int) -> Given | None:
    spans = page.within(start, end)
    is_wordy = not any(character.isdigit() for character in page.text[start:end])
    at, tried = len(spans), 0
    while at > 0 and tried < _MOST_TRIED:
        at -= 1
        span = spans[at]
        text = page.text[span.start : span.end]
        if _is_question(text) and not _GUESS.match(text):
            if not _TO_READER.search(text) and len(text) > _TAG_QUESTION:
                at = _paragraph(page, spans, at)
            continue
        if _CLOSING.match(text):
            continue
        if is_refusal(page.text, span):
            return None
        none = so_none_left(page, span)
        if none is not None:
            return none
        found = page.numerals(span)
        tried += bool(found)
        pick = choose(page.text, span, found)
        if pick.numeral is not None:
            is_concluded = pick.shape == "equation" or _CONCLUDES.search(text)
            if not is_concluded and _is_refused(page, spans[:at]):
                return None
            return Given(pick.numeral, pick.shape)
        is_open_end = span.end == len(page.text) and text[-1] not in _ENDINGS
        if pick.outcome == "valueless" or (pick.outcome == "unsolved" and is_open_end):
            return None
        is_stated = is_wordy or _THEREFORE.search(text) or "=" not in page.text[start : span.start]
        if _NONE_LEFT.search(text) and not is_stated:
            continue  # a remark behind what was worked out
        if pick.outcome == "nothing" and (is_wordy or _CONCLUDES.search(text)):
            given = worded_answer(page, span)
            if given is not None:
                return given
    return None


def _is_question(text: str) -> bool:
    return text.rstrip(f" *_\"'){BOLD}").endswith(("?", "？"))


def _paragraph(page: Page, spans: list[Span], at: int) -> int:
    """The place of the first sentence in the paragraph of sentence `at`."""
    while at > 0 and "\n\n" not in page.text[spans[at - 1].end : spans[at].start]:
        at -= 1
    return at


def _is_pronoun(text: str, span: Span, numeral: Numeral) -> bool:
    if text[numeral.start : numeral.end].lower() != "one":
        return False
    return not _IS_ONE.search(text[span.start : numeral.start]) and numeral.start > span.start
