"""Numbers written in words: English ones, and the Chinese characters for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_UNITS = {
    **{word: value for value, word in enumerate(_SMALL)},
    **{word: 10 * tens for tens, word in enumerate(_TENS, 2)},
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    **{"half": 2, "halves": 2, "quarter": 4, "quarters": 4, "third": 3, "thirds": 3},
    **{"fourth": 4, "fourths": 4, "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6},
    **{"eighth": 8, "eighths": 8, "tenth": 10, "tenths": 10},
}
_MOST_WORDS = 24

_WORDS = sorted([*_UNITS, *_SCALES, *_PARTS, "hundred", "dozen"], key=len, reverse=True)
_WORD = rf"(?:{'|'.join(_WORDS)})"
_AND = rf"(?:(?<=hundred)|(?<=thousand)|(?<=million))[ ]and[ ](?={_WORD})"
_AND_A_PART = r"[ ]and[ ](?=(?:an?|one|two|three)[ -](?:half|quarter|third|fourth))"
_PHRASE = re.compile(
    rf"(?<![\w-])(?:an?[ ])?{_WORD}(?:(?:{_AND_A_PART}|{_AND}|[ -])(?:an?[ ])?{_WORD})"
    rf"{{0,{_MOST_WORDS}}}(?![\w-])",
    re.IGNORECASE,
)

_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {
    "〇": 0,
    "两": 2,
    "兩": 2,
}
_STEPS = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_CHINESE = re.compile(f"[{''.join([*_DIGITS, *_STEPS, *_LARGE])}]{{1,24}}")


class Worded(NamedTuple):
    """A number in words: where it stands, and its value."""

    start: int
    end: int
    value: Fraction


def worded(text: str, start: int, end: int) -> Iterator[Worded]:
    """The English numbers in words of `text[start:end]`, in order.

    `a dozen` is 12, `half a dozen` 6, `one and a half` 3/2, `two thirds` 2/3. A lone `one` is
    one of them, as is `half`; ordinals are not.
    """
    for found in _PHRASE.finditer(text, start, end):
        words = found[0].lower().replace("-", " ").split()
        if len(words) == 1 and words[0] in _PARTS and words[0] != "half":
            continue  # an ordinal, as `third`, or a noun, as `quarter`
        value = _english(words)
        if value is not None:
            yield Worded(*found.span(), value)


def _english(words: list[str]) -> Fraction | None:
    """The value of `words`, or None where they are no one number, such as `two three`."""
    if words == ["half", "a", "dozen"]:
        return Fraction(6)
    words = [word for word in words if word not in {"a", "an"}]
    if words[-1] in _PARTS:
        return _with_part(words)
    total, group = 0, 0  # `group` is what the next scale multiplies
    last = ""
    for word in words:
        if word in _UNITS:
            is_after_tens = last in _TENS and 0 < _UNITS[word] < 10
            if last in _UNITS and not is_after_tens:
                return None
            group += _UNITS[word]
        elif word == "hundred" or word == "dozen":
            group = (group or 1) * (100 if word == "hundred" else 12)
        elif word in _SCALES:
            total += (group or 1) * _SCALES[word]
            group = 0
        elif word != "and":
            return None
        last = word
    return Fraction(total + group)


def _with_part(words: list[str]) -> Fraction | None:
    """`half`, `two thirds`, `one and half`; None for an ordinal, such as `twenty third`."""
    if "and" in words:
        at = len(words) - 1 - words[::-1].index("and")
        whole, part = _english(words[:at]), _with_part(words[at + 1 :])
        return None if whole is None or part is None else whole + part
    part = Fraction(1, _PARTS[words[-1]])
    if len(words) == 1:
        return part
    count = _english(words[:-1])
    is_ordinal = count != 1 and not words[-1].endswith("s") and words[-1] != "quarter"
    return None if count is None or is_ordinal else count * part


def chinese(text: str, start: int, end: int) -> Worded | None:
    """The number that Chinese characters write from `start` on, such as 十八, or None."""
    found = _CHINESE.match(text, start, end)
    if found is None:
        return None
    total, group, digit = 0, 0, 0
    for character in found[0]:
        if character in _DIGITS:
            digit = 10 * digit + _DIGITS[character]
        elif character in _STEPS:
            group += (digit or 1) * _STEPS[character]
            digit = 0
        else:
            total += ((group + digit) or 1) * _LARGE[character]
            group, digit = 0, 0
    return Worded(*found.span(), Fraction(total + group + digit))
