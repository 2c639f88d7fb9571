"""Estimates of tokens: a first guess, and what it learns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls import Cost, Reply, Request, TokenEstimator


def asking(text: Any, **body: Any) -> Request:
    return Request(body={"model": "m", "messages": [{"role": "user", "content": text}], **body})


def test_english_is_four_characters_to_a_token() -> None:
    cost = TokenEstimator().estimate(asking("x" * 400))
    assert 100 <= cost.input_tokens <= 110
    assert cost.tokens == cost.input_tokens + cost.output_tokens


def test_a_chinese_character_is_a_token() -> None:
    assert 100 <= TokenEstimator().estimate(asking("字" * 100)).input_tokens <= 110
    assert 25 <= TokenEstimator().estimate(asking("é" * 100)).input_tokens <= 45


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_first_output_is_the_requests_own_maximum(name: str) -> None:
    assert TokenEstimator().estimate(asking("a", **{name: 77})).output_tokens == 77
    assert TokenEstimator().estimate(asking("a", n=3, **{name: 77})).output_tokens == 231


def test_without_a_maximum_the_first_output_is_256() -> None:
    assert TokenEstimator().estimate(asking("a")).output_tokens == 256


def test_embeddings_have_no_output() -> None:
    request = Request(url="/v1/embeddings", body={"input": ["a" * 40, "b" * 40]})
    assert TokenEstimator().estimate(request) == Cost(20, 0)


@pytest.mark.parametrize("body", [None, "text", ["a"], 3])
def test_a_body_that_is_no_object_costs_the_least(body: object) -> None:
    assert TokenEstimator().estimate(Request(body=body)) == Cost(1, 1)


def test_an_image_is_not_counted_by_its_base64() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    cost = TokenEstimator().estimate(asking([{"type": "text", "text": "what?"}, image]))
    assert 765 <= cost.input_tokens <= 800


def test_it_learns_the_input_and_the_output_of_a_model() -> None:
    estimator = TokenEstimator()
    request = asking("x" * 400)
    first = estimator.estimate(request).input_tokens
    for _ in range(200):
        estimator.learn(request, Reply(input_tokens=first * 2, output_tokens=40))
    cost = estimator.estimate(request)
    assert cost.input_tokens == pytest.approx(first * 2, rel=0.05)
    # A steady output leaves hardly any deviation to keep free.
    assert 40 <= cost.output_tokens <= 44


def test_a_learned_output_stays_within_the_requests_maximum() -> None:
    estimator = TokenEstimator()
    for tokens in (900, 10) * 50:
        estimator.learn(asking("a"), Reply(output_tokens=tokens))
    assert estimator.estimate(asking("a")).output_tokens > 900
    assert estimator.estimate(asking("a", max_tokens=100)).output_tokens == 100


def test_a_reply_without_usage_teaches_nothing() -> None:
    estimator = TokenEstimator()
    before = estimator.estimate(asking("a"))
    estimator.learn(asking("a"), Reply())
    estimator.learn(Request(body=None), Reply(input_tokens=9))
    assert estimator.estimate(asking("a")) == before


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=9,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["messages", "prompt", "max_tokens", "n", "input"]), ANY),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=5),
)
def test_an_estimate_is_always_at_least_one_token(
    body: dict[str, Any], replies: list[tuple[int, int]]
) -> None:
    estimator = TokenEstimator()
    for sent, came in replies:
        estimator.learn(Request(body=body), Reply(input_tokens=sent, output_tokens=came))
    cost = estimator.estimate(Request(body=body))
    assert cost.input_tokens >= 1
    assert cost.output_tokens >= 1
