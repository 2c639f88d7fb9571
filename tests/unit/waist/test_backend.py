"""A request's body, given as a value or as JSON that is sent as it is."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.waist import Call, Request

PLAIN: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "n": 2}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def test_a_body_is_decoded_from_the_json_that_is_sent() -> None:
    request = Request(raw=b'{ "model" : "a" }')
    assert request.body == {"model": "a"}
    assert request.body is request.body
    assert request.raw == b'{ "model" : "a" }'
    assert Request(body=PLAIN).raw is None


@pytest.mark.parametrize("raw", [b'{"model": "a"', b"\xff", b"", b"[" * 100_000])
def test_what_is_not_json_is_its_own_body(raw: bytes) -> None:
    request = Request(raw=raw)
    assert request.body == raw
    assert request.with_fields(model="b") is request


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (rb"a\ud83d", "a\ufffd"),
        (rb"\uDE00\uD83D", "\ufffd\ufffd"),
        (rb"\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        # The backslash is escaped, and the next character is no escape.
        (rb"\\ud83d\ud83d\\\\ude00\n", "\\ud83d\ufffd\\\\ude00\n"),
    ],
)
def test_half_a_surrogate_pair_is_read_as_a_replacement_character(raw: bytes, read: str) -> None:
    request = Request(raw=b'{"text":"%b","model":"a","n":2}' % raw)
    assert (request.model, request.asked) == ("a", {"n": 2})
    assert request.body == {"text": read, "model": "a", "n": 2}
    rewritten = request.with_fields(model="b")
    assert rewritten.body == {"text": read, "model": "b", "n": 2}


def test_another_body_takes_the_place_of_the_json() -> None:
    request = msgspec.structs.replace(Request(raw=b'{"model":"a"}'), body={"model": "b"})
    assert (request.raw, request.body) == (None, {"model": "b"})


def test_a_request_can_give_its_json_up() -> None:
    request = msgspec.structs.replace(Request(raw=b'{"model":"a"}'), body=None, method="GET")
    assert (request.raw, request.body) == (None, None)
    assert request == Request(method="GET")
    assert Request().body is None


def test_another_url_keeps_the_json() -> None:
    request = Request(raw=b'{ "model":"a"}')
    assert request.body == {"model": "a"}
    moved = msgspec.structs.replace(request, url="/other")
    assert (moved.raw, moved.body) == (b'{ "model":"a"}', {"model": "a"})


def test_requests_are_equal_if_they_ask_the_same() -> None:
    raw = Request(raw=msgspec.json.encode(PLAIN))
    assert raw == Request(body=PLAIN) == raw
    assert raw == Request(raw=msgspec.json.format(raw.raw or b""))
    assert raw != Request(body={**PLAIN, "n": 3})
    assert raw != Request(body=PLAIN, url="/other")
    assert raw != PLAIN


def test_a_request_is_shown_as_it_was_made() -> None:
    for request in (Request(raw=b'{"a":1}', url="/x"), Request(body={"a": 1}, method="PUT")):
        assert eval(repr(request)) == request
    assert "raw=b'{" in repr(Request(raw=b"{}"))
    assert "raw" not in repr(Request(body={}))


def test_a_copy_is_the_same_request() -> None:
    request = Request(raw=b'{"a": [1]}')
    for same in (copy.deepcopy(request), pickle.loads(pickle.dumps(request))):
        assert (same, same.raw) == (request, request.raw)


def test_a_request_cannot_be_changed() -> None:
    request = Request(raw=b"{}")
    for name in ("raw", "body", "url", "other"):
        with pytest.raises(AttributeError):
            setattr(request, name, b"x")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        # A value of the same name further in is not touched, nor is any other value's spelling.
        (
            b'{"x": {"model": "in", "stream": true}, "model": "a", "f": 1.50e+1}',
            b'{"x":{"model": "in", "stream": true},"model":"b","f":1.50e+1,"stream":false}',
        ),
        # Servers differ in which one of two they take, so only one is left.
        (b'{"model":"a","stream":true,"model":"c"}', b'{"model":"b","stream":false}'),
        (b'{"\\u006dodel":"a"}', b'{"model":"b","stream":false}'),
        (b' {\n"model"\t:\r"a"} ', b'{"model":"b","stream":false}'),
        (
            b'{"text":"\\"model\\":\\"a\\", \\u00e9"}',
            b'{"text":"\\"model\\":\\"a\\", \\u00e9","model":"b","stream":false}',
        ),
        (b"{}", b'{"model":"b","stream":false}'),
        (b'{"model ":"a"}', b'{"model ":"a","model":"b","stream":false}'),
    ],
)
def test_fields_are_rewritten_in_the_json(raw: bytes, expected: bytes) -> None:
    rewritten = Request(raw=raw, url="/x").with_fields(model="b", stream=False)
    assert (rewritten.raw, rewritten.url) == (expected, "/x")


@pytest.mark.parametrize("raw", [b"[1]", b'"model"', b"null", b"3"])
def test_a_body_without_fields_is_left_as_it_is(raw: bytes) -> None:
    request = Request(raw=raw)
    assert request.with_fields(model="b") is request
    value = Request(body=msgspec.json.decode(raw))
    assert value.with_fields(model="b") is value


@given(st.dictionaries(st.text(), VALUES, max_size=5), VALUES)
def test_rewriting_json_is_rewriting_its_value(body: dict[str, Any], value: Any) -> None:
    raw = Request(raw=msgspec.json.format(msgspec.json.encode(body), indent=2))
    rewritten = raw.with_fields(model=value)
    assert rewritten.raw is not None
    assert rewritten == Request(body=body).with_fields(model=value)
    assert rewritten.body == {**body, "model": value}
    assert raw.body == body


@pytest.mark.parametrize(
    ("raw", "asked"),
    [
        (b'{"n": 3, "text": "x"}', {"n": 3}),
        (b'{"\\u006e": 3}', {"n": 3}),
        (b'{"n": 1, "x": {"n": 2}, "n": 3}', {"n": 3}),
        (b'{"prompt": ["a"], "input": [1]}', {"prompt": ["a"], "input": [1]}),
        (b'{"text": "\\"n\\": 3", "x": {"n": 2}}', {}),
        (b"[3]", [3]),
        (b'{"n"', b'{"n"'),
    ],
)
def test_what_says_the_number_of_answers_is_read(raw: bytes, asked: Any) -> None:
    assert Request(raw=raw).asked == asked


def test_a_body_that_was_given_is_what_is_asked() -> None:
    assert Request(body={"text": 3}).asked == {"text": 3}


def test_a_call_forgets_what_other_pools_have_found_out_about_it() -> None:
    call = Call(avoid=frozenset("abc"), unfit=frozenset("b"), barred=frozenset("c"), tenant="one")
    call.bar(frozenset("d"))
    assert (call.avoid, call.unfit, call.barred) == ({"d"}, set(), {"d"})
    assert call.tenant == "one"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"\ud83d\ude00\ud83d", "\U0001f600\ufffd"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        # An escaped backslash is no beginning of another escape.
        (rb"\\ud83d\ud83d", "\\ud83d\ufffd"),
        (rb"\\\ud83d\ude00\n\ud83d", "\\\U0001f600\n\ufffd"),
    ],
)
def test_halves_of_surrogate_pairs_are_replaced(text: bytes, read: str) -> None:
    assert Request(raw=b'"%b"' % text).body == read


def test_a_long_text_with_half_of_a_surrogate_pair_is_read_quickly() -> None:
    def took_s(half: bytes) -> float:
        raw = b'"%b%b"' % (half, b"hello " * 10**6)
        begun_s = time.process_time()
        assert len(Request(raw=raw).body) >= 6 * 10**6
        return time.process_time() - begun_s

    # The text is read twice, and searched once.
    assert min(took_s(rb"\ud83d") for _ in range(3)) < 25 * min(took_s(b"") for _ in range(3))
