"""Where an answer says that its final number comes next: `####`, a box, a label, a phrase.

| shape    | as in                                                  |
|----------|--------------------------------------------------------|
| hashes   | `#### 18`                                              |
| boxed    | `\\boxed{18}`                                           |
| tag      | `<answer>18</answer>`                                  |
| label    | `A: 18`, `**Final Answer**`, `Réponse : 18`, `"answer": 18` |
| phrase   | `the answer is 18`, `Die Antwort lautet 18`, `答案是18`  |
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from redline.tasks.answers.plain_text import BOLD, BOX, BOX_END, HASHES, TAG, TAG_END

Shape = Literal["hashes", "boxed", "tag", "label", "phrase"]

_GAP = rf"[ \t*_\"'{BOLD}]{{0,6}}"
_HEDGE = r"(?:therefore |thus |then |hence |simply |just |now |also |still |indeed |clearly )?"
_IS = (
    r"(?:is|are|was|were|equals?|becomes|would be|should be|will be|must be|has to be|can be|"
    r"comes (?:out )?to|turns out to be|ends up being)\b"
)
_MID = rf"[^.\n:=?!{BOX}]{{0,40}}?"
_ENGLISH = (
    rf"(?:\b[^.\n:=?!{BOX}]{{0,60}}?[ ]{_HEDGE}{_IS}"
    rf"|{_GAP}(?:\([^()\n]{{0,60}}\))?{_GAP}[:=])"
)
# The words that a phrase cannot do without, and the phrase. Most answers have none of most words,
# and looking for a word is a hundred times as fast as trying a pattern at each of their characters.
_PHRASES = tuple(
    (words.split(), re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for words, pattern in (
        ("answer", rf"(?<![A-Za-z])answer{_ENGLISH}"),
        (
            "final correct",
            rf"\b(?:final|correct) (?:result|value|number|total|amount|count){_ENGLISH}",
        ),
        (
            "antwort ergebnis",
            rf"\b(?:Antwort|Endergebnis)\b{_MID}(?:\bist\b|\blautet\b|\bbeträgt\b|\bwäre\b|:)",
        ),
        ("réponse reponse", rf"\br[ée]ponse\b{_MID}(?:\best\b|\bserait\b|:)"),
        ("respuesta", rf"\brespuesta\b{_MID}(?:\bes\b|\bsería\b|:)"),
        ("resultado", rf"\bresultado final\b{_MID}(?:\b(?:es|é)\b|:)"),
        ("resposta", rf"\bresposta\b{_MID}(?:\bé\b|\bseria\b|:)"),
        ("risposta", rf"\brisposta\b{_MID}(?:\bè\b|:)"),
        ("antwoord", rf"\bantwoord\b{_MID}(?:\bis\b|:)"),
        ("svar", rf"\bsvaret\b{_MID}(?:\b(?:är|er)\b|:)|\bsvar:"),
        (
            "odpowied odpověď",
            rf"\b(?:odpowied(?:ź|zią)|odpověď)\b{_MID}(?:\b(?:to|jest|brzmi|wynosi|je)\b|:)",
        ),
        ("vastaus", rf"\bvastaus\b{_MID}(?:\bon\b|:)"),
        ("cevap yanıt", r"\b(?:cevap|yanıt)\b:?"),
        ("đáp trả", rf"(?:đáp án|đáp số|câu trả lời){_MID}(?:\blà\b|:)"),
        ("jawaban", rf"\bjawaban(?:nya)?\b{_MID}(?:\b(?:adalah|ialah)\b|:)"),
        ("jibu", rf"\bjibu\b{_MID}(?:\bni\b|:)"),
        (
            "ответ відповідь",
            rf"\b(?:ответ(?:ом)?|відповідь)\b{_MID}"
            r"(?:[:=—-]|\b(?:равен|равна|составляет|будет|є)\b)",
        ),
        ("απάντηση", rf"\bαπάντηση\b{_MID}(?:\bείναι\b|:)"),
        ("răspunsul", rf"\brăspunsul\b{_MID}(?:\beste\b|:)"),
        (
            "الإجابة الاجابة جواب پاسخ",
            rf"(?:الإجابة|الاجابة|الجواب|جواب|پاسخ){_MID}(?:هي|هو|:|(?=\d))",
        ),
        ("उत्तर जवाब", rf"(?:उत्तर|जवाब){_MID}(?:है|:|(?=\d))"),
        ("উত্তর সমাধান", rf"(?:উত্তর|সমাধান){_MID}(?:হল|হলো|:|(?=\d))"),
        ("సమాధానం பதில்", rf"(?:సమాధానం|பதில்){_MID}(?::|(?=\d))"),
        ("คำตอบ", rf"คำตอบ{_MID}(?:คือ|:)"),
        ("התשובה", rf"התשובה{_MID}(?:היא|:)"),
        ("答", r"答案[^。\n:=\d]{0,12}?(?:是|为|為|等于|等於|:|=)|(?:^|[。\s])答:"),
        ("答 正解", r"(?:答え|解答|回答|正解|答)[^。\n:=\d]{0,6}?(?:は|:|=)"),
        ("답", r"(?:정답|답|답변)[^.\n:=\d]{0,6}?(?:은|는|이|:)"),
    )
)
_LABEL = re.compile(
    rf"^[^\w\n]{{0,16}}(?:(?:step )?\d{{1,2}}[.:)] ?)?"
    rf"(?P<name>A(?=:)|ans(?=[.: =])|(?:the )?(?:final |correct |numeric |numerical )*answers?)"
    rf"(?:[ ]\([^()\n]{{0,60}}\))?{_GAP}"
    rf"(?:[:=]|-[ ]|—|\.(?=[ ]\S)|(?=\n\s*\S))",
    re.IGNORECASE | re.MULTILINE,
)
_HASH = re.compile(rf"{HASHES}{_GAP}(?:[^\n\d$:{HASHES}]{{0,40}}:)?")
_ENCLOSED: tuple[tuple[Shape, re.Pattern[str]], ...] = (
    ("boxed", re.compile(rf"{BOX}([^{BOX}{BOX_END}]{{0,400}})({BOX_END})?")),
    ("tag", re.compile(rf"{TAG}([^{TAG}{TAG_END}]{{0,4000}})({TAG_END})?")),
)

# An answer that is only supposed, held by others, or one of many is not the one that is given.
_SUPPOSED = re.compile(
    r"(?:\b(?:if|whether|suppose|supposing|assume|assuming|unless|each|every|any|per)[ ]"
    r"|\b(?:you|one|people|some|many|most|they|students?)(?:[ ]\w+)?[ ](?:think|say|believe|guess|"
    r"assume|expect|conclude)[ ])(?:that[ ])?(?:the|your|their|an?|this|its)?[ ]?(?:\w+[ ])?$",
    re.IGNORECASE,
)
_OPTIONS_FOLLOW = re.compile(r"[^\n]*\n\s*B[:.)]")
_NEAR = 40


class Mark(NamedTuple):
    """A mark, its whole extent, and where the answer that it announces begins and must end.

    limit: the end of the text for all but boxes and tags, which close, where is_closed.
    is_final: of a label, that it says `final` or `correct`, so that no working follows.
    """

    shape: Shape
    start: int
    content: int
    limit: int
    is_closed: bool = True
    is_final: bool = False


def marks(text: str) -> list[Mark]:
    """The marks of plain text in the order of what they announce."""
    labels = _labels(text)
    labelled = {label.content for label in labels}
    phrases = [phrase for phrase in _phrases(text) if phrase.content not in labelled]
    found = [*_boxes(text), *labels, *phrases, *_hashes(text)]
    return sorted(found, key=lambda mark: (mark.content, mark.start))


def _hashes(text: str) -> list[Mark]:
    return [Mark("hashes", found.start(), found.end(), len(text)) for found in _HASH.finditer(text)]


def _boxes(text: str) -> list[Mark]:
    found: list[Mark] = []
    for shape, pattern in _ENCLOSED:
        for box in pattern.finditer(text):
            start, end = box.span(1)
            found.append(Mark(shape, box.start(), start, end, is_closed=box[2] is not None))
    return found


def _labels(text: str) -> list[Mark]:
    found: list[Mark] = []
    for label in _LABEL.finditer(text):
        name = label["name"].lower()
        is_option = name == "a" and _OPTIONS_FOLLOW.match(text, label.end()) is not None
        if not is_option:
            is_final = name not in {"a", "answer", "ans"}
            found.append(Mark("label", label.start(), label.end(), len(text), is_final=is_final))
    return found


def _phrases(text: str) -> list[Mark]:
    found: list[Mark] = []
    lower = text.lower()
    for words, pattern in _PHRASES:
        if not any(word in lower for word in words):
            continue
        for phrase in pattern.finditer(text):
            head = text[max(0, phrase.start() - _NEAR) : phrase.start()]
            if not _SUPPOSED.search(head):
                start, content = phrase.span()
                found.append(Mark("phrase", start, content, len(text)))
    return found
