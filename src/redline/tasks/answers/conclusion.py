"""Finds the number that an unmarked answer concludes with, or that an answer corrects itself to.

The sentences are read from the last one back. Closing words (`Let me know ...`), sentences without
a number and those that only state an expression are skipped. A question that does not address the
reader is skipped together with the text before it in its paragraph, which repeats the prompt. A
refusal ends the search, and so does a range or a time, which is an answer but not a number.
"""

from __future__ import annotations

import re
from fractions import Fraction

from redline.tasks.answers.markup import BOLD, BOX_END, TAG_END
from redline.tasks.answers.numeral import Number, Numeral, Span, word_numerals
from redline.tasks.answers.page import Page
from redline.tasks.answers.sentence import Pick, choose, is_bold

_CLOSING = re.compile(
    r"(?i)[^\w]{0,8}(?:(?:i )?hope|let me know|feel free|if you|please|tell me|would you|do you|"
    r"does (?:that|this)|is there|any (?:other |more )?questions|thank|happy to|glad to|"
    r"you're welcome|good luck|cheers|great (?:job|question)|don't hesitate|can i|shall i|want me|"
    r"i can|i'd be|i would be|have a|best|regards|enjoy|keep|note|remember|p\.?s|confidence)\b",
)
_TO_READER = re.compile(r"(?i)\b(?:you|your|help|sense|else|further|clear)\b")
_SHORT_QUESTION = 24  # characters of `Right?`, `Does that fit?` or `Maybe 18?`
_CANNOT = (
    r"(?:can(?:not|'t)|(?:do not|don't)|(?:unable|not able|impossible|not possible|no way) to)"
)
_REFUSES = (
    rf"\b{_CANNOT} (?:be )?(?:determine|answer|solve|say|tell|know|calculate|find|give|help|"
    r"provide|assist|have enough)|(?:\bnot|n't|\bno|without)\b[^.\n]{0,24}\b(?:enough|"
    r"sufficient) (?:information|data|details)|\b(?:insufficient|missing|needs?|"
    r"requires?)(?: \w+)? (?:information|data|details)\b|\b(?:information|data|"
    r"details)(?: \w+)? (?:is|are) (?:insufficient|incomplete|missing|not (?:enough|sufficient))|"
    r"\bwould need to know\b|(?<!\bno )(?:more|additional|further) (?:information|details) (?:is|"
    r"are) (?:needed|required)"
    r"|\bi(?:'m| am) not sure|\bi can only (?:help|discuss|answer)\b|\bas an ai\b|\bunanswerable\b"
    r"|\bi\b[^.,\n]{0,24} (?:can(?:not|'t)|(?:un|not )able to) (?:browse|access|view|count)\b"
)
_REFUSES_ABROAD = (
    r"\b(?:kann|können|lässt sich)\b[^.\n]{0,60}\bnicht (?:beantwort|bestimm|berechn|gelöst|"
    r"lösen|sagen)|\b(?:ne (?:peux|peut|pouvons) pas|(?:pas possible|impossible) de|no (?:puedo|"
    r"podemos|se puede|es posible)|não (?:posso|podemos|é possível|dá para)|non (?:posso|possiamo|"
    r"è possibile))(?: \w+)? (?:répond|r[ei]spond|d[eé]termin|calc[ou]l|résou|r[ei]solv)|"
    r"\b(?:не могу|невозможно) (?:ответ|определ|вычисл|реш)|[无無]法(?:回答|[确確]定|[计計]算|"
    r"得出)|(?:答え|回答|計算|特定)(?:られ|は?でき)(?:ません|ない)|(?:답|계산|알)\w{0,2} 수 없"
)
_REFUSAL = re.compile(rf"(?i){_REFUSES}|{_REFUSES_ABROAD}")
_REFUSED_BEFORE = re.compile(rf"(?i){_REFUSES}")
_REFUSED = re.compile(rf"(?i)(?:{_REFUSES}|{_REFUSES_ABROAD})[^.!?,\n]{{0,8}}$")
# As in `No se puede calcular directamente, pero x = 6`.
_GOES_ON = re.compile(r"(?i)\b(?:aber|donc|mais|así que|pero|então|quindi|поэтому)\b|所以|ので")
_NEAR = 80
_AFTERWARDS = re.compile(
    r"(?im)^[^\w\n]{0,8}(?:(?:explanation|verification|(?:double[- ])?check|proof|"
    rf"justification|notes?)[ {BOLD}]*(?::|$)|(?:note that|to verify|we can (?:verify|check)|"
    r"let(?:'s| me) (?:verify|check|double))\b)",
)
_THEREFORE = re.compile(r"(?i)\b(?:so|therefore|thus|hence|finally)\b")
_CONCLUDES = re.compile(
    r"(?i)\b(?:so|therefore|thus|hence|altogether|total|finally|in all|left|now)\b"
)
_NONE_LEFT = re.compile(
    r"(?:\b(?:no(?: [a-z]+){1,2}|none|nothing|nobody)|(?:n't|\bnot)(?: be|"
    r" have)? any(?: [a-z]+){0,2})(?: of (?:them|the [a-z]+))?(?: (?:is|are|was|were|will be|"
    r"would be|has|have|had|been)){0,2} "
    r"(?:left|remain(?:s|ing|ed)?)\b|\bno remaining [a-z]+",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"[=$€£]")
# A first paragraph that is a heading, or that begins the calculation, states no answer.
_SETS_OUT = re.compile(
    rf"(?i){BOLD}[^{BOLD}\n]*[^.!{BOLD}\n]{BOLD}:?\n\n|"
    r"\W*(?:to|let|we|given|first|start\w*|if|since|step)\b"
)

_DANGLING = re.compile(
    r"(?i)(?:[-+*/×÷=(,:<]|<<.*|\b(?:to|the|a|an|and|or|of|so|is|are|was|were|be|for|by|from|with|in|"
    r"on|at|we|she|he|they|it|i|her|his|their|its|then|because|since|which|that|if|but|as|than|"
    r"have|has|"
    r"had|will|would|can|multiply|divide|subtract|add|both|equals))$",
)
_ENDINGS = frozenset(".!?。！？…)]}\"'|;」】") | {BOX_END, TAG_END}
_SHORT_LINE_WORDS = 3
_MOST_TRIED = 32  # sentences that have numbers but give no answer

_CORRECTION = (
    r"[^\w]{0,4}(?:(?:(?:but|so|and|oh|ah|hmm),? )?(?:(?:no,? )?wait|actually|"
    r"correction|oops|sorry|hold on|no(?=[,.:])|"
    r"hmm|apologies|however|oh|(?:scratch|strike) that|my (?:mistake|bad)|on (?:second thought|"
    r"reflection)|i apologi[sz]e|i made an?|let me (?:correct|fix|re\w*)|"
    r"(?:edit|update)(?=:)|i (?:mean|meant|mis\w+)|make (?:that|it)|rather(?=,)|i (?:was|need|"
    r"have) (?:wrong|mistaken|to correct)|(?:that|this|it|which|my)(?: \w+){0,2}?(?:'s| is| was) "
    r"(?:wrong|incorrect|not (?:right|correct)|a mistake|an error)(?=[.,;:!]|$))(?!\w)|"
    # In other languages only before a punctuation mark, as in `Moment, ...`.
    r"(?:moment|warte|halt|stopp?|korrektur|entschuldigung|nein|attendez|attends|en fait|non|"
    r"pardon|désolée?|un momento|espere|espera|en realidad|corrección|perdón|aspetta|in realtà|"
    r"scusa|na verdade|não|desculpe|подожди(?:те)?|стоп|нет|извините|等等|等一下|不[对對]|更正|"
    r"いや|待って|すみません|訂正|잠깐|아니)[ ]?[,.:;!…、。—])"
)
_CONCLUSION = re.compile(r"(?i)[^\w]{0,4}(?:(?:so|therefore|thus|hence|finally)\b|因此|所以|故)")
_CORRECTS = re.compile(
    r"(?i)\b(?:wrong|mistakes?|errors?|incorrect|should be|not (?:right|correct)|forgot|missed|"
    r"overlooked|mis(?:read|counted|calculated)|recalculat\w+|correct(?:ion|ed)|instead|no|"
    r"i meant?|korrektur|falsch|fehler|verrechnet|faux|erreur|trompée?|corrección|equivoqu\w+|"
    r"sbagliat\w+|errore|errei|ошиб\w+|неверно)\b|"
    r"更正|[算看]错|错误|应[该为]|訂正|間違|ミス|正しくは|틀렸|잘못",
)
_UNREAL = re.compile(r"(?i)\b(?:if|would|could|might)\b")
# The words before a number or letter that is nearly alone: `Sorry, that should be 22 eggs.`
_BARE = (
    r"[\s,:;—-]*(?:(?:so|then|the|right|correct|answer|total|it|that|this|is|it's|that's|should|"
    r"be|must|would|to|no|i|meant?|richtig|es|ist|sind|c'est|son|é|è|sono|são|это)[\s:,]+|"
    r"应[该为]|是){0,8}"
)
BARE_CORRECTION = _CORRECTION + _BARE
_CORRECTION_START = re.compile(_CORRECTION, re.IGNORECASE)
_BARE_HEAD = re.compile(_BARE, re.IGNORECASE)
_MOST_BARE_WORDS = 2


def answer_of(page: Page, span: Span, may_be_worded: bool) -> Pick:
    """Returns the number that a sentence gives, in digits or, if `may_be_worded`, in words.

    `None are left` counts as 0 if it is the sentence's conclusion, or if the sentence has no number
    and `may_be_worded` is true.
    """
    text = page.of(span)
    refused = _REFUSAL.search(text)
    if refused and not _GOES_ON.search(text, refused.end()):
        return Pick("valueless")
    found = page.numerals(span)
    none = _NONE_LEFT.search(text)
    is_concluded = none and _THEREFORE.search(text, 0, none.start()) and not _AMOUNT.search(text)
    if none and (is_concluded or (may_be_worded and not found)):
        place = span.start + none.start(), span.start + none.end()
        return Pick("found", Numeral(*place, Number(Fraction(0))))
    if found or not may_be_worded:
        return choose(page.text, span, found)
    words = word_numerals(page.text, *span)
    found = [one for one in words if page.text[one.start : one.end].lower() != "one"]
    return choose(page.text, span, found)._replace(is_result=False)


def concluded(page: Page, start: int, end: int) -> Numeral | None:
    """Returns the answer of the last sentence that gives one, between `start` and `end`.

    Notes and checks after an answer are ignored, unless they find a mistake. A number after a
    refusal is an answer only if it is worked out or concluded.
    """
    afterwards = _AFTERWARDS.search(page.text, start, end)
    if afterwards is not None and not _CORRECTS.search(page.text, afterwards.end(), end):
        before = _last_answer(page, start, afterwards.start()).numeral
        if before is not None:
            return before
    return _last_answer(page, start, end).numeral


def stated(page: Page) -> Numeral | None:
    """Returns the number in bold that the first paragraph concludes with above an explanation.

    Returns None if a later number is in bold, too, and if a correction follows, or a conclusion
    with a number: `So ... 18`.
    """
    end = page.text.find("\n\n")
    if end < 0 or _SETS_OUT.match(page.text):
        return None
    given, rest = concluded(page, 0, end), Span(end, len(page.text))
    is_answer = (
        given is not None
        and is_bold(page.text, given)
        and not any(is_bold(page.text, one) for one in page.numerals(rest))
        and not any(
            _CONCLUDES.search(page.of(span)) and page.numerals(span) for span in page.within(*rest)
        )
        and correction_start(page, end) == len(page.text)
    )
    return given if is_answer else None


def corrected(page: Page, start: int) -> Numeral | None:
    """Returns the number with which later text replaces an announced one, or None.

    `Actually` and similar words may also open a remark that corrects nothing. So the text counts
    only if it names a mistake, works out an equation again, draws a conclusion, or says little more
    than the number.
    """
    for span in page.within(start, len(page.text)):
        opening = _CORRECTION_START.match(page.text, *span)
        if opening is None:
            continue
        _, numeral, is_result = _last_answer(page, span.start, len(page.text))
        if numeral is None:
            return None
        head = page.text[opening.end() : numeral.start]
        tail = re.split(r"\n|\. ", page.text[numeral.end :], maxsplit=1)[0]
        is_bare = _BARE_HEAD.fullmatch(head) and len(tail.split()) <= _MOST_BARE_WORDS
        is_concluded = _THEREFORE.search(head) and not _UNREAL.search(head)
        is_corrected = is_result or _CORRECTS.search(page.text, span.start)
        return numeral if is_bare or is_concluded or is_corrected else None
    return None


def correction_start(page: Page, start: int) -> int:
    """Returns the start of the first sentence after `start` that opens as a correction.

    Returns the end of the text if there is none.
    """
    spans = page.within(start, len(page.text))
    opened = (span.start for span in spans if _CORRECTION_START.match(page.text, *span))
    return next(opened, len(page.text))


def concludes(page: Page, place: int) -> bool:
    """Returns whether the sentence around `place` opens as a conclusion before that place."""
    return _CONCLUSION.match(page.text, page.sentence_start(place), place) is not None


def is_refused(text: str, mark: int) -> bool:
    """Returns whether a refusal such as `I cannot determine` precedes a mark."""
    return _REFUSED.search(text, max(0, mark - _NEAR), mark) is not None


def looks_cut(page: Page) -> bool:
    """Returns whether the text ends inside a sentence, so its number may be missing."""
    if not page.sentences:
        return False
    last = page.sentences[-1]
    line = page.of(last).rstrip(f" *_`${BOLD}")
    if _DANGLING.search(line):
        return True
    is_spoken = line.isascii() and line[-1:].isalnum()  # no emoji, tick or other script
    if len(page.sentences) == 1 or not is_spoken or _CLOSING.match(line):
        return False
    is_own_line = "\n" in page.text[page.sentences[-2].end : last.start]
    if is_own_line and len(line.split()) <= _SHORT_LINE_WORDS:
        return False
    return not page.numerals(last) and not any(word_numerals(page.text, *last))


def _last_answer(page: Page, start: int, end: int) -> Pick:
    """Returns the answer of the last sentence that gives one; an empty Pick if none does."""
    spans = page.within(start, end)
    is_wordy = not any(character.isdigit() for character in page.text[start:end])
    tried = 0
    while spans and tried < _MOST_TRIED:
        span = spans.pop()
        text = page.of(span)
        if text.rstrip(f" *_\"'){BOLD}").endswith(("?", "？")) and len(text) > _SHORT_QUESTION:
            is_asked = not _TO_READER.search(text)
            while is_asked and spans and "\n\n" not in page.text[spans[-1].end : span.start]:
                span = spans.pop()
            continue
        if _CLOSING.match(text):
            continue
        concludes = _CONCLUDES.search(text) is not None
        pick = answer_of(page, span, is_wordy or concludes)
        tried += pick.outcome != "nothing"
        if pick.numeral is not None:
            is_answer = concludes or pick.is_result or not _is_refused(page, spans)
            return pick if is_answer else Pick("nothing")
        is_open_end = span.end == len(page.text) and text[-1] not in _ENDINGS
        if pick.outcome == "valueless" or (is_open_end and pick.outcome == "unsolved"):
            break
    return Pick("nothing")


def _is_refused(page: Page, spans: list[Span]) -> bool:
    """Returns whether one of these sentences is a refusal without an equation after it.

    Only in English, whose conclusions (`_CONCLUDES`) are known.
    """
    for span in reversed(spans):
        if _REFUSED_BEFORE.search(page.text, *span):
            return True
        if "=" in page.of(span):
            return False
    return False
