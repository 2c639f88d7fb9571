"""Finds the final number of a model's answer, either flexibly or in the form of GSM8K alone.

**Flexible** (`final_number`). Reasoning, markup and questions that the model goes on to ask itself
are removed (reasoning.py, markup.py). Then, in this order:

1. The last mark that announces a number (mark.py, announced.py): a later one corrects an earlier,
   unless it is only a remark on it.
2. What a correction after it ("Wait, ...") concludes, unless that only confirms it (conclusion.py).
3. Without a mark, a number alone above an explanation; otherwise the conclusion: the answer of the
   last sentence that gives one.

Nothing is found if the answer was cut before its number: if it ends inside a sentence, an
expression, a box or its reasoning.

**Strict** (`strict_number`). The answer keeps the form that GSM8K asks for. The expression is that
of the data set's own evaluation, `#### (\\-?[0-9\\.\\,]+)`, first match, which is also
lm-evaluation-harness's `strict-match`. The first counts, since a model that continues after it runs
on into a next question. Two things differ on purpose. Both others compare texts, the former without
commas, the latter also without dollar signs and a last period, so that `18.0` is not 18; here
numbers are compared. And reasoning in `<think>` is not part of the answer here; there it is, unless
it has been removed.
"""

from __future__ import annotations

import re

from redline.tasks.answers.announced import announced, opening
from redline.tasks.answers.conclusion import concluded, corrected, looks_cut
from redline.tasks.answers.markup import plain_text
from redline.tasks.answers.numeral import MOST_DIGITS, Number, read_number, whole_number
from redline.tasks.answers.page import page_of
from redline.tasks.answers.reasoning import spoken, without_run_on

_HASHES = re.compile(r"#### (-?[0-9.,]+)")


def final_number(answer: str, *, is_cut: bool = False) -> Number | None:
    """Returns the number that the answer finally gives, or None if it gives none.

    is_cut: the answer is known to have been cut off, so that only a number it announces counts, and
    not one at its very end, which may lack digits. Time is linear in the answer's length. Never
    raises.
    """
    text = plain_text(spoken(answer))
    page = page_of(without_run_on(text))
    is_cut = is_cut and len(page.text) == len(text)  # what was cut may be what it ran on into
    numeral, is_open = announced(page, is_cut)
    numeral = numeral or opening(page)
    if numeral is not None:
        numeral = corrected(page, numeral.end) or numeral
    elif not (is_open or is_cut or looks_cut(page)):
        numeral = concluded(page, 0, len(page.text))
        if numeral is None and len(page.text) <= MOST_DIGITS:
            # In Chinese characters, which no sentence is read for.
            return whole_number(page.text)
    return None if numeral is None else numeral.number


def strict_number(answer: str) -> Number | None:
    """Returns the number after the first `#### ` with one, or None. Never raises."""
    found = _HASHES.search(spoken(answer))
    digits = found[1].replace(",", "") if found else ""
    return read_number(digits) if len(digits) <= MOST_DIGITS else None


def gold_number(answer: str) -> Number | None:
    """Reads the number of a reference answer: the text after its last `####`, or all of it.

    `... #### 1,234` is 1234, as are `1,234` and `$1,234`. None if that is not a number.
    """
    return read_number(answer.rpartition("####")[2])
