"""Token counts, cuts, echoes and vectors."""

from __future__ import annotations

import json
import struct
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.apis import JsonSchema, ResponseFormat
from redline.sim.answers import (
    Answers,
    BadCall,
    Replay,
    count_tokens,
    cut,
    embedding,
    packed,
)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("äöü", 2), ("\ud800", 1)]
)
def test_tokens_are_bytes_by_four_rounded_up(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@given(text=st.text(max_size=60), max_tokens=st.integers(1, 20))
def test_a_cut_answer_is_the_beginning_within_its_tokens(text: str, max_tokens: int) -> None:
    said = cut(text, max_tokens)
    assert text.startswith(said.text)
    assert said.tokens == count_tokens(said.text) <= max_tokens
    assert said.is_cut == (count_tokens(text) > max_tokens)
    assert said.is_cut or said.text == text


def test_a_text_of_any_length_is_answered_within_bounds() -> None:
    answer = Answers().answer("x" * 5_000_000)
    assert answer.startswith("You said: xxx")
    assert len(answer) < 1100


def test_json_is_answered_where_it_is_asked_for() -> None:
    answers = Answers()
    plain = json.loads(answers.answer("hi", ResponseFormat(type="json_object")))
    assert plain == {"answer": "You said: hi"}
    schema = {"type": "object", "properties": {"label": {"enum": ["bug"]}}}
    for form in (
        ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=schema)),
        ResponseFormat(type="json_schema", schema=schema),
    ):
        assert json.loads(answers.answer("hi", form)) == {"label": "bug"}


def test_a_replay_without_the_question_says_so() -> None:
    answers = Answers(Replay([("2 + 2?", "4")]))
    assert answers.answer("What is 2 + 2?", ResponseFormat(type="json_object")) == "4"
    with pytest.raises(
        BadCall, match="no question of the replay file, which has 1 question"
    ) as caught:
        answers.answer("3 + 3?")
    assert (caught.value.status, caught.value.code) == (400, "no_such_question")


@pytest.mark.parametrize("dimensions", [1, 8, 4096])
def test_vectors_have_length_one_and_belong_to_their_text(dimensions: int) -> None:
    vector = embedding("hello", dimensions)
    assert len(vector) == dimensions
    assert sum(value * value for value in vector) == pytest.approx(1)
    assert vector == embedding("hello", dimensions)
    assert vector != embedding("hallo", dimensions)


def test_packed_vectors_are_32_bit_floats() -> None:
    vector = embedding("hello", 8)
    assert struct.unpack("<8f", b64decode(packed(vector))) == pytest.approx(vector)
