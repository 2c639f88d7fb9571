"""Extraction from any text: it never raises, a number is found again, and no text takes long."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.tasks.answers import (
    Number,
    final_choice,
    final_number,
    find_json,
    gold_number,
    is_same,
    read_number,
    strict_number,
)

# What the readers look for, so that texts made of these reach every branch of them.
PARTS = (
    "####", "\\boxed{", "}", "{", "[", "]", "(", ")", '"', "'", "`", "```", "```json\n", "**",
    "__", "*", "_", "~~", "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\,", "\\!", "\\frac",
    "\\text{", "\x08oxed{", "<think>", "</think>", "<answer>", "</answer>", "<b>", "</b>", "<br>",
    "<<", ">>", "&nbsp;", "&#36;", "<|im_end|>", "</s>", "A:", "Answer:", "Question:", "Q:",
    "the answer is", "not", "if", "would", "wait, no", "actually", "correction", "final",
    "Antwort", "答案是", "答えは", "Ответ:", "réponse", "one", "two", "twenty", "hundred", "and",
    "a", "dozen", "half", "third", "minus", "十八", "万", "1", "18", "1,234", "1.234,56", "1/2",
    "1:30", "3-5", "10^6", "1e6", "%", "percent", "million", "k", "th", "-5", "−", "–", "—", "+",
    "×", "÷", "=", "≈", "?", ".", ",", ";", ":", "!", "。", "\u202f", "\u200b", "１８", "½", "²",
    "٣", "€", "£", "USD", "B", "(B)", "B)", "Option B", "because", "per", "in", "so", "I hope",
    "\n", "\n\n", " ", "\ue000", "\ud800",
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(st.sampled_from(PARTS), max_size=60).map(" ".join),
    st.lists(st.sampled_from(PARTS), max_size=60).map("".join),
)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.booleans())
def test_no_text_raises(text: str, is_cut: bool) -> None:
    final_number(text, is_cut=is_cut)
    final_choice(text)
    find_json(text)
    gold_number(text)
    read_number(text)
    strict_number(text)


# Without German and its kin, which read `1.008` as 1008.
NUMBERS = st.fractions(-(10**12), 10**12, max_denominator=1000)
FORMS = (
    "#### {}",
    "A: {}",
    "The answer is {}.",
    "\\boxed{{{}}}",
    "16 - 3 = 13.\n\n**{}**",
    "<think>The answer is 5.</think>It is {}.",
    "答案是{}。",
    "She has 9 eggs. So x = {}",
)


@settings(max_examples=150, deadline=None)
@given(NUMBERS, st.booleans(), st.sampled_from(FORMS))
def test_a_number_that_is_written_is_found_again(
    value: Fraction, is_percent: bool, form: str
) -> None:
    number = Number(value, is_percent)
    found = final_number(form.format(number))
    assert found is not None
    assert is_same(found, number), str(number)
    assert read_number(str(number)) == number


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**15), 10**15))
def test_groups_of_three_are_one_number(value: int) -> None:
    number = Number(Fraction(value))
    for text in (f"{value:,}", f"{value:_}", f"{value:,}".replace(",", "\u202f"), f"{value}.00"):
        assert read_number(text) == number, text


HOSTILE = (
    "9", "1,", "1 ", "=1", "{", "**", "*_ ", "| ", "\\boxed{", '\\"', "<think>", "the answer is ",
    "A: x\n", "one and ", ". ", '{"a":', "[", " ",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(40)
@pytest.mark.parametrize("unit", HOSTILE, ids=ascii)
def test_a_hundred_kilobytes_of_anything_take_no_time_to_speak_of(unit: str) -> None:
    """Each takes well under a second; in quadratic time it would take minutes, and be ended."""
    text = unit * (100_000 // len(unit)) + " so 18"
    final_number(text)
    final_choice(text)
    find_json(text)
