"""Streams of chats as messages: however the bytes are cut, the message is the same."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redline.apis import DONE_EVENT, EventParser
from redline.apis.messages import MessageStream, chat_of, message_of
from support.events import completed

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(TEXTS, VALUES, max_size=3)


def cut(text: str, data: st.DataObject) -> list[str]:
    """The text in pieces of UTF-16 units, so that emoji may be cut in two."""
    units = text.encode("utf-16-le", "surrogatepass")
    at = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=4)))
    ends = [0, *(2 * place for place in at), len(units)]
    return [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(ends)]


def streamed(text: str, inputs: list[Any], data: st.DataObject) -> bytes:
    """A chat that says the text and then calls tools, in pieces."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in cut(text, data)]
    for index, value in enumerate(inputs):
        start = {"id": f"c{index}", "function": {"name": f"t{index}", "arguments": ""}}
        deltas.append({"tool_calls": [{"index": index, **start}]})
        arguments = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
        for piece in cut(arguments, data):
            more = {"index": index, "function": {"arguments": piece}}
            deltas.append({"tool_calls": [more]})
    choices: list[dict[str, Any]] = [{"index": 0, "delta": one} for one in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "length"})
    events = [{"id": "chatcmpl-1", "model": "m", "choices": [one]} for one in choices]
    events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    ends = data.draw(st.sampled_from(["\n\n", "\r\n\r\n"]))
    return b"".join(f"data: {json.dumps(one)}{ends}".encode() for one in events) + DONE_EVENT


def message_in(events: bytes) -> dict[str, Any]:
    message: dict[str, Any] = {}
    pieces: dict[int, list[str]] = {}
    for raw in completed(EventParser(), events):
        event = json.loads(raw)
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                pieces[event["index"]] = []
            case "content_block_delta":
                delta = event["delta"]
                pieces[event["index"]].append(delta.get("text") or delta.get("partial_json"))
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    for index, block in enumerate(message["content"]):
        said = "".join(pieces[index])
        block |= {"text": said} if block["type"] == "text" else {"input": json.loads(said)}
    return message


@given(TEXTS, st.lists(INPUTS, max_size=3), st.data())
def test_a_stream_is_the_same_message_however_it_is_cut(
    text: str, inputs: list[Any], data: st.DataObject
) -> None:
    raw = streamed(text, inputs, data)
    once = MessageStream()
    events = once.feed(raw) + once.end()
    pieces = MessageStream()
    at = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=9)))
    ends = [0, *at, len(raw)]
    found = b"".join(pieces.feed(raw[a:b]) for a, b in pairwise(ends))
    assert found + pieces.end() == events
    tools = [
        {"id": f"c{i}", "function": {"name": f"t{i}", "arguments": json.dumps(value)}}
        for i, value in enumerate(inputs)
    ]
    choice = {"message": {"content": text, "tool_calls": tools}, "finish_reason": "length"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    chat = {"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": usage}
    assert message_in(events) == message_of(chat)


@given(TEXTS, INPUTS, TEXTS)
def test_an_answer_can_be_asked_with_again(text: str, value: Any, result: str) -> None:
    """What a message says comes back in the next request's chat, as it was."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "t", "arguments": json.dumps(value)},
    }
    choice = {"message": {"content": text, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    message = message_of({"choices": [choice]})
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": message["content"]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": result}],
        },
    ]
    chat = chat_of({"model": "m", "max_tokens": 1, "messages": messages})
    _, said, told = chat["messages"]
    assert said["content"] == (text or None)
    (again,) = said["tool_calls"]
    assert json.loads(again["function"].pop("arguments")) == value
    assert again == {"id": "c", "type": "function", "function": {"name": "t"}}
    assert told == {"role": "tool", "tool_call_id": "c", "content": result}
