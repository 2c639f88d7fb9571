"""What a body asks for is read in one pass, and is the same whichever way it is read."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.calls import Request
from redline.calls.http import streaming
from redline.calls.tokens import Chat, TokenEstimator, facts_of, keep_facts

TEXT = st.text(max_size=50)
CHAT = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=4)},
    optional={
        "model": st.text(max_size=20),
        "stream": st.booleans() | st.none(),
        "stream_options": st.none() | st.just({"include_usage": True}),
        "priority": st.integers(-5, 5) | st.none(),
        "max_tokens": st.none() | st.integers(1, 1000),
        "max_completion_tokens": st.none() | st.integers(1, 1000),
        "service_tier": st.none() | st.just("flex"),
        "temperature": st.floats(0, 2),
        "user": TEXT,
    },
)
FACTS = ("model", "stream", "stream_options", "priority", "max_tokens", "service_tier")


def said(*contents: Any, **more: Any) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def estimated(request: Request) -> tuple[int, int]:
    cost = TokenEstimator().estimate(request)
    return cost.input_tokens, cost.output_tokens


@given(CHAT, st.booleans())
def test_a_chat_as_most_are(body: dict[str, Any], is_ascii: bool) -> None:
    raw = json.dumps(body, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    facts = facts_of(raw)
    for name in FACTS:
        assert getattr(facts, name) == body.get(name)
    contents = [message["content"] for message in body["messages"]]
    if isinstance(facts, Chat):
        assert facts.texts() == contents
    else:
        assert any(content.startswith("data:") for content in contents)


@given(CHAT)
def test_an_estimate_is_the_same_by_the_facts_as_by_the_whole_body(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    known = Request(raw=raw, url="/v1/chat/completions")
    keep_facts(known, facts_of(raw))
    assert estimated(known) == estimated(Request(body=body, url="/v1/chat/completions"))


@pytest.mark.parametrize(
    "raw",
    [
        said("data:image/png;base64,AAAA"),
        said("a", "data:,"),
        said("data:,").replace(b"data", rb"\u0064ata"),
        said(["a"]),
        said(None),
        said(1),
        said("a", tools=[]),
        said("a", n=2),
        said("a", n=1.5),
        said("a", max_tokens=0),
        b"[]",
        b"",
        b'{"messages":',
        b'{"messages":[{"role":"user"}]}',
        b'{"messages":[{"role":"user","content":"a","name":"b"}]}',
    ],
)
def test_what_may_be_more_than_texts_is_no_chat_as_most_are(raw: bytes) -> None:
    assert not isinstance(facts_of(raw), Chat)


@pytest.mark.parametrize("more", [{"service_tier": "flex"}, {"service_tier": "flex", "stream": 7}])
def test_half_a_surrogate_pair_hides_no_fact(more: dict[str, Any]) -> None:
    facts = facts_of(said("a\ud800", **more))
    assert (facts.model, facts.service_tier) == ("m", "flex")


@pytest.mark.parametrize("wrong", [b"\xff", rb"\ud800"])
def test_a_text_that_is_none_is_the_endpoints_to_refuse(wrong: bytes) -> None:
    raw = said("a", "b").replace(b'"b"', b'"b%b"' % wrong)
    request = Request(raw=raw, url="/v1/chat/completions")
    keep_facts(request, facts_of(raw))
    assert estimated(request)[0] > 0
    assert request.raw == raw


@pytest.mark.parametrize(
    ("url", "more", "is_kept"),
    [
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}}, True),
        ("/v1/chat/completions", {"stream": True, "stream_options": None}, False),
        ("/v1/chat/completions", {"stream": True}, False),
        ("/v1/chat/completions", {"stream": 1, "stream_options": {}}, False),
        ("/v1/chat/completions", {"stream_options": {}}, False),
        ("/v1/responses", {"stream": True}, True),
        ("/v1/responses", {}, False),
    ],
)
def test_a_body_that_asks_for_a_stream_is_sent_as_it_is(
    url: str, more: dict[str, Any], is_kept: bool
) -> None:
    raw = said("a", **more)
    sent = streaming(Request(raw=raw, url=url))
    assert (sent.raw == raw) == is_kept
    assert sent.body["stream"] is True
    is_chat = url.endswith("completions")
    if is_chat and "stream_options" not in more:
        assert sent.body["stream_options"] == {"include_usage": True}
    else:
        assert sent.body.get("stream_options") == more.get("stream_options")
        assert "stream_options" not in sent.body or sent.body["stream_options"] is not None


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_output_tokens": 5}, 5),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": -(10**9)}, None),
        ({"max_tokens": 10**15}, 1_000_000),
        ({"max_tokens": 1, "max_completion_tokens": 5}, 5),
        ({"max_tokens": -1, "max_completion_tokens": 5}, 5),
    ],
)
def test_a_maximum_is_a_number_of_tokens_that_an_answer_may_have(
    fields: dict[str, int], most: int | None
) -> None:
    assert (
        facts_of(json.dumps({"model": "m", "messages": [], **fields}).encode()).most_tokens == most
    )


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1),
        ({"n": 1}, 1),
        ({"n": 3}, 3),
        ({"n": "3"}, 3),
        ({"n": 3, "max_tokens": "many"}, 3),
        ({"n": 3, "best_of": 5}, 5),
        ({"n": 3, "prompt": ["a", "b"]}, 6),
        ({"n": 3, "max_tokens": "many", "prompt": ["a", "b"]}, 6),
        ({"n": 3, "prompt": [[1, 2], [3]]}, 6),
        ({"n": 3, "prompt": [1, 2]}, 3),
        ({"n": 3, "prompt": "[a]"}, 3),
        ({"n": 3, "prompt": []}, 3),
        ({"n": []}, 1),
    ],
)
def test_the_number_of_billed_answers_is_a_fact(fields: dict[str, Any], answers: int) -> None:
    assert facts_of(said("a", **fields)).drafts == answers


@pytest.mark.parametrize("prompt", ["\u00e9" * 20_000, [[*range(500)]] * 40, [*range(20_000)]])
def test_facts_keep_no_copy_of_a_prompt(prompt: Any) -> None:
    raw = json.dumps({"model": "m", "prompt": prompt}).encode()
    tracemalloc.start()
    try:
        facts = facts_of(raw)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert facts.model == "m"
    assert size_bytes < len(raw) // 10
