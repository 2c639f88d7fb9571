"""Decides whether an answer is right, with a metric for each kind of answer.

metric   what is found in an answer      it is right if               it is strict if
number   its final number                it is the gold number        the first after #### is gold
choice   the letter that it chooses      it is the gold letter        the answer is the letter alone
exact    the answer, its ends trimmed    equal but for case, outer    equal, character by character
                                         quotes, the last period and
                                         white space
regex    the last match of `pattern`     equal to gold, as for exact  the answer is the match alone
json     the JSON value in it            all `fields` equal gold's;   the answer is the JSON alone
                                         without `fields`, all of it

If gold is a list, each of its items is a right answer. For json, however, a list is itself the
right answer: the answer must contain a list if gold is one, otherwise an object. Reasoning in
`<think>` is not part of an answer, except for regex. judge.py grades with a second model instead.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from redline.errors import ConfigError, Rejected, nearest
from redline.process import clipped
from redline.tasks.answers import (
    Number,
    final_choice,
    final_number,
    find_json,
    gold_number,
    is_same,
    spoken,
    strict_number,
)
from redline.tasks.evaluate.text import as_text

METRICS = ("number", "choice", "exact", "regex", "json", "judge")
_QUOTES = "\"'`“”„‘’‚«»‹›「」『』"
_PERIODS = ".。"
_LONGEST_SHOWN = 200


class Grade(msgspec.Struct, frozen=True):
    """The grade of one answer.

    extracted: the value found in the answer, or None; its JSON as text if a results file cannot
    hold the value. strict: the answer is right by the stricter rule of its metric, see above; for
    `number`, an answer may be strict but not correct.
    """

    extracted: Any = None
    correct: bool = False
    strict: bool = False


class Metric:
    """Grades answers. gold: the right answer as it is in the data."""

    def read(self, gold: Any) -> Any:
        """Returns the right answer in the form that `grade` takes.

        Raises Rejected if no answer can be graded against `gold`.
        """
        return as_text(gold)

    def grade(self, answer: str, right: Any, *, is_cut: bool = False) -> Grade:
        """Grades an answer. right: from `read`. is_cut: the answer was cut at the token limit."""
        raise NotImplementedError

    def example(self, gold: Any) -> str:
        """Returns a right answer. gold: a value that `read` accepts."""
        return as_text(gold)


def metric_of(
    name: str, *, pattern: str | None = None, fields: Sequence[str] = (), letters: str = "ABCD"
) -> Metric:
    """Returns the metric with this name.

    letters: the letters of the options, for choice. Raises ConfigError for an unknown name, for
    regex without a pattern, for a pattern that is not valid or has several groups, for letters that
    are not distinct or not from A to Z, and for a pattern or fields that the metric does not take.
    """
    if pattern is not None and name != "regex":
        raise ConfigError(
            f"the metric `{name}` takes no pattern", hint='leave it out, or set metric = "regex"'
        )
    if fields and name != "json":
        raise ConfigError(
            f"the metric `{name}` takes no fields", hint='leave them out, or set metric = "json"'
        )
    match name:
        case "regex":
            if pattern is None:
                example = r"pattern = 'Label: (\w+)'"
                raise ConfigError("the metric `regex` needs a pattern", hint=example)
            return _AnyOf(_Regex(pattern), str)
        case "json":
            return _Json(fields)
        case "choice":
            return _AnyOf(_Choice(letters), str, int)
        case "number":
            return _AnyOf(_Number(), str, int, float)
        case "exact":
            return _AnyOf(_Exact(), str)
    raise ConfigError(
        f"unknown metric: {name}", hint=nearest(name, METRICS) or f"one of {', '.join(METRICS)}"
    )


class _AnyOf(Metric):
    """A metric that accepts any of a list of gold answers.

    In a CSV file a list is text, either JSON or a Python literal. It is read as a list if all of
    its items are of `kinds`.
    """

    def __init__(self, metric: Metric, *kinds: type) -> None:
        self._metric = metric
        self._kinds = kinds

    def read(self, gold: Any) -> list[Any]:
        if gold == []:
            raise Rejected("the list of gold answers is empty")
        listed = [form for one in self._listed(gold) for form in _forms(one)]
        for one in listed:
            if one is None or isinstance(one, list):
                raise Rejected(f"the gold answer is neither text nor a number: {_shown(one)}")
        rights = [self._metric.read(one) for one in listed]
        if isinstance(gold, str) and listed != [gold]:
            with suppress(Rejected):  # the text itself may be the answer
                rights.append(self._metric.read(gold))
        return rights

    def grade(self, answer: str, right: list[Any], *, is_cut: bool = False) -> Grade:
        grades = [self._metric.grade(answer, one, is_cut=is_cut) for one in right]
        return max(grades, key=lambda grade: (grade.correct, grade.strict))

    def example(self, gold: Any) -> str:
        return self._metric.example(_forms(self._listed(gold)[0])[0])

    def _listed(self, gold: Any) -> list[Any]:
        if isinstance(gold, list):
            return gold
        if isinstance(gold, str) and gold.startswith("[") and gold.endswith("]"):
            for parse in (msgspec.json.decode, ast.literal_eval):
                try:
                    found = parse(gold)
                except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                    continue
                if found and all(isinstance(right, self._kinds) for right in found):
                    return list(found)
        return [gold]


def _forms(gold: Any) -> list[Any]:
    """Returns the value; before a whole float also the integer.

    Tables turn integers into floats if their column also has a null.
    """
    is_whole = isinstance(gold, float) and gold.is_integer() and abs(gold) < 2**53
    return [int(gold), gold] if is_whole else [gold]


class _Number(Metric):
    def read(self, gold: Any) -> Number:
        right = gold_number(as_text(gold))
        if right is None:
            raise Rejected(f"the gold answer holds no number: {_shown(gold)}")
        return right

    def grade(self, answer: str, right: Number, *, is_cut: bool = False) -> Grade:
        found, strict = final_number(answer, is_cut=is_cut), strict_number(answer)
        return Grade(
            None if found is None else str(found),
            found is not None and is_same(found, right),
            strict is not None and is_same(strict, right),
        )


class _Choice(Metric):
    def __init__(self, letters: str) -> None:
        self._letters = letters.upper()
        if not re.fullmatch("[A-Z]+", self._letters) or len({*self._letters}) < len(self._letters):
            raise ConfigError(
                f"the letters of a choice must be distinct, from A to Z, not {letters!r}",
                hint='letters = "ABCDE"',
            )

    def read(self, gold: Any) -> str:
        """Returns the gold letter; data sets such as MMLU give its index, counted from 0."""
        letter = as_text(gold).strip().upper().removesuffix(".0")
        # There are at most 26 letters, and Python refuses to parse a number of thousands of digits.
        if letter.isdecimal() and len(letter) <= 2 and int(letter) < len(self._letters):
            return self._letters[int(letter)]
        if len(letter) != 1 or letter not in self._letters:
            raise Rejected(
                f"the gold answer is none of {self._letters}: {_shown(gold)}",
                hint=f"it must be a letter, or its index, 0 for {self._letters[0]}; `letters` in "
                "the task's file sets other letters",
            )
        return letter

    def grade(self, answer: str, right: str, *, is_cut: bool = False) -> Grade:
        letter = final_choice(answer, self._letters, is_cut=is_cut)
        return Grade(letter, letter == right, spoken(answer).strip().upper() == right)

    def example(self, gold: Any) -> str:
        return self.read(gold)


class _Exact(Metric):
    def grade(self, answer: str, right: str, *, is_cut: bool = False) -> Grade:
        is_same = answer == right
        found = (answer if is_same else spoken(answer)).strip()
        return Grade(found or None, _plain(found) == _plain(right), is_same)


class _Regex(Metric):
    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"the pattern is not valid: {error}", where=pattern) from error
        if self._pattern.groups > 1:
            raise ConfigError(
                "the pattern has several groups, but only one can be the answer",
                where=pattern,
                hint="write the others as (?:...)",
            )

    def grade(self, answer: str, right: str, *, is_cut: bool = False) -> Grade:
        last = max(self._pattern.finditer(answer), key=re.Match.end, default=None)
        if last is None:
            return Grade()
        found = (last[1] if self._pattern.groups else last[0]) or ""
        is_right = _plain(found) == _plain(right)
        return Grade(found, is_right, is_right and last[0] == answer.strip())


class _Json(Metric):
    """Compares JSON. fields: the names to compare; if empty, the whole value is compared."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = tuple(fields)

    def read(self, gold: Any) -> Any:
        if isinstance(gold, str):
            try:
                gold = msgspec.json.decode(gold)
            except (ValueError, RecursionError) as error:
                raise Rejected(f"the gold answer is not JSON: {_shown(gold)}") from error
        if self._fields and not isinstance(gold, Mapping):
            raise Rejected(f"the gold answer is not an object: {_shown(gold)}")
        if not isinstance(gold, Mapping | list):
            raise Rejected(f"the gold answer is neither an object nor a list: {_shown(gold)}")
        if missing := [name for name in self._fields if name not in gold]:
            raise Rejected(f"the gold answer has no {', '.join(missing)}: {_shown(gold)}")
        return gold

    def grade(self, answer: str, right: Any, *, is_cut: bool = False) -> Grade:
        found = find_json(answer, "object" if isinstance(right, Mapping) else "array")
        if found is None:
            found = find_json(answer)
        if found is None:
            return Grade()
        if self._fields:
            value = found if isinstance(found, dict) else {}
            is_right = all(
                name in value and _is_equal(value[name], right[name]) for name in self._fields
            )
        else:
            is_right = _is_equal(found, right)
        is_alone = _is_json(answer) or _is_json(spoken(answer))
        return Grade(_kept(found), is_right, is_right and is_alone)


def _kept(found: Any) -> Any:
    """Returns the value, or its JSON as text if it contains half of a surrogate pair."""
    try:
        msgspec.json.encode(found)
    except UnicodeEncodeError:
        return json.dumps(found)
    return found


def _is_json(answer: str) -> bool:
    """Returns whether the answer is one JSON value and nothing else."""
    try:
        msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _is_equal(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal.

    1 equals 1.0; a boolean equals only itself. Texts are compared as by the metric `exact`.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return _plain(one) == _plain(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[k], other[k]) for k in one)
    return bool(one == other)


def _plain(text: str) -> str:
    """Normalizes a text: no outer quotes, no final period, single spaces, case folded, composed.

    The period may be before or after the closing quote. The typographic apostrophe counts as the
    plain one, which data sets use.
    """
    text = unicodedata.normalize("NFC", text).replace("’", "'")
    text = text.strip().rstrip(_PERIODS).strip(_QUOTES).strip().rstrip(_PERIODS)
    return " ".join(text.split()).casefold()


def _shown(gold: Any) -> str:
    return clipped(" ".join(as_text(gold).split()), _LONGEST_SHOWN)
