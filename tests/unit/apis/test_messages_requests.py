"""Requests of the Messages API as chats: what becomes what, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redline.apis.messages import UntranslatableError, chat_of, prompt_of

PIXEL = "iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*content]}


def call(name: str, tool: str = "weather", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": given}


def result(name: str, content: Any = None, **more: Any) -> dict[str, Any]:
    made = {"type": "tool_result", "tool_use_id": name, **more}
    return made if content is None else {**made, "content": content}


def asked(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [*messages] or [user("hi")], **more}


def said(*messages: Any, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat_of(asked(*messages, **more))["messages"]
    return found


def image(source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


IMAGE = image({"type": "base64", "media_type": "image/png", "data": PIXEL})
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


def test_a_plain_request() -> None:
    assert chat_of(asked()) == {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_how_it_is_sampled_and_how_it_is_answered() -> None:
    body = asked(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END"],
        stream=True,
        metadata={"user_id": "u"},
    )
    chat = chat_of(body)
    del chat["messages"]
    assert chat == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
    }


def test_a_user_with_a_long_name_has_one_that_servers_take() -> None:
    """Claude Code's have 123 to 150 characters, and OpenAI takes 64."""
    names = ["a" * 64, "a" * 65, "a" * 140, "ü" * 140]
    users = [chat_of(asked(metadata={"user_id": name}))["user"] for name in names]
    assert users[0] == names[0]
    assert [len(user) for user in users] == [64] * 4
    assert len(set(users)) == 4
    assert chat_of(asked(metadata={"user_id": names[2]}))["user"] == users[2]


def test_what_the_answer_does_not_depend_on_is_left_out() -> None:
    empty: dict[str, Any] = {"stop_sequences": [], "tools": [], "tool_choice": {"type": "auto"}}
    dropped = {
        "cache_control": {"type": "ephemeral"},
        "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {},
        "priority": 3,
        "output_config": {"effort": "high"},
        "stream": False,
        "container": None,
        "thread": None,
    }
    # A client's stream options and the like are made here.
    ours = {"stream_options": {}, "stop": "x", "user": "x", "functions": []}
    assert chat_of({**asked(), **empty, **dropped, **ours}) == chat_of(asked())


def test_fields_that_are_not_of_the_messages_api_are_for_the_server() -> None:
    chat = chat_of(asked(seed=1, chat_template_kwargs={"enable_thinking": False}))
    assert (chat["seed"], chat["chat_template_kwargs"]) == (1, {"enable_thinking": False})
    chat = chat_of(asked(max_completion_tokens=5))
    assert (chat.get("max_tokens"), chat["max_completion_tokens"]) == (None, 5)


def test_a_system_prompt_comes_first() -> None:
    blocks = [text("be brief", cache_control={"type": "ephemeral"}), text("be kind")]
    first = {"role": "system", "content": "be brief\nbe kind"}
    assert said(system=blocks)[0] == first
    assert said(system="be brief\nbe kind")[0] == first
    assert said(system="")[0]["role"] == said(system=[])[0]["role"] == "user"
    middle = said(user("a"), {"role": "system", "content": [text("b")]}, user("c"))
    assert [one["role"] for one in middle] == ["user", "system", "user"]


def test_messages_of_one_role_are_one() -> None:
    found = said(user("a"), user(text("b"), text("c")), assistant(text("d"), text("e")))
    assert found == [
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "de"},
    ]
    found = said(
        {"role": "assistant", "content": "a"}, assistant(call("c")), assistant(text("b"), text("c"))
    )
    assert [(one["content"], len(one["tool_calls"])) for one in found] == [("a\nbc", 1)]


def test_images_are_parts() -> None:
    url = image({"type": "url", "url": "https://a.example/b.png"})
    (found,) = said(user(text("look"), IMAGE, url))
    other = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    assert found["content"] == [{"type": "text", "text": "look"}, PART, other]


def test_results_come_right_after_their_calls() -> None:
    found = said(
        user("weather?"),
        assistant({"type": "thinking", "thinking": "hm", "signature": "x"}, text("I look")),
        assistant(call("c1", city="Oslo"), call("c2", "now")),
        user(text("thanks")),
        user(result("c2", "noon"), result("c1", [text("rain"), text("wind")]), text("and now?")),
    )
    assert found[1:] == [
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "noon"},
        {"role": "tool", "tool_call_id": "c1", "content": "rain\nwind"},
        {"role": "user", "content": "thanks\nand now?"},
    ]


def test_a_turn_that_only_called_or_only_thought() -> None:
    redacted = {"type": "redacted_thinking", "data": "x"}
    found = said(user("a"), assistant(redacted), user("b"), assistant(call("c")), user(result("c")))
    assert [(one["role"], one["content"]) for one in found] == [
        ("user", "a\nb"),
        ("assistant", None),
        ("tool", ""),
    ]


def test_a_last_answer_may_be_empty() -> None:
    assert said(user("a"), assistant()) == said(user("a"))


def test_a_failed_tool_says_so() -> None:
    found = said(user(result("c", "no such city", is_error=True), result("d", is_error=False)))
    assert [one["content"] for one in found] == ["Error: no such city", ""]


def test_images_of_a_result_are_in_the_message_behind_it() -> None:
    found = said(user(text("so?"), result("c", [IMAGE]), result("d", [text("cut"), IMAGE])))
    assert [one["role"] for one in found] == ["tool", "tool", "user"]
    assert [one["content"] for one in found[:2]] == ["The result is in the next message.", "cut"]
    names = [part["text"] for part in found[2]["content"] if part["type"] == "text"]
    assert names == ["Result of the tool call c:", "Result of the tool call d:", "so?"]
    assert found[2]["content"].count(PART) == 2


def test_documents_and_search_results() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "long"}
    search = {"type": "search_result", "source": "s", "title": "t", "content": [text("found")]}
    document = {"type": "document", "source": plain, "title": "T", "context": "C"}
    (found,) = said(user(document, search))
    assert found["content"] == "T\nC\nlong\nt\ns\nfound"
    content = {"type": "content", "content": [text("a"), IMAGE]}
    (found,) = said(user({"type": "document", "source": content, "title": "T"}))
    assert found["content"] == [text("T"), text("a"), PART]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    (found,) = said(user({"type": "document", "source": pdf, "title": "a.pdf"}))
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    assert found["content"] == [{"type": "file", "file": file}]


def test_tools_are_functions() -> None:
    tools = [
        {
            "name": "weather",
            "description": "of a city",
            "input_schema": SCHEMA,
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "custom", "name": "now", "input_schema": {"type": "object"}, "strict": True},
    ]
    chat = chat_of(asked(tools=tools))
    assert "tool_choice" not in chat
    assert chat["tools"] == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA},
        },
        {
            "type": "function",
            "function": {"name": "now", "parameters": {"type": "object"}, "strict": True},
        },
    ]


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "t"}, {"type": "function", "function": {"name": "t"}}),
    ],
)
def test_which_tool_is_called(choice: dict[str, Any], found: Any) -> None:
    tools = [{"name": "t", "input_schema": SCHEMA}]
    chat = chat_of(asked(tools=tools, tool_choice=choice))
    assert chat["tool_choice"] == found
    assert "parallel_tool_calls" not in chat
    if choice["type"] != "none":
        alone = {**choice, "disable_parallel_tool_use": True}
        assert chat_of(asked(tools=tools, tool_choice=alone))["parallel_tool_calls"] is False


def test_an_output_format_is_a_response_format() -> None:
    chat = chat_of(asked(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}))
    schema = {"name": "answer", "schema": SCHEMA, "strict": True}
    assert chat["response_format"] == {"type": "json_schema", "json_schema": schema}


def test_a_count_needs_no_bound_and_counts_the_same_prompt() -> None:
    body = asked(system="s", tools=[{"name": "t", "input_schema": SCHEMA}])
    chat = chat_of(body)
    del body["max_tokens"], chat["max_tokens"]
    assert prompt_of(body) == chat


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], None),
        ({"model": "m", "messages": [user("a")]}, None),
        (asked(max_tokens=0), "max_tokens"),
        (asked(max_tokens="9"), "max_tokens"),
        ({**asked(), "messages": []}, "messages"),
        (asked({"role": "tool", "content": "a"}), "messages[0].role"),
        (asked(user({"type": "video", "a": 1}, text("a"))), "messages[0].content[0].type"),
        (asked(user(text("a"), {"type": "text"})), "messages[0].content[1]"),
        (asked(user("a"), {"role": "user", "content": []}), "messages[1].content"),
        (asked(user("a"), assistant(), user("b")), "messages[1].content"),
        (asked(assistant(IMAGE)), "messages[0].content[0].type"),
        (asked(user(call("c"), text("a"))), "messages[0].content[0].type"),
        (
            asked(user(text("a"), image({"type": "file", "file_id": "f"}))),
            "messages[0].content[1].source.type",
        ),
        (
            asked(assistant({"type": "server_tool_use", "id": "s", "name": "n", "input": {}})),
            "messages[0].content[0].type",
        ),
        (asked(assistant({**call("c"), "input": "{}"})), "messages[0].content[0].input"),
        (asked(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
        (asked(tools=[{"name": "t"}]), "tools[0]"),
        (asked(tool_choice={"type": "some"}), "tool_choice.type"),
        (asked(tool_choice={"type": "any"}), "tool_choice"),
        (asked(tools=[], tool_choice={"type": "tool", "name": "t"}), "tool_choice"),
        (asked(compaction={"type": "summarize"}), "compaction"),
        (asked(container="c"), "container"),
        (asked(mcp_servers=[{}]), "mcp_servers"),
        (asked(thread={"type": "create"}), "thread"),
        (asked(n=2), "n"),
        (asked(output_format={"type": "json_schema"}), "output_format"),
    ],
)
def test_what_cannot_be_translated_is_named(body: Any, param: str | None) -> None:
    with pytest.raises(UntranslatableError) as caught:
        chat_of(body)
    assert caught.value.param == param
    message = str(caught.value)
    assert "$" not in message
    assert param is None or f"`{param}`" in message
    if param is None and isinstance(body, dict):
        assert "`max_tokens`" in message


def test_a_chat_can_be_sent() -> None:
    body = asked(user(text("ünï 🎈"), IMAGE), assistant(call("c", a="🎈")), user(result("c", "🎈")))
    sent = json.loads(json.dumps(chat_of(body)))["messages"]
    assert sent[0]["content"][0] == text("ünï 🎈")
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"a":"🎈"}'
