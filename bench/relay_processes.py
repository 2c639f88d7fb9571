"""The processes of bench/relay.py: python bench/relay_processes.py ROLE [UPSTREAM].

upstream   gives every request the same chat completion of 1 KB, with its usage
bare       forwards bytes with only a Protocol and httptools on each side
redline    redline's HTTP server, its retry and its HTTP backend, without limits
limited    the same within limits of requests and tokens that never bind

With `-streamed` appended to their names, they give and forward EVENTS events of EVENT_BYTES, one
after another. The first line on stdout is the URL. All run on uvloop, with the garbage collector
set as the command `redline` sets it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import httptools
import uvloop

from redline.calls import Call, Chunk, Endpoint, HttpBackend, Request, Retry, Sink
from redline.httpserver import Exchange, HttpServer, header_lines
from redline.limits import Limits, Rate

FRONTS = ("bare", "redline", "limited")
ANSWER_BYTES = 1024
IN_FLIGHT = 256
EVENTS, EVENT_BYTES = 50, 200
# Long enough that each event is read on its own, by a front that runs fifty times slower, too.
_BETWEEN_S = 0.005
# Neither binds: a core cannot forward as many.
LIMITS = Limits(
    requests=Rate(1_000_000, 1.0), tokens=Rate(1_000_000_000, 1.0), concurrency=IN_FLIGHT
)
_JSON = b"Content-Type: application/json\r\n"
_STREAMED = b"Content-Type: text/event-stream\r\n"


def completion() -> bytes:
    """A chat completion of ANSWER_BYTES bytes."""
    content = ""
    while True:
        message = {"role": "assistant", "content": content, "refusal": None}
        whole = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "m",
            "choices": [
                {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            ],
            "usage": {"prompt_tokens": 250, "completion_tokens": 130, "total_tokens": 380},
        }
        body = json.dumps(whole, separators=(",", ":")).encode()
        if len(body) >= ANSWER_BYTES:
            return body
        content += "x" * (ANSWER_BYTES - len(body))


def events() -> list[bytes]:
    """The events of a streamed chat completion, with its usage, of EVENT_BYTES each."""

    def event(choices: list[Any], usage: Any = None) -> bytes:
        whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
        whole |= {"model": "m", "choices": choices, "usage": usage}
        return b"data: %b\n\n" % json.dumps(whole, separators=(",", ":")).encode()

    def piece(content: str, reason: str | None = None) -> bytes:
        return event([{"index": 0, "delta": {"content": content}, "finish_reason": reason}])

    usage = {"prompt_tokens": 250, "completion_tokens": EVENTS, "total_tokens": 250 + EVENTS}
    text = piece("x" * (EVENT_BYTES - len(piece(""))))
    return [*[text] * (EVENTS - 3), piece("", "stop"), event([], usage), b"data: [DONE]\n\n"]


class Requests(asyncio.Protocol):
    """A client's connection. answer: called with each request's target and body."""

    def __init__(self, answer: Callable[[Requests, bytes, bytes], None]) -> None:
        self._answer = answer
        self._parser = httptools.HttpRequestParser(self)
        self._target = self._body = b""
        self._is_kept = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._is_kept = self._parser.should_keep_alive()
        target, body = self._target, self._body
        self._target = self._body = b""
        self._answer(self, target, body)

    def respond(self, status: int, body: bytes) -> None:
        if self._transport.is_closing():
            # The client has left: wrk ends with requests on their way.
            return
        self._transport.write(
            b"HTTP/1.1 %d OK\r\n%bContent-Length: %d\r\n\r\n%b" % (status, _JSON, len(body), body)
        )
        if not self._is_kept:
            self._transport.close()

    def begin(self, status: int) -> None:
        self._transport.write(
            b"HTTP/1.1 %d OK\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (status, _STREAMED)
        )

    def part(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._transport.write(b"0\r\n\r\n")


class Upstream(asyncio.Protocol):
    """A connection to the upstream, for one request at a time."""

    def __init__(self, idle: list[Upstream]) -> None:
        self._idle = idle
        self._body = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)

    def ask(self, client: Requests, request: bytes) -> None:
        self._client = client
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if self._parser.should_keep_alive():
            self._idle.append(self)
        else:
            self._transport.close()
        self._client.respond(self._parser.get_status_code(), body)


class StreamedUpstream(Upstream):
    """The same for answers that are handed on as they come."""

    def on_headers_complete(self) -> None:
        self._client.begin(self._parser.get_status_code())

    def on_body(self, data: bytes) -> None:
        self._client.part(data)

    def on_message_complete(self) -> None:
        self._idle.append(self)
        self._client.end()


class Bare:
    """Forwards requests over pooled connections."""

    def __init__(self, host: str, port: int, kind: type[Upstream]) -> None:
        self._address = (host, port)
        self._kind = kind
        self._idle: list[Upstream] = []
        self._head = b"Host: %b:%d\r\n%b" % (host.encode(), port, _JSON)
        self._dialing = set[asyncio.Task[None]]()

    def answer(self, client: Requests, target: bytes, body: bytes) -> None:
        request = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
            target,
            self._head,
            len(body),
            body,
        )
        if self._idle:
            self._idle.pop().ask(client, request)
            return
        dialing = asyncio.get_running_loop().create_task(self._dial(client, request))
        self._dialing.add(dialing)
        dialing.add_done_callback(self._dialing.discard)

    async def _dial(self, client: Requests, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: self._kind(self._idle), *self._address)
        upstream.ask(client, request)


class Passed(Sink):
    """Hands the bytes of a stream on to the client of an exchange."""

    relays = True

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        fields = header_lines({"content-type": headers.get("content-type", "")})
        await self._exchange.begin(status, fields)

    async def put(self, chunk: Chunk) -> None:
        await self._exchange.write(chunk.raw)


class Relay(HttpServer):
    """Forwards requests through a backend, bytes in and bytes out."""

    def __init__(self, backend: Retry, *, is_streamed: bool) -> None:
        super().__init__("the relay", ("127.0.0.1", 0))
        self._backend = backend
        self._is_streamed = is_streamed

    async def _handle(self, exchange: Exchange) -> None:
        body = exchange.received() if exchange.is_complete else await exchange.body()
        request = Request(raw=body, url=exchange.path)
        if self._is_streamed:
            streamed = await self._backend.send(request, Call(), Passed(exchange))
            assert streamed.is_success, streamed.error
            await exchange.end()
            return
        outcome = await self._backend.send(request, Call())
        reply = outcome.reply
        if reply is None:
            exchange.respond(502, str(outcome.error).encode())
        else:
            exchange.respond(reply.status, reply.body)

    async def _drain(self) -> None:
        pass


def give_events(client: Requests, target: bytes, body: bytes) -> None:
    """Answers with a stream."""
    loop = asyncio.get_running_loop()
    client.begin(200)
    for number, event in enumerate(events(), 1):
        loop.call_later(number * _BETWEEN_S, client.part, event)
    loop.call_later((EVENTS + 1) * _BETWEEN_S, client.end)


async def serve(role: str, upstream: str) -> None:
    """Serves until it is cancelled."""
    role, _, streamed = role.partition("-")
    if role in ("redline", "limited"):
        limits = LIMITS if role == "limited" else Limits(concurrency=IN_FLIGHT)
        backend = Retry(HttpBackend(Endpoint(base_url=upstream, limits=limits, proxy="")))
        async with Relay(backend, is_streamed=bool(streamed)) as relay:
            print(relay.base_url, flush=True)
            await asyncio.Event().wait()
    if role == "bare":
        host, _, port = upstream.removeprefix("http://").removesuffix("/v1").partition(":")
        answer = Bare(host, int(port), StreamedUpstream if streamed else Upstream).answer
    elif streamed:
        answer = give_events
    else:
        whole = completion()

        def answer(client: Requests, target: bytes, body: bytes) -> None:
            client.respond(200, whole)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Requests(answer), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    role, upstream = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(role, upstream))
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
