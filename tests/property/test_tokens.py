"""Whatever the body and whatever the usage: an estimate comes, and within its bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls import Reply, Request, TokenEstimator

MANY = settings(max_examples=100, deadline=None)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)
FIELDS = [
    "model", "messages", "prompt", "input", "instructions", "tools", "response_format", "text",
    "max_tokens", "max_completion_tokens", "n", "system",
]  # fmt: skip
PARTS = st.fixed_dictionaries(
    {}, optional={"role": ANY, "type": ANY, "content": ANY, "text": ANY, "image_url": ANY}
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), ANY | st.lists(PARTS, max_size=3))
# As they usually are, and nearly so.
TEXTS = st.text(max_size=50) | st.sampled_from(["data:image/png;base64,x", " data:x"])
MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": TEXTS})
NUMBERS = st.none() | st.integers(-2, 10**7) | st.sampled_from(["4", 4.0, 10**30])
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES | PARTS, max_size=3)},
    optional={
        "model": st.text(max_size=5) | st.just("m" * 300) | st.none(),
        "max_tokens": NUMBERS,
        "max_completion_tokens": NUMBERS,
        "n": NUMBERS,
        "temperature": ANY,
        "stream": st.booleans(),
        "prompt": TEXTS | st.lists(TEXTS),
        "tools": ANY,
        "foo": ANY,
    },
)
USER = {"role": "user", "content": "Wie viele 1, 2 \u4f60 sind hier? " * 40}
URLS = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/x?y=1", ""])
USAGE = st.none() | st.integers(-10, 10**12) | st.sampled_from(["7", 1.5, float("inf"), True, []])


def taught(body: Any, url: str, replies: list[tuple[Any, Any]]) -> tuple[TokenEstimator, Request]:
    estimator, request = TokenEstimator(), Request(url=url, body=body)
    for sent, came in replies:
        reply = Reply(input_tokens=sent, output_tokens=came)
        estimator.end(estimator.begin(request), reply, 1.0)
    return estimator, request


@pytest.mark.slow
@MANY
@given(BODIES | ANY, URLS, st.lists(st.tuples(USAGE, USAGE), max_size=12))
def test_any_body_has_an_estimate(body: Any, url: str, replies: list[tuple[Any, Any]]) -> None:
    estimator, request = taught(body, url, replies)
    least_output = 0 if url.endswith("embeddings") and isinstance(body, dict) else 1
    for cost in (estimator.estimate(request), estimator.most(request)):
        assert cost.input_tokens >= 1
        assert cost.output_tokens >= least_output
        assert type(cost.input_tokens) is type(cost.output_tokens) is int
    assert estimator.least(request) >= 1


@pytest.mark.slow
@MANY
@given(BODIES | CHATS, URLS)
def test_the_form_of_a_body_changes_nothing(body: Any, url: str) -> None:
    """Given as JSON, a body costs what it costs as a value; usual chats have a way of their own."""
    raw = msgspec.json.encode(body)
    estimator = TokenEstimator()
    as_json, as_value = Request(url=url, raw=raw), Request(url=url, body=msgspec.json.decode(raw))
    assert estimator.estimate(as_json) == estimator.estimate(as_value)
    assert estimator.most(as_json) == estimator.most(as_value)
    for name in ("n", "prompt", "input"):
        assert (as_json.asked or {}).get(name) == as_value.body.get(name)


@pytest.mark.slow
@MANY
@given(CHATS, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12))
def test_no_estimate_passes_a_bound(body: Any, replies: list[tuple[int, int]]) -> None:
    """Whatever is learned: of a usual chat, of long texts, or of a prompt that the server adds."""
    estimator, request = TokenEstimator(), Request(raw=msgspec.json.encode(body))
    other = Request(raw=msgspec.json.encode({**body, "messages": [USER]}))
    for number in range(260 // max(1, len(replies)) + 1):
        for sent, came in replies:
            reply = Reply(input_tokens=sent, output_tokens=came)
            estimator.end(estimator.begin(other if number % 2 else request), reply, 1.0)
    bound, estimate = estimator.bound(request, 10**9), estimator.estimate(request)
    if bound is not None:
        assert bound.is_bound
        assert bound.input_tokens >= max(estimate.input_tokens, len(request.raw or b""))
        assert (bound.output_tokens, bound.spread) == (estimate.output_tokens, estimate.spread)
        assert estimator.bound(request, bound.tokens) == bound
        assert estimator.bound(request, bound.tokens - 1) is None


@MANY
@given(
    st.text(max_size=200),
    st.integers(1, 10**5),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12),
)
def test_an_output_never_passes_what_the_request_allows(
    text: str, most: int, n: int, replies: list[tuple[int, int]]
) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": most, "n": n}
    estimator, request = taught(body, "/v1/chat/completions", replies)
    estimate = estimator.estimate(request)
    assert 1 <= estimate.output_tokens <= most * n
    assert estimate.output_tokens + estimate.spread.most <= most * n + n
    assert estimator.most(request).output_tokens == most * n
    assert min(msgspec.structs.astuple(estimate.spread)) >= 0


@pytest.mark.slow
@MANY
@given(st.text(max_size=200))
def test_the_least_is_below_the_first_estimate(text: str) -> None:
    request = Request(body={"messages": [{"role": "user", "content": text}]})
    estimator = TokenEstimator()
    assert estimator.least(request) <= estimator.estimate(request).input_tokens
