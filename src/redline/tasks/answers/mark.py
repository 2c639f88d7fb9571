"""Where an answer says that its result comes next: `####`, a box, a tag, a label, a phrase.

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
from collections.abc import Iterator
from typing import Literal, NamedTuple

from redline.tasks.answers.markup import BOLD, BOX, BOX_END, HASHES, TAG, TAG_END

Shape = Literal["hashes", "boxed", "tag", "label", "phrase"]

_NEAR = 40
_GAP = rf"[ \t*_\"'{BOLD}]{{0,6}}"
_ASIDE = rf"(?:[ ](?:final\w*|\d(?=:)))?(?:[ ]?\([^()\n]{{0,60}}\))?{_GAP}"
_ANSWER = (
    r"(?:answers?|(?:final|correct) (?:result|value|number|total|amount|count)|antwort|"
    r"(?:end)?ergebnis|"
    r"r[ée]ponse|respuesta|resultado final|resposta|risposta|antwoord|svar(?:et)?|odpowied[źz]\w*|"
    r"odpověď|vastaus|cevap|yanıt|đáp án|đáp số|câu trả lời|jawaban(?:nya)?|jibu|ответ\w*|"
    r"відповідь|"
    r"απάντηση|răspunsul|الإجابة|الاجابة|الجواب|جواب|پاسخ|उत्तर|जवाब|উত্তর|সমাধান|సమాధానం|பதில்|"
    r"คำตอบ|"
    r"התשובה|答案|答え|解答|回答|正解|答|정답|답)"
)
_HEDGE = r"(?:(?:therefore|thus|then|hence|simply|just|now|also|still|indeed|clearly) )?"
_IS = (
    r"(?:is|are|was|were|equals?|becomes|(?:would|should|will|must|can|has to) be|"
    r"comes (?:out )?to|"
    r"turns out to be|ends up being|ist|lautet|beträgt|wäre|est|serait|es|sería|é|seria|è|är|er|"
    r"jest|brzmi|wynosi|je|on|là|adalah|ialah|ni|рав[ен]\w*|составляет|будет|є|είναι|este)\b"
)
_PHRASE = re.compile(
    rf"(?<![A-Za-z-]){_ANSWER}(?:\b[^.\n:=?!{BOX}]{{0,60}}?[ ]{_HEDGE}{_IS}|{_ASIDE}[:=]|"
    rf"[ —-]{{1,3}}(?=\d)"
    r"|[^.\n:=?!。\d]{0,12}?(?:是|为|為|等于|等於|は|은|는|이|هي|هو|है|হল|คือ|היא))",
    re.IGNORECASE,
)
_LABEL = re.compile(
    rf"^[^\w\n]{{0,16}}(?:(?:step )?\d{{1,2}}[.:)] ?)?"
    rf"(?P<name>A(?=:)|ans(?=[.: =])|(?:(?:the|my|final|correct|numeric|"
    rf"numerical)[ ])*{_ANSWER}){_ASIDE}"
    rf"(?:[:=]|-[ ]|—|\.(?=[ ]\S)|(?=\n\s*\S))",
    re.IGNORECASE | re.MULTILINE,
)
_HASH = re.compile(rf"{HASHES}{_GAP}(?:[^\n\d$:{HASHES}]{{0,40}}:)?")
_BOX = re.compile(rf"{BOX}([^{BOX}{BOX_END}]{{0,400}})({BOX_END})?")
_TAG = re.compile(rf"{TAG}([^{TAG}{TAG_END}]{{0,4000}})({TAG_END})?")

# An answer that is only supposed, held by others, or one of many is not the one that is given.
_SUPPOSED = re.compile(
    r"(?:\b(?:if|whether|suppose|supposing|assume|assuming|unless|each|every|any|per)"
    r"|\b(?:you|people|some|many|most|they|students?)(?:[ ]\w+)?[ ](?:think|say|believe|guess|"
    r"expect))"
    r"[ ](?:that[ ])?(?:the|your|their|an?|this|its)?[ ]?(?:\w+[ ])?$",
    re.IGNORECASE,
)
_OPTIONS_FOLLOW = re.compile(r"[^\n]*\n\s*B[:.)]")


class Mark(NamedTuple):
    """A mark, its whole extent, and where the answer that it announces begins and must end.

    limit: the end of the text for all but boxes and tags, which close, if is_closed.
    may_be_working: of a label, that it says no more than `Answer`, so that working may follow.
    """

    shape: Shape
    start: int
    content: int
    limit: int
    is_closed: bool = True
    may_be_working: bool = False


def marks(text: str) -> list[Mark]:
    """The marks of plain text in the order of what they announce."""
    labels = list(_labels(text))
    labelled = {label.content for label in labels}
    found = [*_enclosed(text), *labels]
    found += [phrase for phrase in _phrases(text) if phrase.content not in labelled]
    found += [Mark("hashes", *hashes.span(), len(text)) for hashes in _HASH.finditer(text)]
    return sorted(found, key=lambda mark: (mark.content, mark.start))


def _enclosed(text: str) -> Iterator[Mark]:
    for box in _BOX.finditer(text):
        yield Mark("boxed", box.start(), *box.span(1), box[2] is not None)
    for tag in _TAG.finditer(text):
        yield Mark("tag", tag.start(), *tag.span(1), tag[2] is not None)


def _labels(text: str) -> Iterator[Mark]:
    for label in _LABEL.finditer(text):
        name = label["name"].lower()
        if name != "a" or not _OPTIONS_FOLLOW.match(text, label.end()):
            is_bare = name in {"a", "ans", "answer"}
            yield Mark("label", *label.span(), len(text), may_be_working=is_bare)


def _phrases(text: str) -> Iterator[Mark]:
    for phrase in _PHRASE.finditer(text):
        if not _SUPPOSED.search(text, max(0, phrase.start() - _NEAR), phrase.start()):
            yield Mark("phrase", *phrase.span(), len(text))
