"""GSM8K's own data: its reference answers, and a real model's 1,319 solutions with their marks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.tasks.answers import Number, final_number, gold_number, is_same, strict_number
from support.catching import assert_caught


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def questions(shared_data: Path) -> list[tuple[dict[str, Any], Number]]:
    """Each test question with its reference number."""
    found = [(row, gold_number(row["answer"])) for row in read(shared_data / "gsm8k/test.jsonl")]
    return [(row, gold) for row, gold in found if gold is not None]


@pytest.fixture(scope="module")
def solutions(
    shared_data: Path, questions: list[tuple[dict[str, Any], Number]]
) -> list[tuple[str, bool, Number]]:
    """Each of the model's solutions, whether it is marked as correct, and the reference number."""
    rows = read(shared_data / "gsm8k/answers-175b-finetuning.jsonl")
    pairs = zip(rows, questions, strict=True)
    return [(row["answer"], row["is_correct"], gold) for row, (_, gold) in pairs]


def before_the_last_line(answer: str) -> Number | None:
    """An extractor that reads the working and not the line that announces the answer."""
    return final_number(answer.rpartition("\n")[0])


@pytest.mark.slow
def test_every_solution_is_judged_as_its_publisher_did(
    solutions: list[tuple[str, bool, Number]],
) -> None:
    def check(extract: Callable[[str], Number | None]) -> None:
        wrong = []
        for answer, is_correct, gold in solutions:
            found = extract(answer)
            if (found is not None and is_same(found, gold)) != is_correct:
                wrong.append((answer[-80:], found, str(gold)))
        assert wrong == []

    assert len(solutions) == 1319
    assert sum(is_correct for _, is_correct, _ in solutions) == 458
    assert_caught(check, final_number, before_the_last_line)


def test_a_solution_that_was_cut_has_no_number(solutions: list[tuple[str, bool, Number]]) -> None:
    cut = [answer for answer, _, _ in solutions if "\nA:" not in answer]
    assert len(cut) == 5
    assert [final_number(answer) for answer in cut] == [None] * 5


def test_solutions_that_end_with_a_label_lack_the_strict_form(
    solutions: list[tuple[str, bool, Number]],
) -> None:
    assert all(strict_number(answer) is None for answer, _, _ in solutions)


def test_every_reference_answer_is_found_in_itself(
    questions: list[tuple[dict[str, Any], Number]],
) -> None:
    assert len(questions) == 1319
    for row, gold in questions:
        for found in (final_number(row["answer"]), strict_number(row["answer"])):
            assert found == gold


@pytest.mark.slow
def test_without_its_last_line_a_reference_solution_still_concludes_with_its_number(
    questions: list[tuple[dict[str, Any], Number]],
) -> None:
    """The texts were written by people who did not know that the last line would be cut off.

    In four of them the text itself ends with another number than the last line, such as dollars
    for cents.
    """
    wrong = []
    for row, gold in questions:
        found = final_number(row["answer"].rpartition("\n####")[0])
        if found is None or not is_same(found, gold):
            wrong.append((row["answer"][-120:], found))
    assert len(wrong) <= 4, wrong


def _markdown(solution: str, number: str) -> str:
    steps = [f"{count}. {line}" for count, line in enumerate(solution.split("\n"), 1)]
    return "\n".join(["## Solution", "", *steps])


def _thought(solution: str, number: str) -> str:
    return f"<think>\n{solution}\nThe answer is 77777.\n</think>\n\nIn the end it is {number}."


DRESSED: dict[str, Callable[[str, str], str]] = {
    "markdown": _markdown,
    "reasoning": _thought,
    "one line": lambda solution, number: solution.replace(".\n", "\n").replace("\n", ". ") + ".",
    "a label before": lambda solution, number: f"A: {solution}",
    "an echo": lambda solution, number: f"How much is it if they have 12 more?\n\n{solution}",
    "closing words": lambda solution, number: (
        f"{solution}\n\nI hope this helps! Let me know if you have 2 more questions."
    ),
    "a check": lambda solution, number: f"{solution}\n\n**Verification:** 3 * 4 = 12 ✓",
    "answer first": lambda solution, number: f"**{number}**\n\nExplanation: {solution}",
    "a box": lambda solution, number: (
        solution.replace("$", "\\$") + f"\n\nSo the answer is $\\boxed{{{number}}}$."
    ),
    "a next question": lambda solution, number: (
        f"{solution}\n#### {number}\n\nQuestion: Tom has 3 hats and buys 2. How many has he?\n"
        "Answer: He has 3 + 2 = 5 hats.\n#### 5"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRESSED)
def test_a_solution_says_the_same_however_it_is_dressed(
    questions: list[tuple[dict[str, Any], Number]], name: str
) -> None:
    """Of every seventh solution that is read rightly as it stands, at most one is lost."""
    wrong = []
    for row, gold in questions[::7]:
        solution, _, number = row["answer"].rpartition("\n#### ")
        solution = re.sub(r"<<[^>]*>>", "", solution)
        plain = final_number(solution)
        if plain is None or not is_same(plain, gold):
            continue
        found = final_number(DRESSED[name](solution, number))
        if found is None or not is_same(found, gold):
            wrong.append((solution[-120:], found))
    assert len(wrong) <= 1, wrong
