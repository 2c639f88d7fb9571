"""Finds the final number of a model's answer, flexibly or only in the form of GSM8K.

**Flexible** (`final_number`). Reasoning, markup and questions that the model goes on to ask itself
are removed (reasoning.py, markup.py). Then, in this order:

1. The last mark that announces a number (mark.py, announced.py): a later mark corrects an earlier
   one, unless it is only a remark.
2. The number that a correction after this mark ("Wait, ...") concludes with, unless the correction
   only confirms the first number (conclusion.py).
3. Without a mark, a number alone above an explanation, or the number in bold with which the
   paragraph above an explanation concludes, if the explanation has no number in bold; otherwise the
   answer of the last sentence that gives one.

No number is found if the answer was cut before it, that is, if the answer ends inside a sentence,
an expression, a box or its reasoning.

**Strict** (`strict_number`). The answer has the form that GSM8K asks for: the first match of the
data set's own expression, `#### (\\-?[0-9\\.\\,]+)`, which is also lm-evaluation-harness's
`strict-match`. The first match counts, since a model that continues after it is making up a further
question. Two things differ on purpose. Both evaluations compare texts, GSM8K's without commas, the
harness also without dollar signs and a final period, so `18.0` is not 18; redline compares numbers.
And redline does not count reasoning in `<think>` as part of the answer; the other two do, unless it
was removed before.
"""

from __future__ import annotations

import re

from redline.tasks.answers.announced import announced, opening
from redline.tasks.answers.conclusion import concluded, corrected, looks_cut, stated
from redline.tasks.answers.markup import plain_text
from redline.tasks.answers.numeral import MOST_DIGITS, Number, read_number, whole_number
from redline.tasks.answers.page import page_of
from redline.tasks.answers.reasoning import spoken, without_run_on

_HASHES = re.compile(r"#### (-?[0-9.,]+)")


def final_number(answer: str, *, is_cut: bool = False) -> Number | None:
    """Returns the number that the answer finally gives, or None if it gives none.

    is_cut: the answer is known to have been cut off, so a number counts only if it is announced or
    alone above an explanation, and not at the very end, where it may lack digits. Time is linear in
    the answer's length. Never raises.
    """
    text = plain_text(spoken(answer))
    page = page_of(without_run_on(text))
    is_cut = is_cut and len(page.text) == len(text)  # a cut in a further question does not count
    numeral, is_open = announced(page, is_cut)
    numeral = numeral or opening(page)
    if numeral is not None:
        numeral = corrected(page, numeral.end) or numeral
    elif not (is_open or is_cut or looks_cut(page)):
        whole = whole_number(page.text) if len(page.text) <= MOST_DIGITS else None
        if whole is not None:
            # Such as `1 234` and numbers in Chinese characters, which no sentence shows to be one.
            return whole
        numeral = stated(page) or concluded(page, 0, len(page.text))
    return None if numeral is None else numeral.number


def strict_number(answer: str) -> Number | None:
    """Returns the number after the first `#### ` that has a number, or None. Never raises."""
    found = _HASHES.search(spoken(answer))
    digits = found[1].replace(",", "") if found else ""
    return read_number(digits) if len(digits) <= MOST_DIGITS else None


def gold_number(answer: str) -> Number | None:
    """Reads the number of a reference answer: the text after its last `####`, or all of it.

    `... #### 1,234` is 1234, as are `1,234` and `$1,234`. Returns None if the text is not a number.
    """
    return read_number(answer.rpartition("####")[2])
