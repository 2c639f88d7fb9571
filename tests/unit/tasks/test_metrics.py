"""What each metric finds in an answer, and when that is right."""

from __future__ import annotations

from typing import Any

import pytest

from redline.errors import ConfigError, Rejected
from redline.tasks.evaluate import Grade, metric_of, verdict

# metric, its parts, gold, answer, what is found, right, strict.
GRADES: list[tuple[str, dict[str, Any], Any, str, Any, bool, bool]] = [
    ("number", {}, "so 18\n#### 18", "It makes 18.\n#### 18", "18", True, True),
    ("number", {}, "18", "The answer is $18.00.", "18", True, False),
    ("number", {}, 18, "#### 17", "17", False, False),
    ("number", {}, "18", "I cannot help with that.", None, False, False),
    ("choice", {}, "C", "The answer is (C).", "C", True, False),
    ("choice", {}, "c", "C", "C", True, True),
    ("choice", {}, "C", "<think>A?</think>\n\nC", "C", True, True),
    ("choice", {}, "B", "The answer is (C).", "C", False, False),
    ("choice", {"letters": "ABCDEFGHIJ"}, "J", "Answer: J", "J", True, False),
    ("choice", {"letters": "abcde"}, 4, "Answer: E", "E", True, False),
    ("exact", {}, "Paris", "paris.", "paris.", True, False),
    ("exact", {}, "Paris", "Paris", "Paris", True, True),
    ("exact", {}, "Paris", '"Paris".', '"Paris".', True, False),
    ("exact", {}, "Paris", "„Paris.“", "„Paris.“", True, False),
    ("exact", {}, "巴黎", "「巴黎」。", "「巴黎」。", True, False),
    ("exact", {}, "N'Djame\u0301na", "N’Djam\u00e9na", "N’Djam\u00e9na", True, False),
    ("exact", {}, "Paris", "It is Paris", "It is Paris", False, False),
    ("exact", {}, "Paris", "  ", None, False, False),
    ("exact", {}, "Paris", "<think>France?</think>\nParis", "Paris", True, False),
    ("exact", {}, "<think>x</think>", "<think>x</think>", "<think>x</think>", True, True),
    (
        "regex",
        {"pattern": r"Label: (\w+)"},
        "spam",
        "Label: ham. No. Label: Spam",
        "Spam",
        True,
        False,
    ),
    ("regex", {"pattern": r"Label: (\w+)"}, "spam", "Label: spam", "spam", True, True),
    ("regex", {"pattern": r"yes|no"}, "no", "maybe", None, False, False),
    ("json", {}, '{"a": 1}', 'Sure:\n```json\n{"a": 1.0}\n```', {"a": 1.0}, True, False),
    ("json", {}, {"a": [1, "X"]}, '{"a": [1, "x"]}', {"a": [1, "x"]}, True, True),
    ("json", {}, {"a": "cafe\u0301"}, '{"a": "caf\u00e9"}', {"a": "caf\u00e9"}, True, True),
    ("json", {}, {"a": 1}, '<think>{}</think>{"a": 1}', {"a": 1}, True, True),
    ("json", {}, {"a": "</think>"}, '{"a": "</think>"}', {"a": "</think>"}, True, True),
    ("json", {}, {"a": True}, '{"a": 1}', {"a": 1}, False, False),
    ("json", {"fields": ("a",)}, {"a": 1, "b": 2}, '{"a": 1}', {"a": 1}, True, True),
    ("json", {"fields": ("b",)}, {"a": 1, "b": 2}, '{"a": 1}', {"a": 1}, False, False),
    ("json", {}, {"a": 1}, "none", None, False, False),
    ("json", {}, {"a": 1}, '{"a": 1}\n\nSources: [1]', {"a": 1}, True, False),
    ("json", {}, [1], '[1]\n\nUsage: {"b": 2}', [1], True, False),
    ("json", {}, {"a": 1}, "[1]", [1], False, False),
]


def test_each_metric_grades_as_its_table_says() -> None:
    for name, parts, gold, answer, found, right, strict in GRADES:
        metric = metric_of(name, **parts)
        grade = metric.grade(answer, metric.read(gold))
        assert (grade.extracted, grade.correct, grade.strict) == (found, right, strict), answer


# Python refuses each of these as a literal with an error of another class.
NO_LISTS = {
    "an unhashable key": "[{[1]: 2}]",
    "a sign before a text": "[+'a']",
    "an open bracket": "[[1]",
    "too many brackets": "[" * 10_000 + "]",
    "too many signs": "[" + "-" * 10_000 + "1]",
}


@pytest.mark.parametrize("gold", NO_LISTS.values(), ids=NO_LISTS)
def test_a_gold_text_in_brackets_that_is_no_list_is_itself_the_answer(gold: str) -> None:
    metric = metric_of("exact")
    right = metric.read(gold)
    assert metric.grade(gold, right) == Grade(gold, correct=True, strict=True)
    assert not metric.grade("1", right).correct


@pytest.mark.parametrize("gold", [3, "3", '"x"', True, "null"])
def test_json_that_no_answer_can_be_equal_to_is_refused_before_it_costs(gold: object) -> None:
    with pytest.raises(Rejected, match="neither an object nor a list"):
        metric_of("json").read(gold)


def test_json_beside_brackets_too_deep_to_be_read_is_right_and_not_strict() -> None:
    answer = "[" * 100_000 + "]" * 100_000 + ' {"a": 1}'
    grade = metric_of("json").grade(answer, {"a": 1})
    assert (grade.extracted, grade.correct, grade.strict) == ({"a": 1}, True, False)


@pytest.mark.parametrize(
    ("metric", "gold", "right"),
    [
        ("exact", 5.0, {"5": True, "5.0": True, "5.5": False}),
        ("exact", [-3.0, 1e300], {"-3": True, "1e300": True}),
        ("regex", 5.0, {"5": True, "6": False}),
        ("number", 5.0, {"5": True}),
        ("choice", 1.0, {"B": True}),
    ],
)
def test_a_table_has_whole_gold_numbers_as_floats_if_one_is_missing(
    metric: str, gold: Any, right: dict[str, bool]
) -> None:
    graded = metric_of(metric, pattern=r"\d+" if metric == "regex" else None)
    rights = graded.read(gold)
    assert {answer: graded.grade(answer, rights).correct for answer in right} == right
    assert graded.example(gold) == next(iter(right))


def test_an_answer_that_was_cut_has_no_number_at_its_end() -> None:
    metric = metric_of("number")
    assert metric.grade("She earns 18", metric.read("18"), is_cut=True).extracted is None


def test_an_answer_that_was_cut_has_not_chosen_the_option_that_it_considers() -> None:
    metric = metric_of("choice")
    answer = "We go through them. First, option B"
    assert metric.grade(answer, metric.read("B")).correct
    assert metric.grade(answer, metric.read("B"), is_cut=True).extracted is None


@pytest.mark.parametrize(
    ("name", "parts", "gold"),
    [
        ("number", {}, "many"),
        ("choice", {}, "E"),
        ("choice", {}, "AB"),
        ("choice", {}, "1" * 5000),
        ("json", {}, "{"),
        ("json", {}, '"\ud800"'),
        ("json", {}, "[" * 100_000 + "]" * 100_000),
        ("json", {"fields": ("a",)}, "[1]"),
        ("json", {"fields": ("a",)}, {"b": 1}),
    ],
)
def test_a_gold_answer_that_nothing_could_match_is_refused(
    name: str, parts: dict[str, Any], gold: Any
) -> None:
    with pytest.raises(Rejected, match="gold answer"):
        metric_of(name, **parts).read(gold)


@pytest.mark.parametrize(
    ("name", "parts", "what"),
    [
        ("numbr", {}, "unknown metric: numbr"),
        ("regex", {}, "needs a pattern"),
        ("regex", {"pattern": "("}, "not valid"),
        ("regex", {"pattern": "(a)(b)"}, "several groups"),
        ("choice", {"letters": ""}, "distinct, from A to Z, not ''"),
        ("choice", {"letters": "A,B,C"}, "distinct, from A to Z, not 'A,B,C'"),
        ("choice", {"letters": "1234"}, "distinct, from A to Z, not '1234'"),
        ("choice", {"letters": "aA"}, "distinct, from A to Z, not 'aA'"),
        ("exact", {"pattern": "a"}, "takes no pattern"),
        ("exact", {"fields": ("a",)}, "takes no fields"),
        ("regex", {"pattern": "a", "fields": ("a",)}, "takes no fields"),
    ],
)
def test_a_metric_without_its_parts_is_refused(name: str, parts: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        metric_of(name, **parts)


def test_what_is_no_answer_is_told_apart_from_a_wrong_one() -> None:
    wrong, nothing = Grade("17", correct=False, strict=False), Grade(None, False, False)
    right = Grade("18", correct=True, strict=False)
    assert verdict(right, "length") == "correct"
    assert verdict(wrong, "stop") == "wrong"
    assert verdict(nothing, "stop") == "invalid"
    assert verdict(wrong, "length") == verdict(nothing, "length") == "truncated"
    assert verdict(nothing, "refusal") == verdict(nothing, "content_filter") == "filtered"
