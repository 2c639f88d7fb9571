"""Generated requests to a gateway, valid and not, and the law of what it answers.

Every answer is whole HTTP with headers that the gateway or its endpoint makes, in time. A valid
request succeeds. What is not valid is answered with 4xx in the shape of its API, and nothing with
5xx but a method that HTTP does not have.
"""

from __future__ import annotations

import gzip
import json
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import h11
from hypothesis import given, seed, settings
from hypothesis import strategies as st

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
CALLS = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES, COUNT_TOKENS)
PAGES = ("/", "/status", "/events", "/healthz", "/readyz", "/health", "/metrics", "/v1/models")
STORES = ("/v1/files", "/v1/batches", "/v1/files/x", "/v1/files/x/content", "/v1/batches/x")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# What an answer may have; anything else has come from a client.
HEADERS = {
    *("content-type", "content-length", "transfer-encoding", "connection", "date", "allow"),
    *("x-request-id", "request-id", "retry-after", "x-should-retry", "www-authenticate"),
    *("x-redline-cache", "cache-control", "x-accel-buffering", "content-security-policy"),
    *("x-content-type-options", "referrer-policy"),
}
PATIENCE_S = 60.0
Headers = Sequence[tuple[bytes, bytes]]


class Answer(NamedTuple):
    """Headers by lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Door:
    """A client of the gateway at this base URL, which reads what it answers strictly."""

    def __init__(self, base_url: str, key: str) -> None:
        parts = urlsplit(base_url)
        self._address = (parts.hostname or "", parts.port or 0)
        self.key = (b"authorization", b"Bearer " + key.encode())
        self.statuses = Counter[int]()

    def ask(self, method: str, target: bytes, headers: Headers = (), body: bytes = b"") -> Answer:
        """What it answers on a connection of its own. Raises TimeoutError if it hangs."""
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        if body or method == "POST":
            lines.append(b"content-length: %d\r\n" % len(body))
        head = b"%b %b HTTP/1.1\r\nhost: x\r\n" % (method.encode(), target)
        with socket.create_connection(self._address, timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(b"".join((head, *lines, b"\r\n", body)))
            except ConnectionError:
                # It was refused before its end.
                pass
            answer = _read(connection, method)
        self.statuses[answer.status] += 1
        assert set(answer.headers) <= HEADERS, answer.headers
        return answer

    def post(self, path: str, body: Any, headers: Headers = ()) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path.encode(), (self.key, *headers), raw)


def _read(connection: socket.socket, method: str) -> Answer:
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    peer.send(h11.EndOfMessage())
    head: h11.Response | None = None
    body = b""
    while True:
        event = peer.next_event()
        if event is h11.NEED_DATA:
            peer.receive_data(connection.recv(65_536))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            fields = {name.decode(): value.decode() for name, value in head.headers}
            return Answer(head.status_code, fields, body)


# What is asked.

_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
_MODELS = st.sampled_from(["m", "fast", "gpt-4o", "a/b:c", "ünïcode"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_ROLES = st.sampled_from(["user", "assistant", "system"])
_COMMON: dict[str, Any] = {
    "temperature": st.floats(0, 2),
    "max_tokens": st.integers(1, 64),
    "seed": st.integers(0, 2**31),
    "user": _TEXTS,
    "service_tier": st.sampled_from(["auto", "default", "flex", "priority"]),
    "x_unknown": _JSON,
}


def _objects(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    return st.fixed_dictionaries({"model": _MODELS, **required}, optional=optional)


def _parts(kind: str) -> Any:
    return st.lists(st.fixed_dictionaries({"type": st.just(kind), "text": _TEXTS}), min_size=1)


def _messages(roles: Any) -> Any:
    contents = _TEXTS.filter(bool) | _parts("text").filter(lambda parts: parts[0]["text"])
    one = st.fixed_dictionaries({"role": roles, "content": contents})
    return st.lists(one, min_size=1, max_size=4)


_STREAMED = {"stream": st.booleans()}
BODIES: dict[str, Any] = {
    CHAT: _objects({"messages": _messages(_ROLES)}, {**_COMMON, **_STREAMED}),
    COMPLETIONS: _objects({"prompt": _TEXTS}, {**_COMMON, **_STREAMED}),
    EMBEDDINGS: _objects(
        {"input": _TEXTS.filter(bool) | st.lists(_TEXTS.filter(bool), min_size=1, max_size=4)},
        {"user": _TEXTS},
    ),
    # sim does not stream these.
    RESPONSES: _objects({"input": _TEXTS.filter(bool)}, {"user": _TEXTS}),
    MESSAGES: _objects(
        {"max_tokens": st.integers(1, 64), "messages": _messages(st.just("user"))},
        {"system": _TEXTS, "temperature": st.floats(0, 1), **_STREAMED},
    ),
    COUNT_TOKENS: _objects({"messages": _messages(st.just("user"))}, {"system": _TEXTS}),
}
VALID = st.one_of(*(st.tuples(st.just(path), bodies) for path, bodies in BODIES.items()))
_CODINGS = st.sampled_from(["", "", "gzip", "escaped", "spaced"])

_WRONG = st.sampled_from(
    [
        *(b"", b"{", b"null", b"[]", b"17", b'"m"', b"\xff\xfe{}", b"{}", b"NaN", b"{}{}"),
        *(b"[" * 50_000, b'{"a":' * 50_000, b'{"model": "m", "messages": %b}' % (b"[" * 50_000)),
        b'{"model": "\\ud800", "messages": []}',
        b'{"model": 1e999, "messages": 5, "prompt": 5, "input": 5}',
        b'{"model": "m", "messages": [{"role": "user", "content": NaN}], "input": NaN}',
        b'{"model": "m", "model": 5, "messages": "x", "prompt": {}, "input": {}}',
        b'{"model": "m", "max_tokens": %b, "messages": 1, "input": 1}' % (b"9" * 10_000),
    ]
)
_VALUES = st.sampled_from([None, True, -1, 0, 10**30, 1.5, "x", "\r\nx: y", [], [[]], {}, {"a": 1}])
_HEADER_NAMES = st.sampled_from(
    [
        *(b"x-redline-class", b"cache-control", b"x-request-id", b"request-id", b"content-type"),
        *(b"accept", b"accept-encoding", b"expect", b"x-forwarded-for", b"user-agent", b"cookie"),
        *(b"anthropic-version", b"openai-organization", b"idempotency-key", b"range", b"te"),
    ]
)
# What may stand in a header (RFC 9110, 5.5): no control characters but tabs.
_HEADER_VALUES = st.binary(max_size=40).map(
    lambda value: bytes(b for b in value if b >= 0x20 and b != 0x7F).strip()
) | st.sampled_from([b"no-cache", b"high", b"low", b"%0d%0ax: y", b"\\r\\nx: y", b"a" * 4000])
_FIELDS = st.lists(st.tuples(_HEADER_NAMES, _HEADER_VALUES), max_size=3, unique_by=lambda p: p[0])
_PATHS = st.sampled_from([*CALLS, *PAGES, *STORES, "/v1/models/m", "/v1", "/nothing", "*"])
_TWISTS = st.sampled_from(
    [
        *("{}", "{}", "{}", "/{}", "{}/", "{}//", "//x{}", "{}%0d%0aX-A:%20b", "{}%00", "{}%2f.."),
        *("/..{}", "/.{}", "/v1/..{}", "{}?limit=x&after=%ff", "{}?limit=99999999999999999999"),
        *("{}?" + "a=1&" * 1500, "{}%E2%82%AC", "{}%ff%fe", "{};x=1", "{}%252f", "{}?order=up"),
        *("http://x{}", "{}" + "a" * 5000, "{}?purpose=%0a", "/%76%31/models{}"),
    ]
)


# What is answered.


def check_error(answer: Answer, path: str) -> None:
    """A refusal in the shape of the API that the path belongs to."""
    assert 400 <= answer.status < 500, answer
    assert answer.headers["content-type"].startswith("application/json"), answer
    error = answer.json["error"]
    assert isinstance(error["message"], str), answer
    assert error["message"], answer
    assert len(answer.body) < 5_000, answer
    if answer.json.get("type") == "error":
        assert path.startswith(MESSAGES), answer
        assert answer.headers["request-id"], answer
    else:
        assert path not in (MESSAGES, COUNT_TOKENS), answer
        assert {"type", "param", "code"} <= error.keys(), answer


def check_success(answer: Answer, path: str, body: dict[str, Any]) -> None:
    """The answer that a valid body gets."""
    assert answer.status == 200, (answer, path, body)
    if not body.get("stream"):
        assert isinstance(answer.json, dict), answer
        return
    assert answer.headers["content-type"].startswith("text/event-stream"), answer
    end = b"event: message_stop" if path == MESSAGES else b"data: [DONE]"
    assert end in answer.body, answer


def encoded(body: dict[str, Any], coding: str) -> tuple[bytes, Headers]:
    """The body in one of the ways in which clients write JSON, and the headers that say so."""
    raw = json.dumps(body, ensure_ascii=coding == "escaped").encode()
    if coding == "gzip":
        return gzip.compress(raw, mtime=0), [(b"content-encoding", b"gzip")]
    if coding == "spaced":
        return b"\r\n\t " + json.dumps(body, indent=2).encode() + b"\n", []
    return raw, []


# The properties. Each runs as many examples against a gateway.


def valid_requests_succeed(door: Door, examples: int, number: int | None = None) -> None:
    def one(asked: tuple[str, dict[str, Any]], coding: str, fields: Headers) -> None:
        path, body = asked
        raw, more = encoded(body, coding)
        fields = [pair for pair in fields if pair[0] not in (b"expect", b"te")]
        check_success(door.post(path, raw, [*more, *fields]), path, body)

    _run(given(VALID, _CODINGS, _FIELDS)(one), examples, number)


def invalid_bodies_are_refused(door: Door, examples: int, number: int | None = None) -> None:
    def one(path: str, raw: bytes, fields: Headers) -> None:
        check_error(door.post(path, raw, [p for p in fields if p[0] != b"expect"]), path)

    _run(given(st.sampled_from(CALLS), _WRONG, _FIELDS)(one), examples, number)


def changed_bodies_are_answered(door: Door, examples: int, number: int | None = None) -> None:
    """Valid bodies of which a field has another value, or bytes have been changed."""

    def one(asked: tuple[str, dict[str, Any]], data: Any) -> None:
        path, body = asked
        if data.draw(st.booleans()):
            body = {**body, data.draw(st.sampled_from(sorted(body))): data.draw(_VALUES)}
            raw = json.dumps(body).encode()
        else:
            raw = json.dumps(body).encode()
            at = data.draw(st.integers(0, len(raw) - 1))
            raw = raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + 1 :]
        answer = door.post(path, raw)
        if answer.status != 200:
            check_error(answer, path)

    _run(given(VALID, st.data())(one), examples, number)


def odd_targets_are_answered(door: Door, examples: int, number: int | None = None) -> None:
    """Any method, path, encoding of a path, query and header."""

    def one(method: str, path: str, twist: str, fields: Headers, has_key: bool) -> None:
        target = twist.format(path) if path != "*" else path
        if path == "/events" and method == "GET" and twist in ("{}", "//x{}"):
            # It has no end.
            return
        key = [door.key] if has_key else []
        fields = [pair for pair in fields if pair[0] != b"expect"]
        answer = door.ask(method, quote(target, "/%?=&;:*.").encode(), [*key, *fields])
        assert answer.status < 500 or answer.status == 501, (answer, method, target)
        if answer.status >= 400 and method != "HEAD" and target.startswith("/v1"):
            check_error(answer, target)

    bools = st.booleans()
    strategy = given(st.sampled_from(METHODS), _PATHS, _TWISTS, _FIELDS, bools)
    _run(strategy(one), examples, number)


def texts_in_keys_and_ids_stay_texts(door: Door, examples: int, number: int | None = None) -> None:
    """What a client makes up comes back in JSON, if at all, and never as a header."""

    def one(name: str, value: bytes) -> None:
        for path in (f"/v1/models/{quote(name)}", f"/v1/files/{quote(name)}"):
            answer = door.ask("GET", path.encode(), [door.key])
            if answer.status != 200:
                check_error(answer, path)
        body = {"model": name, "messages": [{"role": "user", "content": name}]}
        answer = door.post(CHAT, body, [(b"x-request-id", value), (b"x-redline-class", value)])
        assert answer.status in (200, 400), answer
        refused = door.ask("POST", CHAT.encode(), [(b"authorization", b"Bearer " + value)], b"{}")
        assert refused.status == 401, refused
        assert refused.json["error"]["code"] == "invalid_api_key"

    names = st.text(max_size=20) | st.sampled_from(["\r\nx: y", "\r\n\r\nHTTP/1.1 200 OK", "\0"])
    safe = names.map(lambda name: name.encode("utf-8", "replace").decode())
    _run(given(safe, _HEADER_VALUES)(one), examples, number)


PROPERTIES: tuple[Callable[[Door, int, int | None], None], ...] = (
    valid_requests_succeed,
    invalid_bodies_are_refused,
    changed_bodies_are_answered,
    odd_targets_are_answered,
    texts_in_keys_and_ids_stay_texts,
)


def _run(test: Any, examples: int, number: int | None) -> None:
    """number: a seed; None for the same examples in each run."""
    if number is not None:
        test = seed(number)(test)
    bounds = settings(
        max_examples=examples, deadline=None, derandomize=number is None, database=None
    )
    bounds(test)()
