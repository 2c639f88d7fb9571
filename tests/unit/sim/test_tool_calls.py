"""The simulated model calls tools if the request forces it to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redline.apis import EventParser, StreamedAnswer
from redline.sim.answers import ENDPOINTS, Answers, BadCall, Draft
from support.events import completed

CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo fjord"]}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


def draft(**body: Any) -> Draft:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **body}
    return ENDPOINTS["/v1/chat/completions"](json.dumps(asked).encode(), Answers())


def called(**body: Any) -> list[tuple[str, Any]]:
    message = draft(**body).whole(1, 0)["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]


def test_only_a_request_that_forces_it_calls_tools() -> None:
    assert called(tools=TOOLS) == called(tools=TOOLS, tool_choice="auto") == []
    assert called(tools=TOOLS, tool_choice="none") == called(tool_choice="required") == []
    both = [("weather", {"city": "Oslo fjord"}), ("now", {})]
    assert called(tools=TOOLS, tool_choice="required") == both
    assert called(tools=TOOLS, tool_choice="required", parallel_tool_calls=False) == both[:1]
    named = {"type": "function", "function": {"name": "now"}}
    assert called(tools=TOOLS, tool_choice=named) == both[1:]


def test_a_tool_that_is_not_offered_is_refused() -> None:
    named = {"type": "function", "function": {"name": "other"}}
    with pytest.raises(BadCall, match="other"):
        draft(tools=TOOLS, tool_choice=named)


def test_a_stream_calls_the_same_tools_as_the_whole() -> None:
    options = {"include_usage": True}
    streamed = draft(tools=TOOLS, tool_choice="required", n=2, stream=True, stream_options=options)
    answer, parser = StreamedAnswer(), EventParser()
    pieces = 0
    for event in streamed.events(7, 0):
        for found in completed(parser, event.data):
            answer.add(json.loads(found))
            pieces += 1
    _, body = answer.whole(is_done=True)
    made, whole = json.loads(body), streamed.whole(7, 0)
    assert pieces > 8
    assert made["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == streamed.completion_tokens > 0
    for one, other in zip(made["choices"], whole["choices"], strict=True):
        assert one["message"]["tool_calls"] == other["message"]["tool_calls"]
        assert one["finish_reason"] == other["finish_reason"] == "tool_calls"
    ids = [call["id"] for one in whole["choices"] for call in one["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_a_stream_of_calls_that_is_not_long_fits_into_one_write() -> None:
    for words in (1, 50, 400):
        schema = {"type": "object", "properties": {"a": {"const": "w " * words}}, "required": ["a"]}
        tools = [{"type": "function", "function": {"name": "t" * 500, "parameters": schema}}]
        streamed = draft(tools=tools, tool_choice="required", stream=True)
        size_bytes = sum(len(event.data) for event in streamed.events(10**12, 10**10))
        assert streamed.is_long or size_bytes <= 64 * 1024
