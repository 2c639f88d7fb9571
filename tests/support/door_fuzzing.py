"""Generated requests to a gateway, valid and not, and the law of what it answers.

Every answer is whole HTTP with headers that the gateway or its endpoint makes, in time. A valid
request succeeds. What is not valid is answered with 4xx in the shape of its API, and nothing with
5xx but a method that HTTP does not have.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import h11
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess

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
# A batch takes several calls, and counts as that many examples.
_CALLS_OF_A_BATCH = 6
_GOING = ("validating", "in_progress", "finalizing")
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

    def get(self, path: str) -> Answer:
        answer = self.ask("GET", path.encode(), [self.key])
        assert answer.status == 200, (path, answer)
        return answer

    def upload(self, file: bytes) -> Any:
        """The file, as it is stored for batches."""
        fields = ((b'name="purpose"', b"batch"), (b'name="file"; filename="in.jsonl"', file))
        parts = (
            b"--a b\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % field for field in fields
        )
        kind = (b"content-type", b'multipart/form-data; boundary="a b"')
        answer = self.post("/v1/files", b"".join(parts) + b"--a b--\r\n", [kind])
        assert answer.status == 200, answer
        return answer.json


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


# The gateway, and what is behind it.

_RESPONSE = {"id": "r", "object": "response", "model": "m", "output": []}
_SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
_USED = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
_WHOLE = {**_RESPONSE, "status": "completed", "output": [_SAID], "usage": _USED}
RESPONSE_EVENTS = b"".join(
    b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())
    for kind, fields in (
        ("response.created", {"response": {**_RESPONSE, "status": "in_progress"}}),
        ("response.output_text.delta", {"item_id": "i", "delta": "hi"}),
        ("response.completed", {"response": _WHOLE}),
    )
)


class _Streaming(BaseHTTPRequestHandler):
    """Answers every call with the same response: as a stream if the call asks for one."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        kind, body = "application/json", json.dumps(_WHOLE).encode()
        # Texts may have changed bytes, which the gateway passes on.
        if b'"stream": true' in asked:
            kind, body = "text/event-stream", RESPONSE_EVENTS
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def fuzzed_gateway(folder: Path) -> Iterator[Door]:
    """A gateway with keys, which is well in the end, has written nothing and holds nothing."""
    key = keys_of(folder, "one")["one"]
    with SimProcess() as sim, ThreadingHTTPServer(("127.0.0.1", 0), _Streaming) as streaming:
        thread = threading.Thread(target=streaming.serve_forever)
        thread.start()
        toml = f"""
            [serve]
            keys = "keys.jsonl"
            [endpoints.simulated]
            base_url = "{sim.base_url}"
            [endpoints.streaming]
            base_url = "http://127.0.0.1:{streaming.server_port}/v1"
            models = {{ {STREAMING} = "{STREAMING}" }}
        """
        try:
            with Serve(folder, toml=toml) as serve:
                door = Door(serve.url, key)
                yield door
                assert door.ask("GET", b"/healthz").status == 200
                assert serve.end() == (0, ""), "the gateway has written to stderr"
        finally:
            streaming.shutdown()
            thread.join()
        assert sim.stats()["in_flight"] == 0, "a call is still in flight"


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


# A model of an endpoint that streams responses: sim does not.
STREAMING = "streaming"
_STREAMED = {"stream": st.booleans()}
BODIES: dict[str, Any] = {
    CHAT: _objects({"messages": _messages(_ROLES)}, {**_COMMON, **_STREAMED}),
    COMPLETIONS: _objects({"prompt": _TEXTS}, {**_COMMON, **_STREAMED}),
    EMBEDDINGS: _objects(
        {"input": _TEXTS.filter(bool) | st.lists(_TEXTS.filter(bool), min_size=1, max_size=4)},
        {"user": _TEXTS},
    ),
    RESPONSES: _objects({"input": _TEXTS.filter(bool)}, {"user": _TEXTS})
    | st.fixed_dictionaries(
        {"model": st.just(STREAMING), "stream": st.just(True), "input": _TEXTS.filter(bool)},
        optional={"user": _TEXTS, "x_unknown": _JSON},
    ),
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
    if path == RESPONSES:
        assert answer.body == RESPONSE_EVENTS, answer
        return
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


_NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
_LINES = st.one_of(
    *(st.tuples(st.just(path), BODIES[path]) for path in (CHAT, COMPLETIONS, EMBEDDINGS))
)


def batches_of_valid_lines_are_completed(
    door: Door, examples: int, number: int | None = None
) -> None:
    """Each file is kept byte for byte, and each line of a batch of it is answered."""

    def one(asked: tuple[str, Any], count: int, name: str, is_spaced: bool) -> None:
        path, body = asked
        body = {name: value for name, value in body.items() if name != "stream"}
        lines = [
            {"custom_id": f"{name} {place}", "method": "POST", "url": path, "body": body}
            for place in range(count)
        ]
        separators = (" , ", " : ") if is_spaced else (",", ":")
        file = "\n".join(json.dumps(line, separators=separators) for line in lines).encode()
        stored = door.upload(file)
        assert (stored["bytes"], stored["purpose"]) == (len(file), "batch")
        assert door.get(f"/v1/files/{stored['id']}/content").body == file
        made = door.post(
            "/v1/batches",
            {"input_file_id": stored["id"], "endpoint": path, "completion_window": "24h"},
        )
        assert made.status == 200, (made, lines)
        until_s = time.monotonic() + PATIENCE_S
        while (batch := door.get(f"/v1/batches/{made.json['id']}").json)["status"] in _GOING:
            assert time.monotonic() < until_s, (batch, lines)
            time.sleep(0.02)
        assert batch["status"] == "completed", (batch, lines)
        counts = {"total": count, "completed": count, "failed": 0}
        assert batch["request_counts"] == counts, (batch, lines)
        output = door.get(f"/v1/files/{batch['output_file_id']}/content").body
        answered = {line["custom_id"]: line for line in map(json.loads, output.splitlines())}
        assert answered.keys() == {line["custom_id"] for line in lines}
        assert all(line["response"]["status_code"] == 200 for line in answered.values())
        for file_id in (stored["id"], batch["output_file_id"]):
            assert door.ask("DELETE", f"/v1/files/{file_id}".encode(), [door.key]).status == 200

    strategy = given(_LINES, st.integers(1, 3), _NAMES, st.booleans())
    _run(strategy(one), max(1, examples // _CALLS_OF_A_BATCH), number)


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
    batches_of_valid_lines_are_completed,
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
