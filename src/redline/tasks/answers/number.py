"""Finds the final number of a model's answer, either flexibly or strictly in one form.

**Flexible** (`final_number`). Reasoning, markup and questions that the model goes on to ask itself
are removed (reasoning.py, markup.py). Then, in this order:

1. The last mark that announces a number (mark.py, announced.py): a later one corrects an earlier.
2. What a correction after it ("Wait, ...") concludes, unless that only confirms it (conclusion.py).
3. Without a mark, the conclusion: the answer of the last sentence that gives one.

Nothing is found if the answer was cut before its number: if it ends inside a sentence, an
expression, a box or its reasoning.

**Strict** (`strict_number`). The answer keeps the form that its task asks for. For GSM8K that is
the expression of the data set's own evaluation, `#### (\\-?[0-9\\.\\,]+)`, first match, which is
also lm-evaluation-harness's `strict-match`. The first counts, since a model that continues after it
runs on into a next question. Two things differ on purpose. Both others compare texts, the former
without commas, the latter also without dollar signs and a last period, so that `18.0` is not 18;
here numbers are compared. And reasoning in `<think>` is not part of the answer here; there it is,
unless it has been removed.

| form     | asked for as            | read                                                |
|----------|-------------------------|-----------------------------------------------------|
| `hashes` | `#### 18`               | as above                                            |
| `label`  | `A: 18` or `Answer: 18` | the first line that begins so                       |
| `phrase` | `The answer is 18`      | the first; `final` and a colon may be in it         |
| `boxed`  | `\\boxed{18}`            | the last box, as MATH's evaluation does; one number |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from redline.tasks.answers.announced import announced
from redline.tasks.answers.conclusion import concluded, corrected, looks_cut
from redline.tasks.answers.mark import marks
from redline.tasks.answers.markup import plain_text
from redline.tasks.answers.numeral import MOST_DIGITS, Number, read_number, whole_number
from redline.tasks.answers.page import page_of
from redline.tasks.answers.reasoning import spoken, without_run_on

Form = Literal["hashes", "label", "phrase", "boxed"]

_BY_FORM = {
    "hashes": re.compile(r"#### (-?[0-9.,]+)"),
    "label": re.compile(r"^(?:A|Answer): ?\$?(-?[0-9.,]+)", re.MULTILINE),
    "phrase": re.compile(r"[Tt]he (?:final )?answer is:? \$?(-?[0-9.,]+)"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """A final number, its text, and what shows it to be the final one.

    text: without the answer's markup. shape: hashes, boxed, tag, label or phrase if a mark
    announces it; bold, equation, sentence or words if it is the conclusion; for a strict number,
    its form.
    """

    number: Number
    text: str
    shape: str


def final_number(answer: str, *, is_cut: bool = False) -> Found | None:
    """Returns the number that the answer finally gives, or None if it gives none.

    is_cut: the answer is known to have been cut off, so that only a number it announces counts, and
    not one at its very end, which may lack digits. Time is linear in the answer's length. Never
    raises.
    """
    text = plain_text(spoken(answer))
    page = page_of(without_run_on(text))
    is_cut = is_cut and len(page.text) == len(text)  # what was cut may be what it ran on into
    given, is_open = announced(page, is_cut)
    if given is not None:
        given = corrected(page, given.numeral.end) or given
    elif not (is_open or is_cut or looks_cut(page)):
        given = concluded(page, 0, len(page.text))
        if given is None and len(page.text) <= MOST_DIGITS:
            whole = whole_number(page.text)  # in Chinese characters, which no sentence is read for
            return Found(whole, page.text.strip(), "words") if whole else None
    numeral = given and given.numeral
    if given is None or numeral is None or numeral.number is None:
        return None
    return Found(numeral.number, page.text[numeral.start : numeral.end], given.shape)


def strict_number(answer: str, form: Form = "hashes") -> Found | None:
    """Returns the number that the answer has in exactly this form, or None. Never raises."""
    text = spoken(answer)
    if form == "boxed":
        plain = plain_text(text)
        boxes = [mark for mark in marks(plain) if mark.shape == "boxed"]
        said = plain[boxes[-1].content : boxes[-1].limit] if boxes and boxes[-1].is_closed else ""
        number = read_number(said)
    else:
        found = _BY_FORM[form].search(text)
        said = found[1] if found else ""
        digits = said.replace(",", "")
        number = read_number(digits) if len(digits) <= MOST_DIGITS else None
    return Found(number, said, form) if number else None


def gold_number(answer: str) -> Number | None:
    """Reads the number of a reference answer: the text after its last `####`, or all of it.

    `... #### 1,234` is 1234, as are `1,234` and `$1,234`. None if that is not a number.
    """
    return read_number(answer.rpartition("####")[2])
