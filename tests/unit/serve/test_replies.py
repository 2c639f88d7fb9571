"""Answers in the API's shapes, where a backend gives none of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redline.apis import replies as apis
from redline.calls import Reply
from redline.serve.http import Asked, Refusal, body_of, events_of, read_call

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def asked(path: str = CHAT) -> Asked:
    return read_call(path, b'{"model": "asked"}', ())


def made(reply: Reply, path: str = CHAT) -> Any:
    return msgspec.json.decode(body_of(asked(path), reply))


def test_the_bytes_of_a_reply_are_answered_as_they_are() -> None:
    raw = b'{"choices" : [],\n "x": 1.0}'
    assert body_of(asked(), Reply(output="other", body=raw)) == raw


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "reply",
    [
        Reply(output="hello", finish_reason="stop", model="own"),
        Reply(output=["a", "b"], finish_reason="length", input_tokens=3, output_tokens=2),
        Reply(output="x", usage={"prompt_tokens": 9, "completion_tokens": 1, "cost": 0.1}),
    ],
)
def test_what_is_made_of_an_output_reads_as_that_output(path: str, reply: Reply) -> None:
    raw = body_of(asked(path), reply)
    read = apis.read(path, raw)
    assert read.output == reply.output
    choices = len(reply.output) if isinstance(reply.output, list) else 1
    assert read.finish_reasons == [reply.finish_reason or "stop"] * choices
    assert read.model == (reply.model or "asked")
    assert read.usage == (
        {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        if reply.input_tokens
        else reply.usage
    )
    whole = msgspec.json.decode(raw)
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(whole["choices"])))
    assert whole["id"].startswith("chatcmpl-" if path == CHAT else "cmpl-")
    assert whole["object"] == ("chat.completion" if path == CHAT else "text_completion")
    assert isinstance(whole["created"], int)


def test_each_answer_has_an_id_of_its_own() -> None:
    assert len({made(Reply(output="x"))["id"] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("output", "content"),
    [("", ""), (None, None), ({"a": [1]}, '{"a":[1]}'), ([1, 2], "[1,2]"), ([], "[]"), (7, "7")],
)
def test_what_is_no_text_becomes_json(output: Any, content: str | None) -> None:
    (choice,) = made(Reply(output=output))["choices"]
    assert choice["message"] == {"role": "assistant", "content": content, "refusal": None}
    assert made(Reply(output=output), TEXT)["choices"][0]["text"] == (content or "")


@pytest.mark.parametrize("reason", [None, "empty", "refusal"])
def test_our_own_words_for_an_end_are_not_told(reason: str | None) -> None:
    assert made(Reply(output="x", finish_reason=reason))["choices"][0]["finish_reason"] == "stop"


def test_tool_calls_are_kept() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    whole = made(Reply(tool_calls=calls, finish_reason="tool_calls"))
    assert whole["choices"][0]["message"]["tool_calls"] == calls
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    (chunk,) = events_of(whole, wants_usage=False)
    delta = chunk["choices"][0]["delta"]
    assert delta["tool_calls"] == [{"index": 0, **calls[0]}]


def test_other_paths_are_answered_with_the_output_itself() -> None:
    output = {"data": [{"embedding": [0.5], "index": 0}]}
    assert made(Reply(output=output), "/v1/embeddings") == output


def test_an_output_that_is_not_json_is_the_backends_failure() -> None:
    with pytest.raises(Refusal) as caught:
        body_of(asked(), Reply(output=object()))
    assert (caught.value.status, caught.value.body["error"]["code"]) == (502, "bad_reply")


def test_a_whole_answer_becomes_one_chunk() -> None:
    whole = made(Reply(output=["a", "b"], input_tokens=1, output_tokens=2))
    (chunk,) = events_of(whole, wants_usage=False)
    assert chunk["object"] == "chat.completion.chunk"
    assert [choice["delta"]["content"] for choice in chunk["choices"]] == ["a", "b"]
    assert all("message" not in choice for choice in chunk["choices"])
    assert (chunk["id"], chunk["usage"]) == (whole["id"], whole["usage"])
    response = {"object": "response", "output": []}
    (event,) = events_of(response, wants_usage=False)
    assert (event["type"], event["response"]) == ("response.completed", response)
    text = made(Reply(output="a"), TEXT)
    assert events_of(text, wants_usage=False) == [text]


USAGE = {"object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 3}}


@pytest.mark.parametrize(
    "data",
    [
        {"choices": [{"delta": {"content": "x"}}], "usage": None},
        {"choices": [{"delta": {}}], "usage": {"total_tokens": 1}},
        # Azure's first event tells about filters.
        {"choices": [], "prompt_filter_results": []},
        {"type": "response.output_text.delta", "delta": "x"},
        {"anything": 1},
        "text",
        7,
    ],
)
def test_a_chunks_data_is_sent_as_it_is(data: Any) -> None:
    assert events_of(data, wants_usage=False) == [data] == events_of(data, wants_usage=True)


def test_usage_goes_only_to_who_asked_for_it() -> None:
    assert events_of(USAGE, wants_usage=False) == []
    assert events_of(USAGE, wants_usage=True) == [USAGE]
