"""What is read of a request's body, and what is wrong with one."""

from __future__ import annotations

import resource
from typing import Any

import msgspec
import pytest

from redline.serve.http import Bounds, Refusal, read_call

CHAT = "/v1/chat/completions"


def refused(body: Any, path: str = CHAT, models: tuple[str, ...] = ()) -> Refusal:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(Refusal) as caught:
        read_call(path, raw, models)
    return caught.value


def test_the_body_goes_on_as_it_is_but_for_the_priority() -> None:
    body = {"model": "m", "messages": [], "top_k": 3, "priority": -2, "stream": False}
    asked = read_call(CHAT, msgspec.json.encode(body), ("m",))
    del body["priority"]
    assert asked.request.body == body
    assert (asked.request.url, asked.request.method) == (CHAT, "POST")
    assert (asked.model, asked.priority, asked.is_stream) == ("m", -2, False)


@pytest.mark.parametrize(
    ("more", "path", "expected"),
    [
        ({}, CHAT, (False, False)),
        ({"stream": None, "priority": None}, CHAT, (False, False)),
        ({"stream": True}, CHAT, (True, False)),
        ({"stream": True, "stream_options": {}}, "/v1/completions", (True, False)),
        ({"stream": True, "stream_options": {"include_usage": True}}, CHAT, (True, True)),
        ({"stream": True}, "/v1/responses", (True, False)),
        # Vectors are not streamed, whatever a body says.
        ({"stream": True}, "/v1/embeddings", (False, False)),
    ],
)
def test_what_streams(more: dict[str, Any], path: str, expected: tuple[bool, bool]) -> None:
    asked = read_call(path, msgspec.json.encode({"model": "m", **more}), ())
    assert (asked.is_stream, asked.wants_usage) == expected


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "could not be read as JSON"),
        (b"{", None, "could not be read as JSON"),
        (b"\xff\xfe", None, "could not be read as JSON"),
        (b'{"model": "\xff"}', None, "could not be read as JSON"),
        (b'{"a":' * 100_000, None, "could not be read as JSON"),
        (b"[]", None, "Expected `object`"),
        (b"null", None, "Expected `object`"),
        (b'"hello"', None, "Expected `object`"),
        ({"model": 7}, "model", "Expected `str | null`"),
        ({"stream": "yes"}, "stream", "Expected `bool | null`"),
        ({"stream_options": {"include_usage": 1}}, "stream_options", "include_usage"),
        ({"priority": "high"}, "priority", "Expected `int | null`"),
        ({"priority": 1.5}, "priority", "Expected `int | null`"),
        ({"priority": True}, "priority", "Expected `int | null`"),
        ({"priority": 2**31}, "priority", "<= 2147483647"),
    ],
)
def test_what_is_wrong_is_named(body: Any, param: str | None, says: str) -> None:
    refusal = refused(body)
    assert refusal.status == 400
    error = refusal.body["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


def test_a_model_that_is_not_there_is_refused_with_the_nearest() -> None:
    refusal = refused({"model": "tiny-model"}, models=("tiny_model", "large"))
    assert refusal.status == 404
    assert refusal.body["error"] == {
        "message": "The model `tiny-model` does not exist: did you mean tiny_model?",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    far = refused({"model": "gpt"}, models=("tiny_model",)).body["error"]["message"]
    assert far == "The model `gpt` does not exist"
    assert read_call(CHAT, b'{"model": "any"}', ()).model == "any"
    assert read_call(CHAT, b"{}", ("tiny_model",)).model == ""


@pytest.mark.parametrize(
    ("files", "most"), [(resource.RLIM_INFINITY, 32_768), (1_032, 500), (10, 1)]
)
def test_each_client_leaves_an_open_file_for_its_call(
    monkeypatch: pytest.MonkeyPatch, files: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert Bounds().most_connections == most
