"""Chats as messages, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from redline.apis import DONE_EVENT, EventParser, chat, event_bytes
from redline.apis.messages import MessageStream, is_messages_path, message_of, messages_error
from redline.errors import BadReply, CallError, RateLimited, ServerFailed

USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


def whole(message: dict[str, Any], reason: Any = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": reason, **more}
    return {"id": "chatcmpl-7", "model": "m", "choices": [choice], "usage": USAGE}


def tool(name: str | None, tool_name: str | None, arguments: Any) -> dict[str, Any]:
    return {"id": name, "function": {"name": tool_name, "arguments": arguments}}


def delta(
    content: Any = None,
    reason: str | None = None,
    *,
    index: int = 0,
    tools: Iterable[tuple[int | None, dict[str, Any]]] = (),
    **more: Any,
) -> dict[str, Any]:
    said: dict[str, Any] = {name: more.pop(name) for name in [*more] if name.startswith("rea")}
    said |= {} if content is None else {"content": content}
    calls = [call if at is None else {"index": at, **call} for at, call in tools]
    said |= {"tool_calls": calls} if calls else {}
    choice = {"index": index, "delta": said, "finish_reason": reason, **more}
    return {"id": "chatcmpl-7", "model": "m", "choices": [choice]}


def piece(
    at: int, arguments: Any, name: str | None = None, tool_name: str | None = None
) -> dict[str, Any]:
    return delta(tools=[(at, tool(name, tool_name, arguments))])


def shown(data: bytes) -> list[dict[str, Any]]:
    """The events, whose names are their types."""
    found = []
    for raw, event in EventParser().blocks(data):
        assert event is not None
        found.append(json.loads(event))
        assert raw.startswith(b"event: %b\n" % found[-1]["type"].encode())
    return found


def translated(*events: Any, **settings: Any) -> list[dict[str, Any]]:
    stream = MessageStream(**settings)
    data = [
        stream.feed(event if isinstance(event, bytes) else event_bytes(event)) for event in events
    ]
    return shown(b"".join(data) + stream.end())


def gathered(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the events, which come in their order."""
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    is_open: dict[int, list[str]] = {}
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open[event["index"]] = []
            case "content_block_delta":
                given = event["delta"]
                kind = message["content"][event["index"]]["type"]
                name = {"text": "text_delta", "tool_use": "input_json_delta"}[kind]
                assert given["type"] == name
                is_open[event["index"]].append(given["text" if kind == "text" else "partial_json"])
            case "content_block_stop":
                said = "".join(is_open.pop(event["index"]))
                block = message["content"][event["index"]]
                if block["type"] == "text":
                    block["text"] = said
                else:
                    block["input"] = json.loads(said) if said else {}
            case "message_delta":
                assert not is_open
                message |= event["delta"]
                message["usage"] = event["usage"]
            case other:
                assert other == "ping"
    return message


# Whole answers.


def test_a_text() -> None:
    assert message_of(whole({"role": "assistant", "content": "hi"})) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
        },
    }


def test_what_an_answer_leaves_out() -> None:
    first, second = (
        message_of({"choices": [{"message": {"content": None}}]}, model="asked") for _ in range(2)
    )
    assert first["id"] != second["id"]
    assert first["id"].startswith("msg_")
    assert (first["model"], first["content"], first["stop_reason"]) == ("asked", [], "end_turn")
    assert first["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_tools_are_called_after_what_is_said() -> None:
    calls = [tool("c1", "weather", '{"city": "Oslo"}'), tool("c2", "now", "")]
    # Some servers say `stop` even so.
    for reason in ("tool_calls", "stop", None):
        message = message_of(whole({"content": "I look", "tool_calls": calls}, reason))
        assert message["stop_reason"] == "tool_use"
        assert message["content"] == [
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "c2", "name": "now", "input": {}},
        ]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (None, {}),
        (" ", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": "\\ud83c\\udf88"}', {"a": "🎈"}),
        ('{"a": ', {"INVALID_JSON": '{"a": '}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ([1], {"INVALID_JSON": "[1]"}),
    ],
)
def test_arguments_of_a_tool(arguments: Any, given: Any) -> None:
    call = tool("", "t", arguments)
    (block,) = message_of(whole({"tool_calls": [call]}, "length"))["content"]
    assert block["input"] == given
    assert block["id"].startswith("toolu_")


@pytest.mark.parametrize(
    ("reason", "more", "found"),
    [
        ("stop", {}, ("end_turn", None)),
        (None, {}, ("end_turn", None)),
        ("tool_calls", {}, ("end_turn", None)),
        ("length", {"stop_reason": "END"}, ("max_tokens", None)),
        ("model_length", {}, ("max_tokens", None)),
        ("content_filter", {}, ("refusal", None)),
        ("content_filter: SAFETY", {}, ("refusal", None)),
        ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ("stop", {"matched_stop": "END"}, ("stop_sequence", "END")),
        ("stop", {"stop_reason": 128009}, ("end_turn", None)),
        ("stop", {"stop_reason": "<|im_end|>"}, ("end_turn", None)),
    ],
)
def test_why_it_stopped(reason: Any, more: Any, found: Any) -> None:
    message = message_of(whole({"content": "a"}, reason, **more), stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == found
    streamed = gathered(translated(delta("a"), delta("", reason, **more), stop_sequences=["END"]))
    assert (streamed["stop_reason"], streamed["stop_sequence"]) == found


def test_a_refusal_is_said() -> None:
    message = message_of(whole({"content": None, "refusal": "no"}))
    assert message["content"] == [{"type": "text", "text": "no"}]
    assert message["stop_reason"] == "refusal"
    filtered = message_of({"choices": [{"finish_reason": "content_filter: SAFETY"}]})
    assert (filtered["content"], filtered["stop_reason"]) == ([], "refusal")
    events = translated({"choices": [{"delta": {"refusal": "no"}}]}, delta("", "stop"))
    assert gathered(events)["stop_reason"] == "refusal"


def test_a_text_that_each_event_repeats_is_streamed_once() -> None:
    texts = (("Hel", "Hel"), ("Hello", "lo"))
    events = [
        {"choices": [{"message": {"content": whole}, "delta": {"content": new}}]}
        for whole, new in texts
    ]
    assert gathered(translated(*events))["content"] == [{"type": "text", "text": "Hello"}]


def test_thoughts_are_left_out_and_parts_are_joined() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "b"}]
    message = message_of(whole({"reasoning_content": "a", "content": parts}))
    assert message["content"] == [{"type": "text", "text": "b"}]


def test_cached_tokens_are_counted_once() -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 6}}
    counted = message_of({**whole({"content": "a"}), "usage": usage})["usage"]
    assert (counted["input_tokens"], counted["cache_read_input_tokens"]) == (4, 6)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{"text": "a"}]},
        whole({"content": 7}),
        whole({"tool_calls": [{"id": "c"}]}),
    ],
)
def test_what_is_no_chat_is_a_bad_reply(answer: Any) -> None:
    with pytest.raises(BadReply):
        message_of(answer)


# Streams.


def test_the_events_of_a_text() -> None:
    events = translated(
        delta("", role="assistant"),
        delta("Hel"),
        delta("lo"),
        delta(None, "stop"),
        {"choices": [], "usage": USAGE},
        DONE_EVENT,
    )
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == (
        [],
        None,
        0,
    )
    message = gathered(events)
    assert message == message_of(whole({"content": "Hello"}))


def test_parallel_tools_are_blocks_in_order() -> None:
    events = translated(
        delta("I look", tools=[(0, tool("c1", "weather", ""))]),
        piece(0, '{"city":'),
        # A brace in a string ends nothing.
        piece(0, ' "O}\\"slo"}'),
        piece(1, "", "c2", "now"),
        piece(2, '{"a": {}}', "c3", "other"),
        delta(None, "tool_calls"),
        {"choices": [], "usage": USAGE},
        DONE_EVENT,
    )
    message = gathered(events)
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": 'O}"slo'}},
        {"type": "tool_use", "id": "c2", "name": "now", "input": {}},
        {"type": "tool_use", "id": "c3", "name": "other", "input": {"a": {}}},
    ]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    # Each call whose arguments are whole ends before the next one begins.
    assert kinds[1:7] == ["content_block_start", "content_block_stop"] * 2 + [
        "content_block_start",
        "content_block_start",
    ]


def test_pieces_of_several_tools_may_be_mixed() -> None:
    events = translated(
        delta(tools=[(0, tool("c1", "a", "")), (1, tool("c2", "b", ""))]),
        piece(1, '{"y":'),
        piece(0, '{"x":1}'),
        piece(1, "2}"),
        delta("done"),
        delta(None, "tool_calls"),
    )
    content = gathered(events)["content"]
    assert [block.get("input") for block in content] == [{"x": 1}, {"y": 2}, None]


def test_calls_that_share_an_index_are_told_by_their_names() -> None:
    same = [(0, tool("c1", "a", '{"x":1}')), (0, tool("c2", "a", '{"x":2}'))]
    bare = [(None, tool("", "a", '{"x":1}')), (None, tool("", "a", '{"x":2}'))]
    for calls in (same, bare):
        content = gathered(translated(delta(tools=calls)))["content"]
        assert [block["input"] for block in content] == [{"x": 1}, {"x": 2}]
        assert content[0]["id"] != content[1]["id"]
    # The id and the name with every piece, as other servers have it.
    again = [piece(0, part, "c1", "a") for part in ('{"x":', "1}", "\n")]
    (block,) = gathered(translated(*again))["content"]
    assert block["input"] == {"x": 1}


def test_arguments_that_are_an_object() -> None:
    (block,) = gathered(translated(piece(0, {"x": 1}, "c", "a")))["content"]
    assert block["input"] == {"x": 1}


def test_thoughts_and_comments_are_pings() -> None:
    events = translated(
        b": wait\n\n",
        delta(reasoning_content="hm"),
        b": wait\n\n",
        delta("a", reasoning_content="hm"),
        delta("", "stop"),
    )
    kinds = [event["type"] for event in events]
    assert kinds[:4] == ["message_start", "ping", "ping", "content_block_start"]
    assert kinds.count("ping") == 2


def test_other_choices_are_passed_over_and_nothing_follows_the_end() -> None:
    events = translated(delta("a"), delta("b", index=1), DONE_EVENT, delta("c"))
    assert gathered(events)["content"] == [{"type": "text", "text": "a"}]


def test_a_whole_chat_in_the_place_of_a_stream() -> None:
    message = {"content": "a", "tool_calls": [tool("c", "t", '{"x":1}')]}
    answer = {**whole(message, "tool_calls"), "object": chat.FORM.whole}
    assert gathered(translated(answer)) == message_of(answer)


def test_an_empty_answer() -> None:
    message = gathered(translated({"choices": []}, DONE_EVENT, model="asked"))
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")
    assert message["model"] == "asked"


def test_halves_of_a_character_meet_again() -> None:
    data = b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n'
    pieces = [data % part for part in (b"a\\ud83c", b"\\udf88b", b"\\ud83c")]
    (block,) = gathered(translated(*pieces))["content"]
    assert block["text"] == "a🎈b\ufffd"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b"data: {\n\n", BadReply),
        (b"data: 7\n\n", BadReply),
        ({"choices": [{"delta": [1]}]}, BadReply),
        ({"choices": 7}, BadReply),
        ({"choices": [{"delta": {"content": 7}}]}, BadReply),
        (piece(0, "{}", "c"), BadReply),
        ({"error": {"message": "slow down", "code": 429}}, RateLimited),
        ({"choices": None, "base_resp": {"status_code": 1002, "status_msg": "m"}}, RateLimited),
        (b'event: error\ndata: {"message": "gone", "code": 500}\n\n', ServerFailed),
        (b"event: error\ndata: gone\n\n", CallError),
        (delta("a", "error"), ServerFailed),
    ],
)
def test_an_event_that_is_an_error_or_no_chat(event: Any, kind: type[Exception]) -> None:
    stream = MessageStream()
    stream.feed(event_bytes(delta("a")))
    with pytest.raises(kind):
        stream.feed(event if isinstance(event, bytes) else event_bytes(event))


def test_a_call_goes_on_after_its_end() -> None:
    stream = MessageStream()
    for event in (piece(0, "{}", "c", "a"), piece(1, "{}", "d", "a"), piece(0, " \n")):
        stream.feed(event_bytes(event))
    with pytest.raises(BadReply, match="after its arguments were complete"):
        stream.feed(event_bytes(piece(0, "{}")))


def test_an_answer_without_end_is_refused() -> None:
    events = b"".join(event_bytes(piece(index, "{}", "c", "a")) for index in range(2000))
    with pytest.raises(BadReply, match="parts"):
        MessageStream().feed(events)


# Errors.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_an_error_has_the_type_of_its_status(status: int, kind: str) -> None:
    error = messages_error(status, "no", "req_1")
    assert error == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "req_1",
    }


def test_which_paths_are_of_the_messages_api() -> None:
    assert is_messages_path("/v1/messages")
    assert is_messages_path("/v1/messages/count_tokens")
    assert not is_messages_path("/v1/messages_of")
