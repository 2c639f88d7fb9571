"""Replies in OpenAI's shapes, and what they will cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redline.apis import EventParser
from redline.sim.answers import ENDPOINTS, Answers, BadCall, Draft, Stories, count_tokens
from support.events import completed


def draft(endpoint: str, **body: Any) -> Draft:
    raw = json.dumps({"model": "m", **body}).encode()
    return ENDPOINTS[f"/v1/{endpoint}"](raw, Answers())


def events_of(streamed: Draft) -> list[tuple[int, Any]]:
    """The events as a client reads them, each with the tokens up to it."""
    found = []
    for tokens, data, _ in streamed.events(1, 0):
        (event,) = completed(EventParser(), data)
        found.append((tokens, json.loads(event)))
    return found


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_chat_reply_is_whole() -> None:
    messages = [{"role": "system", "content": "be brief"}, *user("hello")]
    reply = draft("chat/completions", messages=messages).whole(3, 1_700_000_000)
    assert reply == {
        "id": "chatcmpl-sim3",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "You said: hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8},
    }


def test_the_last_user_message_is_answered_and_parts_are_read() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    messages = [*user("first"), *user(parts), {"role": "assistant", "content": "hm"}]
    reply = draft("chat/completions", messages=messages).whole(1, 0)
    assert reply["choices"][0]["message"]["content"].startswith("You said: look")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_token_limit_cuts_and_is_charged(name: str) -> None:
    cheap = draft("chat/completions", messages=user("hello " * 50), n=2, **{name: 5})
    reply = cheap.whole(1, 0)
    assert cheap.completion_tokens == 10
    assert cheap.prompt_tokens == 75
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    for choice in reply["choices"]:
        assert choice["finish_reason"] == "length"
        assert count_tokens(choice["message"]["content"]) == 5


@pytest.mark.parametrize("text", ["hello there,  you\nand ünï 🎈 code ", "one", ""])
@pytest.mark.parametrize("has_usage", [True, False])
def test_a_stream_says_the_same_as_the_whole(text: str, has_usage: bool) -> None:
    streamed = draft(
        "chat/completions",
        messages=user(text),
        n=2,
        stream=True,
        stream_options={"include_usage": has_usage},
    )
    assert streamed.is_stream
    events = events_of(streamed)
    tokens = [told for told, _ in events]
    assert tokens == sorted(tokens)
    assert tokens[-1] == streamed.completion_tokens
    for index, choice in enumerate(streamed.whole(1, 0)["choices"]):
        pieces = [e["choices"][0] for _, e in events if e["choices"]]
        mine = [piece for piece in pieces if piece["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        said = "".join(piece["delta"].get("content", "") for piece in mine)
        assert said == choice["message"]["content"]
        assert [piece["finish_reason"] for piece in mine][-2:] == [None, "stop"]
    last = events[-1][1]
    if has_usage:
        assert last["choices"] == []
        assert last["usage"] == streamed.whole(1, 0)["usage"]
        assert all(event["usage"] is None for _, event in events[:-1])
    else:
        assert all("usage" not in event for _, event in events)


@pytest.mark.parametrize("text", ["", " ", "\0" * 1000, "a " * 500, "ä" * 1000, "  " * 500])
@pytest.mark.parametrize("model", ["m", "\1" * 3000])
@pytest.mark.parametrize("n", [1, 20])
def test_a_stream_that_is_not_long_fits_into_one_write(text: str, model: str, n: int) -> None:
    streamed = draft("chat/completions", model=model, messages=user(text), n=n, stream=True)
    size_bytes = sum(len(event.data) for event in streamed.events(10**12, 10**10))
    assert streamed.is_long or size_bytes <= 64 * 1024
    # Nor is every stream a long one.
    assert not streamed.is_long or size_bytes > 16 * 1024


def test_completions_take_lists_and_tokens() -> None:
    listed = draft("completions", prompt=["one", "two"], n=2).whole(1, 0)
    assert listed["object"] == "text_completion"
    assert [(c["index"], c["text"]) for c in listed["choices"]] == [
        (0, "You said: one"),
        (1, "You said: one"),
        (2, "You said: two"),
        (3, "You said: two"),
    ]
    assert draft("completions", prompt=[5, 6, 7]).prompt_tokens == 3
    assert draft("completions", prompt=[[5, 6], [7]]).prompt_tokens == 3
    streamed = draft("completions", prompt="one two", stream=True)
    said = "".join(event["choices"][0]["text"] for _, event in events_of(streamed))
    assert said == "You said: one two"


def test_embeddings_of_one_and_of_many() -> None:
    one = draft("embeddings", input="hello").whole(1, 0)
    many = draft("embeddings", input=["hello", "you"], dimensions=3).whole(1, 0)
    assert one["object"] == "list"
    assert len(one["data"][0]["embedding"]) == 8
    assert [(item["index"], len(item["embedding"])) for item in many["data"]] == [(0, 3), (1, 3)]
    assert many["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_responses_are_whole_or_incomplete() -> None:
    whole = draft("responses", input="hello", instructions="be brief").whole(2, 5)
    assert whole["output"][0]["content"][0]["text"] == "You said: hello"
    assert whole["status"] == "completed"
    assert whole["usage"]["input_tokens"] == 4
    assert whole["usage"]["output_tokens"] == 4
    items = [*user([{"type": "input_text", "text": "hello"}]), {"type": "reasoning"}]
    short = draft("responses", input=items, max_output_tokens=1).whole(2, 5)
    assert short["output"][0]["content"][0]["text"] == "You "
    assert short["incomplete_details"] == {"reason": "max_output_tokens"}
    form = {"type": "json_schema", "name": "x", "schema": {"properties": {"a": {"const": 1}}}}
    shaped = draft("responses", input="hello", text={"format": form}).whole(2, 5)
    assert json.loads(shaped["output"][0]["content"][0]["text"]) == {"a": 1}


@pytest.mark.parametrize(
    ("endpoint", "body", "what"),
    [
        ("chat/completions", {}, "missing required field `messages`"),
        ("chat/completions", {"messages": []}, "length >= 1"),
        ("chat/completions", {"messages": "hi"}, "Expected `array`"),
        ("chat/completions", {"messages": user("x"), "max_tokens": 0}, r"\$.max_tokens"),
        ("chat/completions", {"messages": user("x"), "n": 129}, r"\$.n"),
        ("completions", {"prompt": []}, "empty list"),
        ("completions", {"prompt": ["a", 1]}, "mixes"),
        ("completions", {"prompt": ["a"] * 2049}, "2049 items"),
        ("embeddings", {"input": ""}, "empty string"),
        ("embeddings", {"input": "a", "dimensions": 4097}, "is 4097; it may be at most 4096"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, "unknown: hex"),
        ("responses", {"input": "a", "stream": True}, "streams chat"),
    ],
)
def test_a_wrong_body_is_named(endpoint: str, body: dict[str, Any], what: str) -> None:
    with pytest.raises(BadCall, match=what):
        draft(endpoint, **body)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"model": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_is_named(raw: bytes) -> None:
    with pytest.raises(BadCall, match="body of the request"):
        ENDPOINTS["/v1/chat/completions"](raw, Answers())


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [("chat/completions", {"messages": user("a")}), ("completions", {"prompt": "a"})],
)
def test_the_seed_of_a_request_decides_its_story(endpoint: str, asked: dict[str, Any]) -> None:
    def told(seed: int) -> Any:
        raw = json.dumps({"model": "m", "seed": seed, **asked}).encode()
        answers = Answers(stories=Stories(0.0, 0))
        return ENDPOINTS[f"/v1/{endpoint}"](raw, answers).whole(1, 0)["choices"]

    assert told(5) == told(5) != told(6)


@pytest.mark.parametrize(
    ("endpoint", "body", "most"),
    [
        ("chat/completions", {"messages": user("x"), "max_tokens": 9}, 9),
        ("chat/completions", {"messages": user("x"), "max_completion_tokens": 7, "n": 3}, 21),
        ("completions", {"prompt": ["a", "b"], "max_tokens": 5, "n": 2}, 20),
        ("completions", {"prompt": [1, 2], "max_tokens": 5}, 5),
        ("responses", {"input": "a", "max_output_tokens": 6}, 6),
        ("embeddings", {"input": "a"}, 0),
    ],
)
def test_a_draft_knows_what_its_request_allows_for(
    endpoint: str, body: dict[str, Any], most: int
) -> None:
    assert draft(endpoint, **body).most_tokens == most


def test_without_a_bound_a_draft_allows_for_what_it_says() -> None:
    made = draft("chat/completions", messages=user("hello"), n=2)
    assert made.most_tokens == made.completion_tokens > 0
