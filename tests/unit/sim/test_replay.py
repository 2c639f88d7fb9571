"""Replayed answers: the longest question that stands in the message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.errors import ConfigError
from redline.sim.answers import Replay, load_replay
from redline.sim.answers import replay as replay_module


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def naive(questions: list[str], message: str) -> str | None:
    """The longest question the message contains, found by trying all."""
    found = [question for question in questions if question in message]
    return max(found, key=len) if found else None


# Two letters make questions overlap and repeat; the lengths reach across every kind of anchor.
LETTERS = st.text("ab", min_size=1, max_size=60)


@settings(max_examples=400, deadline=None)
@given(
    questions=st.lists(LETTERS, min_size=1, max_size=12, unique=True),
    data=st.data(),
)
def test_finds_what_trying_all_finds(questions: list[str], data: st.DataObject) -> None:
    middle = data.draw(st.sampled_from([*questions, ""]))
    message = data.draw(LETTERS) + middle + data.draw(LETTERS)
    answers = Replay((question, f"answer {question}") for question in questions)
    expected = naive(questions, message)
    found = answers.answer(message)
    # Questions of the same length may tie; any of them is right.
    if expected is None:
        assert found is None
    else:
        assert found is not None
        question = found.removeprefix("answer ")
        assert question in message
        assert len(question) == len(expected)


def test_the_message_itself_is_enough() -> None:
    answers = Replay([("2 + 2?", "4"), ("What is 2 + 2?", "four")])
    assert answers.answer("2 + 2?") == "4"
    assert answers.answer("  What is 2 + 2?\n") == "four"
    assert answers.answer("Solve: What is 2 + 2? Think.") == "four"
    assert answers.answer("2 + 3?") is None


class Looked(str):
    """A message that counts how often a piece of it is taken."""

    looks = 0

    def __getitem__(self, key: Any) -> str:
        self.looks += 1
        return super().__getitem__(key)


def test_a_long_prompt_is_not_looked_at_in_every_place() -> None:
    questions = [f"{number} boxes hold twelve eggs each. How many eggs?" for number in range(50)]
    answers = Replay((question, str(number)) for number, question in enumerate(questions))
    prompt = Looked("Answer as the examples do. " * 300 + questions[7])
    assert answers.answer(prompt) == "7"
    assert prompt.looks <= len(prompt) / 8 + 1


def test_the_first_answer_to_a_question_counts() -> None:
    assert Replay([("a?", "1"), ("a? ", "2")]).answer("a?") == "1"


def test_all_gsm8k_test_questions_are_answered(shared_data: Path) -> None:
    path = shared_data / "gsm8k" / "answers-175b-finetuning.jsonl"
    answers = load_replay(path)
    lines = rows(shared_data / "gsm8k" / "test.jsonl")
    model = {row["question"]: row["answer"] for row in rows(path)}
    assert len(lines) == len(answers) == 1319
    for line in lines:
        question = line["question"]
        assert answers.answer(question) == model[question]
        assert answers.answer(f"Q: {question}\nA:") == model[question]
        assert answers.answer(f"Solve it.\n\n{question}") == model[question]
    assert answers.answer("What is the capital of France?") is None


def test_the_official_test_file_is_a_replay_file(shared_data: Path) -> None:
    path = shared_data / "gsm8k" / "test.jsonl"
    answers = load_replay(path)
    assert len(answers) == 1319
    line = rows(path)[0]
    assert answers.answer(line["question"]) == line["answer"]


def test_a_byte_order_mark_and_empty_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "a?", "answer": "1"}\r\n\r\n')
    assert load_replay(path).answer("a?") == "1"


@pytest.mark.parametrize(
    ("content", "what", "place"),
    [
        ('{"question": "a?", "answer": "1"}\nnonsense\n', "not a question with an answer", ":2"),
        ('{"question": "a?"}\n', "missing required field `answer`", ":1"),
        ('{"question": " ", "answer": "1"}\n', "empty question", ":1"),
        ("\n", "no questions", ""),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, content: str, what: str, place: str
) -> None:
    path = tmp_path / "replay.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=what) as caught:
        load_replay(path)
    assert caught.value.where == f"{path}{place}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        load_replay(tmp_path / "none.jsonl")
    assert caught.value.where == str(tmp_path / "none.jsonl")


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "MAX_LINES", 2)
    path = tmp_path / "replay.jsonl"
    path.write_text('{"question": "a?", "answer": "1"}\n' * 3)
    with pytest.raises(ConfigError, match="more than 2 questions"):
        load_replay(path)
