"""The key of a request: all that decides its answer, nothing else; and what is drawn by lot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redline.calls import Call, Endpoint, Request
from redline.calls.cache import identity, is_determined, key_of, only_asks

BODY = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "é"}]}
ASKED = Request(body=BODY, headers={"X-Team": "a"}, output_path=("choices", 0))
HERE = Endpoint(base_url="http://127.0.0.1:8000/v1", api_key="k-1", headers={"X-Org": "a"})


def body(**changes: Any) -> Request:
    return msgspec.structs.replace(ASKED, body={**BODY, **changes})


def asked(**changes: Any) -> Request:
    return msgspec.structs.replace(ASKED, **changes)


OTHERS = {
    "model": body(model="n"),
    "content": body(messages=[{"role": "user", "content": "e"}]),
    "role": body(messages=[{"role": "system", "content": "é"}]),
    "order of messages": body(messages=[{"role": "user", "content": "é"}] * 2),
    "another field": body(top_p=1),
    "a field that is null": body(top_p=None),
    "1.0 for 1": body(temperature=0.0),
    "a text for a number": body(temperature="0"),
    "no body": asked(body=None),
    "method": asked(method="GET"),
    "path": asked(url="/v1/completions"),
    "query": asked(url="/v1/chat/completions?v=2"),
    "output path": asked(output_path=("choices", 1)),
    "an index that is text": asked(output_path=("choices", "0")),
    "output path and path run together": asked(output_path=(), url="/v1/chat/completionschoices"),
    "header": asked(headers={"X-Team": "b"}),
    "one more header": asked(headers={"X-Team": "a", "X-Model": "b"}),
    "no header": asked(headers={}),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_whatever_decides_an_answer_makes_another_key(other: Request) -> None:
    assert key_of(ASKED, Call(), "here") != key_of(other, Call(), "here")


def test_another_endpoint_and_another_tenant_make_another_key() -> None:
    keys = {
        key_of(ASKED, Call(), "here"),
        key_of(ASKED, Call(), "there"),
        key_of(ASKED, Call(tenant="x"), "here"),
    }
    assert len(keys) == 3


SAME = {
    "order of a body's keys": asked(body=dict(reversed(BODY.items()))),
    "order of inner keys": body(messages=[{"content": "é", "role": "user"}]),
    "case of a header": asked(headers={"x-team": "a"}),
    "a key": asked(headers={"X-Team": "a", "Authorization": "Bearer abc", "api-key": "abc"}),
    "a request's name": asked(headers={"X-Team": "a", "X-Request-ID": "1", "traceparent": "1"}),
}


@pytest.mark.parametrize("same", SAME.values(), ids=SAME.keys())
def test_what_decides_nothing_leaves_the_key_as_it_is(same: Request) -> None:
    key = key_of(ASKED, Call(), "here")
    assert key == key_of(same, Call(deadline_s=5.0, priority=3, attempts=2), "here")
    assert key is not None
    assert len(key) == 32


def test_the_key_of_a_request_stays_what_it_is() -> None:
    """Another one would lose every cache there is."""
    key = key_of(ASKED, Call(), identity(HERE))
    assert key is not None
    assert key.hex() == "88c72ae7a619a3d09584f83ec6605811d7e7f2af3d57432c91e8e002c4d1a148"


def test_bytes_with_half_a_surrogate_pair_have_no_key_and_those_with_a_pair_have_one() -> None:
    half, pair = (
        Request(raw=b'{"seed": 1, "a": "%b"}' % text) for text in (rb"\ud83d", rb"\ud83d\ude00")
    )
    assert key_of(half, Call(), "e") is None
    assert key_of(pair, Call(), "e") is not None


@pytest.mark.parametrize("bad", [{"a": object()}, {"a": "\ud800"}], ids=["object", "surrogate"])
def test_a_body_that_is_no_json_has_no_key(bad: Any) -> None:
    assert key_of(asked(body=bad), Call(), "here") is None


def endpoint(**changes: Any) -> Endpoint:
    return msgspec.structs.replace(HERE, **changes)


def test_an_endpoint_is_its_address_and_its_headers_but_never_a_key() -> None:
    assert "k-1" not in identity(HERE)
    assert identity(HERE) == identity(endpoint(api_key="k-2"))
    assert identity(HERE) == identity(endpoint(name="other", base_url="http://127.0.0.1:8000/v1/"))
    assert identity(HERE) == identity(endpoint(headers={"x-org": "a", "Authorization": "secret"}))
    assert identity(HERE) != identity(endpoint(base_url="http://127.0.0.1:8001/v1"))
    assert identity(HERE) != identity(endpoint(base_url="https://127.0.0.1:8000/v1"))
    assert identity(HERE) != identity(endpoint(base_url="http://127.0.0.1:8000/b/v1"))
    assert identity(HERE) != identity(endpoint(headers={"x-org": "b"}))


def test_an_embedded_server_is_the_same_at_any_port() -> None:
    there = endpoint(base_url="http://127.0.0.1:8001/v1")
    assert identity(HERE, embedded="sim") == identity(there, embedded="sim")
    assert identity(HERE, embedded="sim") != identity(HERE)


def chat(**fields: Any) -> Request:
    return Request(body={"model": "m", "messages": [], **fields})


DETERMINED = {
    "temperature 0": chat(temperature=0),
    "temperature 0.0": chat(temperature=0.0),
    "a seed": chat(seed=0),
    "a seed at any temperature": chat(seed=7, temperature=1),
    "embeddings": Request(url="/v1/embeddings", body={"model": "m", "input": "a"}),
    "embeddings with a query": Request(url="/v1/embeddings/?v=1", body={"input": "a"}),
    "not in the background": chat(temperature=0, background=False, conversation=None),
    "the caller's tools": chat(temperature=0, tools=[{"type": "function", "function": {}}]),
    "another API": Request(url="/ask", body={"q": "a", "temperature": 0}),
}
SAMPLED = {
    "nothing stated": chat(),
    "a temperature": chat(temperature=0.1),
    "no seed": chat(seed=None),
    "a seed that is none": chat(seed=True),
    "a temperature that is none": chat(temperature=False),
    "a temperature as text": chat(temperature="0"),
    "a web search": chat(temperature=0, tools=[{"type": "web_search"}]),
    "another web search": chat(temperature=0, web_search_options={"a": 1}),
    "a web search without options": chat(temperature=0, web_search_options={}),
    "a conversation": chat(temperature=0, conversation="c-1"),
    "in the background": chat(temperature=0, background=True),
    "a body that is no object": Request(body=[0]),
    "no body": Request(method="GET", url="/chat?temperature=0"),
    "a PUT": Request(method="PUT", url="/v1/embeddings", body={"seed": 1}),
}


@pytest.mark.parametrize("request_", DETERMINED.values(), ids=DETERMINED.keys())
def test_a_request_is_determined_where_it_says_so(request_: Request) -> None:
    assert is_determined(request_)


@pytest.mark.parametrize("request_", SAMPLED.values(), ids=SAMPLED.keys())
def test_any_other_request_is_sampled(request_: Request) -> None:
    assert not is_determined(request_)


def test_only_questions_are_ever_cached() -> None:
    asking = [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        if only_asks(Request(method=method))
    ]
    assert asking == ["GET", "POST"]


def test_several_endpoints_are_their_group_or_who_they_are() -> None:
    other = endpoint(name="other", base_url="http://127.0.0.1:8001/v1")
    assert identity(HERE, other) == identity(other, HERE)
    assert identity(HERE, other) not in (identity(HERE), identity(other))
    # Two keys of one endpoint.
    assert identity(HERE, endpoint(name="key-2", api_key="k-2")) == identity(HERE)
    grouped = [msgspec.structs.replace(one, group="qwen") for one in (HERE, other)]
    assert identity(*grouped) == identity(grouped[0]) == identity(grouped[1])
    assert identity(*grouped) != identity(HERE, other)
    assert identity(grouped[0], other) == identity(HERE, other)


def test_what_an_endpoint_calls_a_model_decides_its_answer() -> None:
    fast, faster = endpoint(models={"fast": "a"}), endpoint(models={"fast": "b"})
    assert len({identity(HERE), identity(fast), identity(faster)}) == 3
