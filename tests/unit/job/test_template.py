"""Rows become requests: each shape, each API, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from redline.errors import ConfigError, Rejected
from redline.job.settings import Prompting
from redline.job.work import PARAMETERS, Renderer, parse_output_path

CHAT = "/v1/chat/completions"
AZURE = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"


def request(row: dict[str, Any], **prompting: Any) -> Any:
    return Renderer(Prompting(**prompting)).request(row)


def body(row: dict[str, Any], **prompting: Any) -> Any:
    return request(row, **prompting).body


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_prompt_row_goes_to_chat() -> None:
    made = request({"prompt": "hi"})
    assert (made.method, made.url) == ("POST", CHAT)
    assert made.body == {"messages": [user("hi")]}
    assert made.output_path == ()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (CHAT, {"messages": [user("hi")]}),
        (AZURE, {"messages": [user("hi")]}),
        ("/v1/chat/completions/", {"messages": [user("hi")]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/embeddings?x=1", {"input": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/generate", {"prompt": "hi"}),
    ],
)
def test_a_prompt_goes_where_the_api_takes_it(url: str, expected: dict[str, Any]) -> None:
    assert body({"text": "hi"}, url=url, prompt="{{ text }}") == expected


@pytest.mark.parametrize("name", ["prompt", "input"])
@pytest.mark.parametrize(
    ("url", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_prompt_and_input_are_one(name: str, url: str, field: str) -> None:
    assert body({name: ["a", "b"]}, url=url) == {field: ["a", "b"]}


def test_messages_go_to_chat_and_to_responses_only() -> None:
    row = {"messages": [user("hi")]}
    assert body(row) == row
    assert body(row, url="/v1/responses") == {"input": [user("hi")]}
    with pytest.raises(Rejected, match="the row has `messages`, which /v1/embeddings does not"):
        body(row, url="/v1/embeddings")


@pytest.mark.parametrize("messages", [[], "hi", {"role": "user"}])
def test_messages_must_be_a_list_of_some(messages: Any) -> None:
    with pytest.raises(Rejected, match="`messages` must be a list of at least one message"):
        body({"messages": messages})


def test_an_empty_column_is_no_content() -> None:
    assert body({"messages": None, "prompt": "hi"}) == {"messages": [user("hi")]}
    with pytest.raises(Rejected, match="the row has no `messages`, `prompt` or `input`; the row"):
        body({"prompt": None, "text": "a"})
    with pytest.raises(Rejected, match="the row's columns are: none"):
        body({})


def test_known_parameters_of_a_row_are_sent_and_its_other_columns_are_not() -> None:
    row = {"prompt": "hi", "temperature": 0.5, "seed": None, "label": "x", "custom_id": "a"}
    assert body(row, model="m", params={"temperature": 0, "top_p": 1}) == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 1,
        "seed": None,
        "messages": [user("hi")],
    }
    assert "custom_id" not in PARAMETERS


def test_with_a_prompt_every_column_is_the_users_own() -> None:
    row = {"text": "hi", "temperature": "hot", "user": "ann"}
    assert body(row, prompt="{{ text }}") == {"messages": [user("hi")]}


def test_a_rows_own_body_field_is_merged_last() -> None:
    row = {"prompt": "hi", "temperature": 1, "body": {"temperature": 2, "x": 1}}
    assert body(row) == {"messages": [user("hi")], "temperature": 2, "x": 1}
    assert body({"text": "hi", "body": {"x": 1}}, prompt="{{ text }}")["x"] == 1


def test_a_system_message_stands_before_a_rows_messages_unless_it_has_one() -> None:
    system = {"role": "system", "content": "S hi"}
    row = {"text": "hi", "messages": [user("a")]}
    assert body(row, system="S {{ text }}")["messages"] == [system, user("a")]
    for role in ("system", "developer"):
        own = [{"role": role, "content": "own"}, user("a")]
        assert body({"messages": own}, system="S")["messages"] == own


def test_a_system_message_is_instructions_to_responses() -> None:
    row = {"input": "hi"}
    assert body(row, url="/v1/responses", system="S") == {"input": "hi", "instructions": "S"}


def test_a_system_message_of_a_row_replaces_that_of_the_flag_in_any_form() -> None:
    own = {"input": "hi", "instructions": "own"}
    assert body(own, url="/v1/responses", system="S") == own
    assert body({"url": "/v1/responses", "body": own}, system="S") == own
    null = {**own, "instructions": None}
    assert body(null, url="/v1/responses", system="S") == {"input": "hi", "instructions": "S"}
    for messages in (
        [{"role": "system", "content": "own"}, user("a")],
        [user("a"), {"role": "developer", "content": "own"}],
    ):
        assert body({"messages": messages}, system="S") == {"messages": messages}
        assert body({"input": messages}, url="/v1/responses", system="S") == {"input": messages}


def test_a_system_message_goes_into_batch_rows_of_either_api() -> None:
    row = {"url": "/v1/chat/completions", "body": {"messages": [user("a")]}}
    assert body(row, system="S")["messages"] == [{"role": "system", "content": "S"}, user("a")]
    row = {"url": "/v1/responses", "body": {"input": "hi"}}
    assert body(row, system="S") == {"input": "hi", "instructions": "S"}
    row = {"url": "/v1/embeddings", "body": {"input": "hi"}}
    assert body(row, system="S") == {"input": "hi"}


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/embeddings?a=b", "/generate"])
def test_a_system_message_without_a_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="has no place for a system message"):
        Renderer(Prompting(system="S", url=url))
    renderer = Renderer(Prompting(system="S", url="{{ u }}", prompt="p"))
    with pytest.raises(Rejected, match="has no place for a system message"):
        renderer.request({"u": url})


def test_batch_rows_bring_their_own_request() -> None:
    row = {"custom_id": "a", "method": "put", "url": "/v1/x", "body": {"a": 1, "model": "own"}}
    made = request(row, model="m", params={"p": 1}, output_path="a.0")
    assert (made.method, made.url) == ("PUT", "/v1/x")
    assert made.body == {"model": "own", "p": 1, "a": 1}
    assert made.output_path == ("a", 0)
    assert request({"url": "/x", "body": {}}).method == "POST"
    get = request({"url": "/x", "method": "get"})
    assert (get.method, get.url, get.body) == ("GET", "/x", None)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"url": 3, "body": {}}, "`url` and `method` must be text"),
        ({"url": "/x", "method": 3, "body": {}}, "`url` and `method` must be text"),
        ({"url": "/x", "body": "text"}, "`body` must be an object"),
        ({"url": "/x", "body": None}, "`body` must be an object"),
        ({"url": "https://a.example/v1/x", "body": {}}, "not a path: https://a.example/v1/x"),
    ],
)
def test_a_batch_row_that_is_wrong(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(Rejected, match=problem):
        request(row)


def test_columns_named_url_and_body_are_columns_where_there_is_a_prompt() -> None:
    row = {"url": "http://a.example", "body": "long text"}
    assert body(row, prompt="{{ url }}: {{ body }}") == {
        "messages": [user("http://a.example: long text")]
    }
    assert body({**row, "prompt": "hi"}) == {"messages": [user("hi")]}


def test_a_plain_endpoint_gets_the_row() -> None:
    made = request({"custom_id": "a", "q": "hi", "n": 1}, url="/ask", params={"k": 2, "n": 0})
    assert made.body == {"k": 2, "n": 1, "q": "hi"}


def test_a_body_template_is_the_whole_body() -> None:
    row = {"text": 'a "b"\n', "n": None}
    template = '{"q": {{ text | json }}, "n": {{ n | json }}}'
    assert body(row, body=template, model="m") == {"model": "m", "q": 'a "b"\n', "n": None}
    assert body(row, body="[{{ text | json }}]", model="m") == ['a "b"\n']
    with pytest.raises(Rejected, match="the body template does not produce JSON") as caught:
        body(row, body="{{ text }}")
    assert "{{ text | json }}" in caught.value.hint


def test_urls_are_templates_and_get_has_no_body() -> None:
    made = request({"q": "a&b"}, method="get", url="/chat?q={{ q | urlencode }}")
    assert (made.method, made.url, made.body) == ("GET", "/chat?q=a%26b", None)
    assert request({"q": 1}, url="/a/{id}").url == "/a/{id}"


def test_a_template_keeps_text_as_it_is() -> None:
    row = {"text": "<b> & \u00e9\n"}
    assert body(row, prompt="{{ text }}\n")["messages"] == [user("<b> & \u00e9\n\n")]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ txt }}", "'txt' is undefined; the row's columns are: text, n"),
        ("{{ text.a.b }}", "has no attribute 'a'; the row's columns are: text, n"),
        ("{{ n // 0 }}", "the prompt template fails on the row: .*by zero"),
        ("{{ text + 1 }}", "the prompt template fails on the row: "),
        ("{% for i in n %}{% endfor %}", "the prompt template fails on the row: "),
        ("{{ text | dictsort }}", "the prompt template fails on the row: .*no attribute 'items'"),
        ("{{ n + 1e999 }}", "the prompt template fails on the row: .*'inf' is not defined"),
        ("{{ text | truncate(1) }}", "the prompt template fails on the row: expected length"),
    ],
)
def test_a_template_that_does_not_fit_a_row(template: str, problem: str) -> None:
    with pytest.raises(Rejected, match=problem):
        body({"text": "a", "n": 1}, prompt=template)


def test_a_table_of_many_columns_is_not_listed_whole() -> None:
    wide = {f"column {number}": "x" for number in range(2000)}
    for prompt in ({"prompt": "{{ txt }}"}, {}):
        with pytest.raises(Rejected, match="the row's columns are: column 0, column 1, ") as caught:
            body(wide, **prompt)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["prompt", "system", "body", "url"])
@pytest.mark.parametrize("text", ["{{ a ", "{% if %}", "{{ a | nope }}"])
def test_a_template_in_error(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"the {name} template is not valid"):
        Renderer(Prompting(**{name: text}))


def test_output_paths() -> None:
    assert parse_output_path(None) == ()
    assert parse_output_path("$.a.0.b.007") == ("a", 0, "b", "007")
    digits = "1" * 5000
    assert parse_output_path(f"a.².{digits}") == ("a", "²", digits)
    for text in ("a..b", ".", "$"):
        with pytest.raises(ConfigError, match="invalid output path"):
            parse_output_path(text)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"method": "GTE"}, "unknown HTTP method: GTE"),
        ({"method": ""}, "unknown HTTP method"),
        ({"url": "chat"}, "not a path: chat"),
        ({"url": "http://a.example/x"}, "not a path: http://a.example/x"),
        ({"method": "GET", "body": "{}"}, "so body would not be sent"),
        ({"body": "{}", "system": "s"}, "a body template and a prompt cannot be combined"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Prompting(**settings)


def test_a_body_of_columns_is_json_before_it_is_sent() -> None:
    made = request({"text": 'h"i', "n": 2}, prompt="{{ text }}{{ n }} %s", system="{{ text }}")
    assert made.raw == (
        b'{"messages":[{"role":"system","content":"h\\"i"},{"role":"user","content":"h\\"i2 %s"}]}'
    )
    assert request({"prompt": "hi"}, model="m").raw is not None
    assert request({"text": "hi"}, prompt="{{ text | upper }}").raw is None


def test_a_number_too_long_to_be_printed_fails_its_row() -> None:
    with pytest.raises(Rejected, match="the prompt template fails on the row: Exceeds the limit"):
        request({"n": 10**5000}, prompt="{{ n }}")


@pytest.mark.parametrize("template", ['{{ row["a b"] }}', "{{ row['a b'] }}", "{{ row.text }}"])
def test_a_column_may_be_named_as_an_item_of_the_row(template: str) -> None:
    row = {"a b": "hi", "text": "hi"}
    made = request(row, prompt=template)
    assert (made.raw is not None, made.body) == (True, {"messages": [user("hi")]})
    # A column of this name comes first, as any column does.
    with pytest.raises(Rejected, match="the prompt template does not fit the row: 'dict object' h"):
        request({**row, "row": {"x": 1}}, prompt=template)
    with pytest.raises(Rejected, match="the system template does not fit the row: 'dict object' h"):
        request({**row, "row": {"x": 1}}, prompt="{{ text }}", system=template)
    with pytest.raises(Rejected, match="the prompt template does not fit the row: 'dict object' h"):
        request({"x": 1}, prompt=template)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ('{{ row }}: {{ row["a b"] }}', "7: hi"),
        ('{{ row["a b"] | upper }} {{ row["none"] | default("-") }}', "HI -"),
        ('{% if row > 6 %}{{ row["a b"] }}{% endif %}', "hi"),
        ('{{ whole_row | upper }} {{ row["a b"] }}', "W hi"),
        ('{{ row["row"] }}', "7"),
        ('{% for row in items %}{{ row["a b"] }}{% endfor %}', "x"),
    ],
)
def test_a_column_named_row_does_not_hide_columns_with_spaces(template: str, said: str) -> None:
    row = {"row": 7, "a b": "hi", "none": None, "items": [{"a b": "x"}], "whole_row": "w"}
    assert body(row, prompt=template) == {"messages": [user(said)]}
