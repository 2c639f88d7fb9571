"""Requests with seeded faults, in random pieces, on a connection of the server without a socket.

The law of each execution: what the handler sees of requests that were made well formed is what was
sent; where h11 reads the same bytes too, both see the same requests; another cut of the bytes and
another kind of handler see and answer the same; every response is whole, at most the last one is an
error, and nothing follows an error; no exception is left over, and no task.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import time
import zlib
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import h11

from redline.httpserver import TEXT, Exchange, HttpBounds, header_lines
from support.mutating import cut, mutated
from support.smuggling import NEXT, REFUSED, TAKEN

_SEEDS = [*REFUSED.values(), *(data for data, *_ in TAKEN.values())]
_TOKENS = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"1", b"f",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Host: y\r\n", b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b" folded\r\n",
    b"Content-Encoding: gzip\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"HTTP/1.0", b"HTTP/1.1",
    b"\x1f\x8b", b"\xff" * 8, b"9" * 25, NEXT, b"X: " + b"a" * 300 + b"\r\n",
]  # fmt: skip
_HANDLERS = ("whole", "parts", "late", "at once")
# Turns of the loop without any change after which nothing more will happen.
_QUIET_TURNS = 8


class Seen(NamedTuple):
    """One request, as its handler has read it."""

    method: str
    path: str
    body: bytes


@dataclass
class Figures:
    """What was executed, and what it came to."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    requests_checked: int = 0
    requests_by_h11: int = 0

    def as_record(self) -> dict[str, Any]:
        return {
            "executions": self.executions,
            "outcomes": dict(sorted(self.outcomes.items())),
            "requests_checked": self.requests_checked,
            "requests_by_h11": self.requests_by_h11,
        }


class Result(NamedTuple):
    seen: list[Seen]
    statuses: list[int]
    is_closed: bool


class _Transport(asyncio.Transport):
    """Keeps what is written, and ends as a socket would."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = False
        self.is_ended = False
        self._is_closing = False
        self._protocol = protocol

    def write(self, data: Any) -> None:
        assert not self._is_closing, "something is written to a closed transport"
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        assert not self._is_closing, "a closed transport is paused"
        self.is_paused = True

    def resume_reading(self) -> None:
        assert not self._is_closing, "a closed transport is resumed"
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class _Handlers:
    """Handlers of one kind; each answers with a trace of what it has read."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.seen: list[Seen] = []

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if self._kind != "at once" or not exchange.is_complete:
            return self._later(exchange)
        self._answer(exchange, exchange.received())
        return None

    async def _later(self, exchange: Exchange) -> None:
        if self._kind == "late":
            await asyncio.sleep(0)
        body = b""
        if self._kind == "parts":
            while part := await exchange.part():
                body += part
        else:
            body = await exchange.body()
        if self._kind == "late":
            await asyncio.sleep(0)
        self._answer(exchange, body)

    def _answer(self, exchange: Exchange, body: bytes) -> None:
        self.seen.append(Seen(exchange.method, exchange.path, body))
        exchange.respond(200, body, TEXT + header_lines({"x-method": exchange.method}))


def play(module: ModuleType, pieces: list[bytes], kind: str, bounds: HttpBounds) -> Result:
    """What becomes of the pieces. Raises AssertionError for what no connection may do."""
    failures: list[Any] = []

    async def main() -> Result:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        handlers = _Handlers(kind)
        service = module.Service(handlers, bounds)
        connection = module.Connection(service)
        transport = _Transport(connection)
        connection.connection_made(transport)

        async def settle() -> None:
            quiet, before = 0, (-1, -1)
            while quiet < _QUIET_TURNS:
                await asyncio.sleep(0)
                now = (len(handlers.seen), len(transport.written))
                quiet, before = (quiet + 1, now) if now == before else (0, now)

        for piece in pieces:
            if transport.is_paused:
                await settle()
                assert not transport.is_paused, "reading stays paused"
            if transport.is_closing():
                break
            connection.data_received(piece)
            if len(piece) % 3 == 0:
                await asyncio.sleep(0)
        await settle()
        is_closed = transport.is_ended or transport.is_closing()
        seen = [*handlers.seen]
        if not transport.is_closing():
            connection.eof_received()
            transport.close()
        await settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, "a task is left over"
        assert handlers.seen == seen, "a request was answered after its client had left"
        assert not service.connections, "a connection is left over"
        return Result(seen, _statuses(transport.written, seen), is_closed)

    result = asyncio.run(main())
    assert not failures, f"an exception is left over: {failures}"
    return result


def _statuses(written: bytes, seen: list[Seen]) -> list[int]:
    """The statuses of the responses. Raises AssertionError for what is no whole response."""
    statuses: list[int] = []
    answered = iter(seen)
    while written:
        if written.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
            written = written[25:]
            continue
        head, end, rest = written.partition(b"\r\n\r\n")
        assert end, "half a head"
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        statuses.append(int(first.split()[1]))
        size = int(fields["content-length"])
        if statuses[-1] == 200:
            one = next(answered)
            size = 0 if one.method == "HEAD" else size
            assert fields["x-method"] == one.method, "a response to another request"
            assert rest[:size] == (b"" if one.method == "HEAD" else one.body), "a wrong body"
        else:
            assert fields["connection"] == "close", "an error that ends no connection"
            # The one to HEAD has no body.
            size = size if rest else 0
        assert len(rest) >= size, "half a body"
        if fields.get("connection") == "close":
            assert not rest[size:], "something follows the last response"
        written = rest[size:]
    assert next(answered, None) is None, "a request without a response"
    return statuses


def fuzz(
    module: ModuleType, seed: int, *, executions: int | None = None, lasts_s: float | None = None
) -> Figures:
    """Figures of that many executions, or of as many as fit into lasts_s seconds of CPU time.

    Raises AssertionError, with the case that breaks the law.
    """
    rng = random.Random(seed)
    figures = Figures()
    ends_s = None if lasts_s is None else time.process_time() + lasts_s
    while figures.executions != executions and (ends_s is None or time.process_time() < ends_s):
        _one(module, rng, figures)
    return figures


def faulty(rng: random.Random) -> tuple[bytes, list[tuple[Seen, int]] | None]:
    """Requests, and what each holds with its body's largest size; None if there are faults."""
    data = b""
    truth: list[tuple[Seen, int]] = []
    for _ in range(rng.choice((1, 1, 2, 3, 40))):
        one, seen, size = _generated(rng)
        data += one
        truth.append((seen, size))
    is_true = rng.random() < 0.4
    if not is_true:
        if rng.random() < 0.5:
            data = rng.choice(_SEEDS) + (data if rng.random() < 0.5 else NEXT)
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            data = mutated(rng, data, _TOKENS, _SEEDS)
    return data, truth if is_true else None


def _one(module: ModuleType, rng: random.Random, figures: Figures) -> None:
    data, truth = faulty(rng)
    most = rng.choice((10, 100, 1_000, 100_000, 100_000))
    bounds = HttpBounds(most_body_bytes=most)
    results = []
    for _ in range(2):
        pieces, kind = cut(rng, data), rng.choice(_HANDLERS)
        try:
            results.append(play(module, pieces, kind, bounds))
            _judge(results, truth, data, most, figures)
        except AssertionError as error:
            raise AssertionError(f"{error}: {kind}, {most} bytes, {pieces}") from error
        figures.executions += 1


def _judge(
    results: list[Result],
    truth: list[tuple[Seen, int]] | None,
    data: bytes,
    most: int,
    figures: Figures,
) -> None:
    result = results[-1]
    errors = [status for status in result.statuses if status != 200]
    figures.outcomes[str(errors[0]) if errors else "closed" if result.is_closed else "kept"] += 1
    assert len(errors) <= 1, "two errors"
    assert not errors or result.is_closed, "an error and an open connection"
    # Of two faults in one body, the cut may say which is met first.
    same = [(r.seen, [s == 200 for s in r.statuses], r.is_closed) for r in results]
    assert same[-1] == same[0], f"another cut or handler gives {results[0]}"
    if truth is not None:
        sizes = [size for _, size in truth]
        upto = next((n for n, size in enumerate(sizes) if size > most), len(truth))
        assert result.seen == [one for one, _ in truth[:upto]], "what was sent is not what was seen"
        assert errors == ([] if upto == len(truth) else [413]), "a wrong error"
        figures.requests_checked += upto
        return
    other = _by_h11(data)
    for one, same in zip(result.seen, other, strict=False):
        if same is None:
            break
        assert (one.method, one.path, one.body) == same, f"h11 reads {same}"
        figures.requests_by_h11 += 1


def _by_h11(data: bytes) -> list[Seen | None]:
    """The requests that h11 reads; None for one of which it cannot say what the path or body is."""
    peer = h11.Connection(h11.SERVER)
    found: list[Seen | None] = []
    head: h11.Request | None = None
    body = b""
    try:
        peer.receive_data(data)
        while True:
            event = peer.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                found.append(_plain(head, body))
                if peer.their_state is not h11.DONE:
                    return found
                peer.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                peer.send(h11.EndOfMessage())
                peer.start_next_cycle()
            else:
                return found
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return found


def _plain(head: h11.Request, body: bytes) -> Seen | None:
    headers = dict(head.headers)
    if not head.target.startswith(b"/") or b"%" in head.target or b"content-encoding" in headers:
        return None
    path = head.target.partition(b"?")[0].decode("latin-1")
    return Seen(head.method.decode(), path, body)


# Making them.


def _generated(rng: random.Random) -> tuple[bytes, Seen, int]:
    """A request as a client may send it, what is in it, and its body's largest size."""
    body = rng.choice((b"", b"{}", NEXT, rng.randbytes(rng.randrange(300)), b"ab" * 500))
    if rng.random() < 0.01:
        # About as much as waits for a handler at most.
        body = b"x" * rng.randrange(60_000, 90_000)
    method = rng.choice(("POST", "POST", "PUT", "GET", "HEAD"))
    path = rng.choice(("/", "/a/b", "/" + "x" * 300))
    lines = [b"Host: x"]
    lines += [b"X-%d: %d" % (number, number) for number in range(rng.randrange(3))]
    sent = body
    coding = rng.choice((b"", b"", b"", b"gzip", b"deflate", b"identity"))
    if coding:
        lines.append(b"Content-Encoding: " + coding)
    if coding == b"gzip":
        parts = rng.choice(([body], [body[:5], body[5:]]))
        sent = b"".join(gzip.compress(part, mtime=0) for part in parts)
    elif coding == b"deflate":
        sent = zlib.compress(body)
    size = max(len(sent), len(body))
    if rng.random() < 0.15:
        lines.append(b"Connection: Upgrade\r\nUpgrade: h2c")
    if rng.random() < 0.15:
        lines.append(b"Expect: 100-continue")
    if rng.random() < 0.5:
        lines.append(b"Content-Length: %d" % len(sent))
    elif rng.random() < 0.8:
        lines.append(b"Transfer-Encoding: chunked")
        trailers = rng.choice((b"", b"", b"X-Sum: 1\r\n"))
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in cut(rng, sent)]
        sent = b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"
    else:
        lines = [line for line in lines if not line.startswith(b"Content-Encoding")]
        sent = body = b""
        size = 0
    rng.shuffle(lines)
    head = b"\r\n".join((f"{method} {path}?q HTTP/1.1".encode(), *lines))
    return head + b"\r\n\r\n" + sent, Seen(method, path, body), size
