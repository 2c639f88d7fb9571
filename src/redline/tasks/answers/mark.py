"""Finds the marks that announce an answer's result: `####`, a box, a tag, a label or a phrase.

| shape    | as in                                                       |
|----------|-------------------------------------------------------------|
| hashes   | `#### 18`                                                   |
| boxed    | `\\boxed{18}`                                                |
| tag      | `<answer>18</answer>`                                       |
| label    | `A: 18`, `**Final Answer**`, `Réponse : 18`, `"answer": 18` |
| phrase   | `the answer is 18`, `Die Antwort lautet 18`, `答案是18`       |
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from redline.tasks.answers.markup import BOLD, BOX, BOX_END, HASHES, TAG, TAG_END

Shape = Literal["hashes", "boxed", "tag", "label", "phrase"]

_NEAR, _NEAR_CLAUSE = 40, 160
_GAP = rf"[ \t*_\"'{BOLD}]{{0,6}}"
_ASIDE = rf"(?:[ ](?:final\w*|\d(?=:)))?(?:[ ]?\([^()\n]{{0,60}}\))?{_GAP}"
_ANSWER = (
    r"(?:answers?|(?:final|correct) (?:result|value|number|total|amount|count)|antwort|"
    r"(?:end)?ergebnis|r[ée]ponse|respuesta|resultado final|resposta|risposta|antwoord|svar(?:et)?|"
    r"odpowied[źz]\w*|odpověď|vastaus|cevap|yanıt|đáp án|đáp số|câu trả lời|jawaban(?:nya)?|jibu|"
    r"ответ\w*|відповідь|απάντηση|răspunsul|الإجابة|الاجابة|الجواب|جواب|پاسخ|उत्तर|जवाब|উত্তর|"
    r"সমাধান|సమాధానం|பதில்|คำตอบ|התשובה|答案|答え|解答|回答|正解|答|정답|답)"
)
_HEDGE = r"(?:(?:therefore|thus|then|hence|simply|just|now|also|still|indeed|clearly) )?"
_IS = (
    r"(?:is|are|was|were|equals?|becomes|(?:would|should|will|must|can|has to) be|"
    r"comes (?:out )?to|turns out to be|ends up being|ist|lautet|beträgt|wäre|est|serait|es|sería|"
    r"é|seria|è|är|er|jest|brzmi|wynosi|je|on|là|adalah|ialah|ni|рав[ен]\w*|составляет|будет|є|"
    r"είναι|este)\b"
)
_PHRASE = re.compile(
    rf"(?i)(?<![A-Za-z-]){_ANSWER}(?:'s\b|\b[^.\n:=?!{BOX}]{{0,60}}?[ ]{_HEDGE}{_IS}|"
    rf"{_ASIDE}[:=→]|"
    rf"(?<!\bto answer)[ —-]{{1,3}}(?=\d)"
    r"|[^.\n:=?!。\d]{0,12}?(?:是|为|為|等于|等於|は|은|는|이|هي|هو|है|হল|คือ|היא))",
)
_LABEL = re.compile(
    rf"(?im)^[^\w\n]{{0,16}}(?:(?:step )?\d{{1,2}}[.:)] ?)?"
    rf"(?:(?P<bare>A(?=:)|ans(?:wer)?\b(?!\"))|(?:(?:the|my|final|correct)[ ])*{_ANSWER}){_ASIDE}"
    rf"(?:[:=→]|-[ ]|—|\.(?=[ ]\S)|(?=\n\s*\S))",
)
_PATTERNS: dict[Shape, re.Pattern[str]] = {
    "boxed": re.compile(rf"{BOX}(?P<content>[^{BOX}{BOX_END}]{{0,400}})(?P<end>{BOX_END})?"),
    "tag": re.compile(rf"{TAG}(?P<content>[^{TAG}{TAG_END}]{{0,4000}})(?P<end>{TAG_END})?"),
    "label": _LABEL,
    "phrase": _PHRASE,
    "hashes": re.compile(rf"{HASHES}{_GAP}(?:[^\n\d$:{HASHES}]{{0,40}}:)?"),
}
# An answer that is only supposed or checked, that other people give, or that was only a first
# thought, is not the reply's own.
_SUPPOSED = re.compile(
    r"(?i)\b(?:if|whether|suppose|assume|assuming|unless|each|every|any|(?:check|verify|"
    r"confirm)(?:ing)?|(?:you|people|some|many|most|one|"
    r"they)(?: \w+)? (?:think|say|believe|guess|expect)|"
    r"i(?: \w+)? (?:thought|said|guessed|assumed|believed)) (?:that )?(?:the|your|their|an?|this|"
    r"its|my|our)?[ ]?"
    r"(?:\w+ )?$|\bconfidence in (?:the|this|my) (?:\w+ )?$",
)
# An answer that is called wrong, earlier or second best is doubtful.
_OTHER = re.compile(
    r"(?i)\b(?:wrong|incorrect|(?<!only )possible|common|other|another|previous|earlier|"
    r"(?:second|next)[- ](?:best|most \w+)) (?:possible )?$"
)
# `If she had sold all, the answer would be 32` is also doubtful, but not `If each costs $2, ...`.
_UNREAL = re.compile(
    r"(?i)\bif\b[^.!?\n]*\b(?:had|were|did)(?:n't)?\b[^.!?\n]*,[ ](?:then )?(?:the )?$"
)


class Mark(NamedTuple):
    """A mark: its start, and where the announced answer begins and must end.

    limit: the end of the content of a box or a tag; for other marks, the end of the text. is_open:
    the mark is a box without an end. may_be_working: the mark is a label that says only `A` or
    `Answer`, so working may follow. is_doubtful: the answer is called wrong, earlier or second
    best, or would hold for another question; it counts only for a choice, and only if no other is
    announced.
    """

    shape: Shape
    start: int
    content: int
    limit: int
    is_open: bool
    may_be_working: bool
    is_doubtful: bool


def marks(text: str) -> list[Mark]:
    """Returns the marks in a plain text, ordered by `content`, at most one for each place."""
    found: dict[int, Mark] = {}
    for shape, pattern in _PATTERNS.items():
        for match in pattern.finditer(text):
            groups = match.groupdict()
            inside = match.span("content") if "content" in groups else (match.end(), len(text))
            if shape != "phrase" or not _is_supposed(text, match):
                is_open = shape == "boxed" and groups["end"] is None
                is_bare = groups.get("bare") is not None
                is_doubtful = shape == "phrase" and _is_doubtful(text, match)
                mark = Mark(shape, match.start(), *inside, is_open, is_bare, is_doubtful)
                found.setdefault(mark.content, mark)
    return [found[content] for content in sorted(found)]


def _is_supposed(text: str, phrase: re.Match[str]) -> bool:
    start = phrase.start()
    return _SUPPOSED.search(text, max(0, start - _NEAR), start) is not None


def _is_doubtful(text: str, phrase: re.Match[str]) -> bool:
    start = phrase.start()
    if _OTHER.search(text, max(0, start - _NEAR), start):
        return True
    is_would = phrase[0].lower().endswith("would be")
    return is_would and _UNREAL.search(text, max(0, start - _NEAR_CLAUSE), start) is not None
