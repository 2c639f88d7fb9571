"""Replies of every API become one shape, and what is none becomes a BadReply."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redline.apis import Usage, read_usage
from redline.apis import replies as apis
from redline.calls import Reply
from redline.errors import BadReply, CallError, NoEndpoint, Rejected, ServerFailed

CHAT = "/v1/chat/completions"


def read(url: str, value: object, output_path: tuple[str | int, ...] = ()) -> Reply:
    return apis.read(url, msgspec.json.encode(value), output_path)


def chat(*messages: dict[str, Any], finish: str | None = "stop", **more: object) -> Reply:
    choices = [
        {"index": index, "message": message, "finish_reason": finish}
        for index, message in enumerate(messages)
    ]
    return read(CHAT, {"id": "c-1", "choices": choices, "model": "m", **more})


def test_a_chat_completion() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    reply = chat({"role": "assistant", "content": "yes"}, usage=usage)
    assert (reply.output, reply.finish_reason, reply.model) == ("yes", "stop", "m")
    assert (reply.input_tokens, reply.output_tokens, reply.usage) == (9, 2, usage)
    assert reply.request_id == "c-1"
    assert msgspec.json.decode(reply.body)["model"] == "m"


BODIES = pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, '"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]'),
        ("/v1/completions", '"choices":[{"text":"a","finish_reason":"stop"}]'),
        ("/v1/embeddings", '"data":[{"embedding":[0.5],"index":0}]'),
        ("/v1/responses", '"output":[]'),
        ("/chat", '"answer":1'),
    ],
)


@pytest.mark.parametrize("usage", ["[]", '""', "0", "false", "3"])
@BODIES
def test_a_usage_that_is_not_an_object_is_ignored(url: str, body: str, usage: str) -> None:
    reply = apis.read(url, f'{{{body},"usage":{usage}}}'.encode())
    assert (reply.usage, reply.input_tokens, reply.output_tokens) == (None, None, None)


@pytest.mark.parametrize("stated", ["1000000001", "9223372036854775807", f"1{'0' * 400}"])
@BODIES
def test_a_count_above_what_any_call_can_use_is_not_stated(
    url: str, body: str, stated: str
) -> None:
    input_name, output_name = ("prompt_tokens", "completion_tokens")
    if url == "/v1/responses":
        input_name, output_name = ("input_tokens", "output_tokens")
    usage = f'{{"{input_name}":{stated},"{output_name}":{stated}}}'
    reply = apis.read(url, f'{{{body},"usage":{usage}}}'.encode())
    assert (reply.input_tokens, reply.output_tokens) == (None, None)
    assert read_usage(reply.usage) is None
    total = {input_name: 3, output_name: 2, "total_tokens": int(stated)}
    assert read_usage(total) == Usage(input=3, output=2)


@pytest.mark.parametrize(
    ("more", "output"),
    [({}, 1005), ({"cache_read_input_tokens": 1000}, 5)],
    ids=["gemini", "proxy"],
)
@pytest.mark.parametrize("asked", [None, OrderedDict()])
def test_thinking_tokens_that_only_the_total_counts_are_output(
    more: dict[str, int], output: int, asked: Any
) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1015, **more}
    body = msgspec.json.encode({"choices": [{"message": {"content": "a"}}], "usage": usage})
    reply = apis.read(CHAT, body, asked=asked)
    assert (reply.input_tokens, reply.output_tokens) == (10, output)


def test_choices_are_counted_whatever_kind_of_mapping_asks_for_them() -> None:
    one = msgspec.json.encode({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]})
    for asked in ({"n": 2}, OrderedDict(n=2)):
        with pytest.raises(BadReply, match="asked for 2 choices, got 1"):
            apis.read(CHAT, one, asked=asked)


def test_several_choices_are_a_list_in_their_order() -> None:
    reply = chat({"content": "a"}, {"content": "b"}, {"content": None})
    assert reply.output == ["a", "b", None]


@pytest.mark.parametrize("finish", ["length", "content_filter", "stop"])
def test_the_finish_reason_is_the_endpoints(finish: str) -> None:
    assert chat({"content": "a"}, finish=finish).finish_reason == finish


@pytest.mark.parametrize(
    ("message", "finish", "output", "reason"),
    [
        ({"content": ""}, "stop", "", "empty"),
        ({"content": None}, "stop", None, "empty"),
        ({"content": ""}, None, "", "empty"),
        ({"content": ""}, "eos", "", "empty"),
        ({"content": ""}, "length", "", "length"),
        ({"content": None}, "content_filter", None, "content_filter"),
        ({"content": None, "refusal": "I cannot"}, "stop", "I cannot", "refusal"),
        ({"content": "", "refusal": "I cannot"}, "stop", "I cannot", "refusal"),
        ({"content": "a", "refusal": "I cannot"}, "stop", "a", "refusal"),
        ({"content": "a"}, "model_length", "a", "length"),
    ],
)
def test_empty_answers_and_refusals_are_typed(
    message: dict[str, Any], finish: str | None, output: str | None, reason: str
) -> None:
    reply = chat(message, finish=finish)
    assert (reply.output, reply.finish_reason) == (output, reason)


def test_a_choice_that_gemini_filtered_needs_no_message() -> None:
    choice = {"index": 0, "finish_reason": "content_filter: PROHIBITED_CONTENT"}
    reply = read(CHAT, {"choices": [choice]})
    assert (reply.output, reply.finish_reason) == (None, "content_filter")


def test_tool_calls_are_no_empty_answer() -> None:
    calls = [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    reply = chat({"content": None, "tool_calls": calls}, finish="tool_calls")
    assert (reply.output, reply.tool_calls, reply.finish_reason) == (None, calls, "tool_calls")
    assert chat({"content": None, "tool_calls": calls}).finish_reason == "stop"
    old = {"name": "f", "arguments": "{}"}
    assert chat({"content": None, "function_call": old}).tool_calls == old


def test_a_list_of_content_parts_is_its_text() -> None:
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "a"},
        "loose",
        {"type": "text", "text": None},
        {"type": "text", "text": "b"},
    ]
    assert chat({"content": parts}).output == "ab"


def test_a_legacy_completion() -> None:
    reply = read("/v1/completions", {"choices": [{"text": "a", "finish_reason": "length"}]})
    assert (reply.output, reply.finish_reason) == ("a", "length")


def test_embeddings_are_in_the_order_of_their_index() -> None:
    data = [{"index": 1, "embedding": [1.0]}, {"index": 0, "embedding": [0.0]}]
    usage = {"prompt_tokens": 4, "total_tokens": 4}
    reply = read("/v1/embeddings", {"data": data, "usage": usage, "model": "e"})
    assert reply.output == [[0.0], [1.0]]
    assert (reply.input_tokens, reply.output_tokens) == (4, None)
    assert read("/v1/embeddings", {"data": data[:1]}).output == [1.0]
    # Gemini omits an index of 0.
    geminis = msgspec.json.encode({"data": [{"embedding": [0.0]}, data[0]]})
    asked = {"input": ["a", "b"]}
    assert apis.read("/v1/embeddings", geminis, asked=asked).output == [[0.0], [1.0]]
    with pytest.raises(BadReply, match="asked for 2 embeddings, got 2: index 1 is missing"):
        apis.read("/v1/embeddings", geminis.replace(b":1,", b":0,"), asked=asked)
    base64 = [{"embedding": "AAAA"}]
    assert read("/v1/embeddings", {"data": base64}).output == "AAAA"


def message_item(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


TEXT = {"type": "output_text", "text": "yes", "refusal": None}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
SEARCH = {"type": "web_search_call", "id": "w", "status": "completed"}
CLICK = {"type": "computer_call", "call_id": "c", "action": {"type": "click"}}


@pytest.mark.parametrize(
    ("items", "output", "reason", "tools"),
    [
        ([message_item(TEXT)], "yes", "stop", None),
        ([{"type": "reasoning", "summary": []}, message_item(TEXT, TEXT)], "yesyes", "stop", None),
        ([message_item({"type": "refusal", "refusal": "no"})], "no", "refusal", None),
        ([CALL], "", "tool_calls", [CALL]),
        ([message_item(TEXT), CALL], "yes", "tool_calls", [CALL]),
        ([CLICK], "", "tool_calls", [CLICK]),
        ([SEARCH, message_item(TEXT)], "yes", "stop", [SEARCH]),
        ([], "", "empty", None),
        ([message_item()], "", "empty", None),
    ],
)
def test_a_response(
    items: list[dict[str, Any]], output: str, reason: str, tools: list[Any] | None
) -> None:
    usage = {"input_tokens": 3, "output_tokens": 1}
    body = {"id": "r", "status": "completed", "error": None, "output": items, "usage": usage}
    reply = read("/v1/responses", body)
    assert (reply.output, reply.finish_reason, reply.tool_calls) == (output, reason, tools)
    assert (reply.input_tokens, reply.output_tokens, reply.request_id) == (3, 1, "r")


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        (None, "incomplete"),
    ],
)
def test_an_incomplete_response_says_why(details: object, reason: str) -> None:
    body = {"status": "incomplete", "incomplete_details": details, "output": [message_item(TEXT)]}
    assert read("/v1/responses", body).finish_reason == reason


def test_a_failed_response_is_tried_again() -> None:
    with pytest.raises(BadReply, match="the response failed"):
        read("/v1/responses", {"status": "failed", "output": [], "error": {"message": "m"}})


@pytest.mark.parametrize(
    "value", ["text", 3, None, ["a"], {"a": 1}, {"a": 1, "base_resp": {"status_code": 200}}]
)
def test_a_plain_endpoint_answers_any_json(value: object) -> None:
    assert read("/chat", value).output == value
    assert read("/chat?q=1", value).output == value


def test_a_plain_answers_usage_and_model_are_read_where_they_are() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    reply = read("/chat", {"usage": usage, "model": "m"})
    assert (reply.input_tokens, reply.output_tokens, reply.model) == (1, 2, "m")
    reply = read("/chat", {"usage": 3, "model": 4})
    assert (reply.usage, reply.model) == (None, None)


@pytest.mark.parametrize(
    ("path", "value", "output"),
    [
        (("a", "b", 1), {"a": {"b": [0, "x"]}}, "x"),
        (("choices", 0, "message"), {"choices": [{"message": "m"}]}, "m"),
        (("labels", 0, 1), {"labels": {"0": ["x", "y"]}}, "y"),
    ],
)
def test_an_output_path_picks_the_answer_for_any_api(
    path: tuple[str | int, ...], value: object, output: object
) -> None:
    assert read(CHAT, value, path).output == output


@pytest.mark.parametrize(
    ("path", "value", "step"),
    [
        (("a",), {"b": 1}, "a"),
        (("a", 2), {"a": [0]}, "2"),
        (("a", "b"), {"a": None}, "b"),
        ((0,), {"a": 1}, "0"),
        (("a",), [1], "a"),
    ],
)
def test_an_output_path_that_misses_says_where(
    path: tuple[str | int, ...], value: object, step: str
) -> None:
    dotted = ".".join(map(str, path))
    with pytest.raises(Rejected, match=rf"--output-path {dotted} finds no `{step}`"):
        read("/chat", value, path)


@pytest.mark.parametrize("url", [CHAT, f"{CHAT}/", f"{CHAT}?api-version=1", "/openai/completions"])
def test_an_api_is_known_by_the_end_of_its_path(url: str) -> None:
    assert read(url, {"choices": [{"message": {"content": "a"}}]}).output == "a"


BAD = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b'{"choices": null}',
    b'{"choices": []}',
    b'{"choices": [{}]}',
    b'{"choices": [{"message": "text"}]}',
    b'{"choices": [{"message": {"content": "a',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"choices":' * 100_000,
]


@pytest.mark.parametrize("body", BAD)
@pytest.mark.parametrize("url", [CHAT, "/v1/embeddings", "/v1/responses"])
def test_what_is_not_the_promised_shape_is_a_bad_reply(url: str, body: bytes) -> None:
    with pytest.raises(BadReply, match="the answer does not match") as caught:
        apis.read(url, body)
    assert caught.value.hint == "check the base URL and the path"


def test_an_answer_of_blank_lines_is_the_servers_failure() -> None:
    with pytest.raises(ServerFailed, match="ended before its first character"):
        apis.read(CHAT, b"\n\n \r\n")


def test_a_web_page_is_called_one() -> None:
    with pytest.raises(BadReply) as caught:
        apis.read(CHAT, b"\n <!DOCTYPE html><html><title>Login</title>")
    assert "it begins `<!DOCTYPE html><html><title>Login</title>`" in caught.value.what
    assert caught.value.hint.startswith("this is a web page")


FIELDS = [
    "choices",
    "message",
    "content",
    "text",
    "refusal",
    "tool_calls",
    "function_call",
    "finish_reason",
    "usage",
    "data",
    "embedding",
    "index",
    "output",
    "type",
    "status",
    "error",
    "incomplete_details",
    "id",
    "model",
    "prompt_tokens",
    "total_tokens",
    "cache_read_input_tokens",
    "input_tokens",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON, st.sampled_from([CHAT, "/v1/embeddings", "/v1/responses", "/chat"]))
def test_any_json_is_a_reply_or_a_bad_reply(value: object, url: str) -> None:
    try:
        reply = read(url, value)
    except BadReply:
        return
    assert isinstance(reply, Reply)


USUAL = {
    "id": "c",
    "model": "m",
    "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}
PLACES = [(), ("choices",), ("choices", 0), ("choices", 0, "message"), ("usage",)]


def read_or_error(body: bytes, asked: Any) -> Any:
    try:
        return msgspec.structs.asdict(apis.read(CHAT, body, asked=asked))
    except (CallError, NoEndpoint) as error:
        return type(error), error.what, error.hint


def assert_read_alike(body: bytes) -> None:
    # Only for a plain dict, or for none, does redline try the quick reader.
    careful = read_or_error(body, OrderedDict())
    assert read_or_error(body, {}) == careful
    if not isinstance(careful, tuple):
        assert read_or_error(body, None) == careful


CHANGES = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(FIELDS), JSON | st.sampled_from(["", "a"])),
    max_size=3,
)


@settings(deadline=None, max_examples=150)
@given(CHANGES)
@example([(("choices", 0, "message"), "content", "")])
@example([(("choices", 0, "message"), "refusal", "I cannot")])
@example([(("choices", 0, "message"), "tool_calls", [])])
@example([(("choices", 0, "message"), "tool_calls", [{"id": "t"}])])
@example([(("choices", 0), "text", "a")])
@example([(("choices", 0), "index", "")])
@example([(("choices", 0), "index", 1)])
@example([(("choices", 0), "finish_reason", "error")])
@example([((), "error", {"message": "broke off"})])
@example([(("choices", 0), "error", {"message": "broke off"})])
@example([((), "usage", None)])
@example([((), "usage", [])])
@example([((), "id", 3)])
@example([(("usage",), "prompt_tokens", None), (("usage",), "input_tokens", 4)])
@example([(("usage",), "prompt_tokens", -1)])
def test_the_quick_reader_gives_what_the_careful_one_does(
    changes: list[tuple[tuple[str | int, ...], str, Any]],
) -> None:
    value: Any = copy.deepcopy(USUAL)
    for place, field, new in changes:
        inner = value
        try:
            for step in place:
                inner = inner[step]
            inner[field] = new
        except (KeyError, IndexError, TypeError):
            continue
    assert_read_alike(msgspec.json.encode(value))


@pytest.mark.parametrize("value", [b'"\xff"', b'"\\ud800"', b"1e999", b"NaN"])
@pytest.mark.parametrize("name", [b"content", b"refusal", b"text", b"model", b"x"])
def test_loose_json_is_read_alike(name: bytes, value: bytes) -> None:
    loose = b'"' + name + b'":' + value
    assert_read_alike(b'{"choices":[{"message":{"content":"a",' + loose + b"}}]}")
    assert_read_alike(b'{"choices":[{"message":{"content":"a"},' + loose + b"}]}")
    assert_read_alike(b'{"choices":[{"message":{"content":"a"}}],' + loose + b"}")


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_a_quote_is_one_short_line(body: bytes) -> None:
    quoted = apis.quote(body)
    assert len(quoted) <= 122
    assert len(quoted.splitlines()) == 1
