"""redline's HTTP server over real sockets, with h11 as the reader of what it answers."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import socket
import ssl
import warnings
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import h11
import pytest
import uvloop

from redline.httpserver import TEXT, BodyError, Exchange, HttpBounds, header_lines
from support.http_peer import Plain, Served, peer
from support.smuggling import NEXT, REFUSED, TAKEN
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on either loop, and fails it after 20 seconds."""

    def run(main: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await main

        is_uvloop = request.param == "uvloop"
        factory = uvloop.new_event_loop if is_uvloop else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run


async def echo(exchange: Exchange) -> None:
    body = await exchange.body()
    fields = header_lines({"x-method": exchange.method, "x-path": ascii(exchange.path)})
    exchange.respond(200, body, TEXT + fields)


def get(path: str = "/", *lines: str, version: str = "1.1", method: str = "GET") -> bytes:
    head = "\r\n".join((f"{method} {path} HTTP/{version}", "Host: x", *lines))
    return f"{head}\r\n\r\n".encode()


def post(body: bytes, path: str = "/", *lines: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *lines, method="POST") + body


def chunked(*parts: bytes, path: str = "/") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
    return get(path, "Transfer-Encoding: chunked", method="POST") + body


# Requests and responses.


def test_a_connection_serves_one_request_after_another(run: Run) -> None:
    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            for number in range(3):
                found = await client.ask(post(b"body %d" % number, f"/{number}"))
                assert (found.status, found.body) == (200, b"body %d" % number)
                assert found.headers["x-path"] == f"'/{number}'"
                assert found.headers["content-length"] == "6"
                assert found.headers["date"].endswith("GMT")
                assert "connection" not in found.headers
                assert "server" not in found.headers
            assert server.connections == 1

    run(main())


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_request_is_read_however_it_is_cut(run: Run, step: int) -> None:
    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            for data, body in (
                (post(b"x" * 300), b"x" * 300),
                (chunked(b"a", b"bc" * 100), b"a" + b"bc" * 100),
                (get(), b""),
                (post(gzip.compress(b"y" * 999), "/", "Content-Encoding: gzip"), b"y" * 999),
            ):
                await client.send(data, step=step)
                assert (await client.answer()).body == body

    run(main())


def test_pipelined_requests_are_answered_in_their_order(run: Run) -> None:
    async def slower_first(exchange: Exchange) -> None:
        number = int(exchange.path[1:])
        await asyncio.sleep(0.02 if number % 10 == 0 else 0)
        exchange.respond(200, await exchange.body() + exchange.path.encode())

    async def main() -> None:
        async with Served(slower_first) as server, peer(server) as client:
            count = 200
            asked = [
                post(b"x" * (n * 50), f"/{n}") if n % 3 else get(f"/{n}") for n in range(count)
            ]
            sending = asyncio.create_task(client.send(b"".join(asked)))
            for number in range(count):
                size = number * 50 if number % 3 else 0
                assert (await client.answer()).body == b"x" * size + b"/%d" % number
            await sending

    run(main())


def test_a_client_that_pipelines_without_end_is_not_read_without_end(run: Run) -> None:
    async def never(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Served(never) as server:
            # More than the buffers of both sockets hold.
            for data in (get("/many") * 400_000, post(b"x" * 30_000_000)):
                with socket.socket() as client:
                    client.setblocking(False)
                    await loop.sock_connect(client, ("127.0.0.1", server.port))
                    sending = asyncio.create_task(loop.sock_sendall(client, get("/first") + data))
                    _, running = await asyncio.wait([sending], timeout=0.3)
                    assert running
                    sending.cancel()
                    await asyncio.wait([sending])
            assert set(server.paths) == {"/first"}

    run(main())


def test_large_bodies_both_ways(run: Run) -> None:
    body = bytes(range(256)) * 40_000

    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            for data in (post(body), chunked(*[body[:99_999]] * 30), chunked(*[b"ab"] * 9_000)):
                sending = asyncio.create_task(client.send(data))
                found = await client.answer()
                await sending
                assert len(found.body) in (len(body), 99_999 * 30, 18_000)
                assert found.body[:2] == data[-len(body) :][:2] or found.body[:2] in (
                    b"ab",
                    body[:2],
                )
            assert (await client.ask(get())).status == 200

    run(main())


def test_a_body_can_be_taken_in_parts_at_the_handlers_pace(run: Run) -> None:
    seen: list[int] = []

    async def slow(exchange: Exchange) -> None:
        while part := await exchange.part():
            seen.append(len(part))
            await asyncio.sleep(0.001)
        exchange.respond(200, b"%d" % sum(seen))

    async def main() -> None:
        async with Served(slow) as server, peer(server) as client:
            sending = asyncio.create_task(client.send(post(b"x" * 5_000_000)))
            assert (await client.answer()).body == b"5000000"
            await sending
            assert max(seen) < 1_000_000
            seen.clear()
            assert (await client.ask(chunked(b"ab", b"c"))).body == b"3"

    run(main())


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_stream_is_chunked_or_ends_with_its_connection(run: Run, version: str) -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.begin(200, TEXT, b"one " if exchange.query else b"")
        await exchange.write(b"" if exchange.query else b"one ")
        await exchange.write(b"two ")
        await exchange.end(b"three")

    async def main() -> None:
        async with Served(stream) as server, peer(server) as client:
            found = await client.ask(get(version=version))
            assert found.body == b"one two three"
            if version == "1.1":
                assert found.headers["transfer-encoding"] == "chunked"
                assert (await client.ask(get("/?a=b"))).body == b"one two three"
            else:
                assert "transfer-encoding" not in found.headers
                assert found.headers["connection"] == "close"
                assert await client.rest() == b""

    run(main())


def test_the_head_of_a_stream_can_be_sent_before_its_body(run: Run) -> None:
    go = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await exchange.begin(200, TEXT)
        await exchange.write(b"")
        await go.wait()
        await exchange.end(b"x")

    async def main() -> None:
        async with Served(waits) as server, peer(server) as client:
            await client.send(get())
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            go.set()
            assert await client.reader.readuntil(b"0\r\n\r\n") == b"1\r\nx\r\n0\r\n\r\n"

    run(main())


def test_http_1_0_is_closed_unless_it_is_to_be_kept(run: Run) -> None:
    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            for _ in range(2):
                found = await client.ask(get("/", "Connection: keep-alive", version="1.0"))
                assert found.headers["connection"] == "keep-alive"
            found = await client.ask(b"GET / HTTP/1.0\r\n\r\n")
            assert found.headers["connection"] == "close"
            assert await client.rest() == b""

    run(main())


def test_connection_close_is_the_last_request(run: Run) -> None:
    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            await client.send(get("/a", "Connection: close") + get("/b"))
            assert (await client.answer()).headers["connection"] == "close"
            assert await client.rest() == b""
            assert server.paths == ["/a"]

    run(main())


def test_the_answer_to_head_has_the_length_and_no_body(run: Run) -> None:
    async def either(exchange: Exchange) -> None:
        if exchange.path == "/stream":
            await exchange.begin(200, TEXT, b"x")
            await exchange.write(b"y")
            await exchange.end(b"z")
        else:
            exchange.respond(200, b"x" * 100_000)

    async def main() -> None:
        async with Served(either) as server, peer(server) as client:
            for path, length in (("/", "100000"), ("/stream", None), ("/", "100000")):
                found = await client.ask(get(path, method="HEAD"), "HEAD")
                assert (found.headers.get("content-length"), found.body) == (length, b"")

    run(main())


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(run: Run, status: int) -> None:
    async def none(exchange: Exchange) -> None:
        exchange.respond(status, b"", b"")

    async def main() -> None:
        async with Served(none) as server, peer(server) as client:
            for _ in range(2):
                found = await client.ask(get())
                assert (found.status, found.body) == (status, b"")
                assert "content-length" not in found.headers

    run(main())


def test_headers_and_query(run: Run) -> None:
    async def shown(exchange: Exchange) -> None:
        text = f"{exchange.headers['x-a']}|{sorted(exchange.query.items())}"
        exchange.respond(200, text.encode(), TEXT)

    async def main() -> None:
        async with Served(shown) as server, peer(server) as client:
            found = await client.ask(get("/?a=1&b=%20x&a=2&c", "X-A:  1\t", "x-a: \t2 "))
            assert found.body == b"1, 2|[('a', '1'), ('b', ' x'), ('c', '')]"
            found = await client.ask(get("/?" + "a=1&" * 2000, "X-A: 1"))
            assert found.status == 400

    run(main())


def test_repeated_requests_have_the_headers_that_were_sent(run: Run) -> None:
    async def shown(exchange: Exchange) -> None:
        exchange.respond(200, str(sorted(exchange.headers.items())).encode(), TEXT)

    async def main() -> None:
        async with Served(shown) as server, peer(server) as client:
            for length in ((), ("Content-Length: 0",)):
                sent = get("/", *length)
                first, *later = [(await client.ask(sent)).body for _ in range(3)]
                assert later == [first, first]
                assert (b"content-length" in first) == bool(length)

    run(main())


def test_a_header_that_would_end_its_line_is_refused() -> None:
    for name, value in (("a", "b\r\nc: d"), ("a\n", "b"), ("a:", "b"), ("a", "\0"), ("", "b")):
        with pytest.raises(ValueError, match="not a header"):
            header_lines({name: value})
    assert header_lines({"x-a": "b \u00ff"}) == b"x-a: b \xff\r\n"


def test_expect_100_continue(run: Run) -> None:
    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            asked = post(b"body", "/", "Expect: 100-continue")
            await client.send(asked[:-4])
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await client.ask(asked[-4:])).body == b"body"
            # A body that has come needs no word, and a client of HTTP/1.0 does not know it.
            assert (await client.ask(asked)).body == b"body"
            old = asked.replace(b"HTTP/1.1", b"HTTP/1.0")
            await client.send(old[:-4])
            await asyncio.sleep(0.02)
            await client.send(old[-4:])
            assert (await client.reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"

    run(main())


def test_a_refusal_before_the_body_asks_for_no_body(run: Run) -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.respond(401, b"no")

    async def main() -> None:
        async with Served(refuse) as server, peer(server) as client:
            await client.send(post(b"x" * 9, "/", "Expect: 100-continue")[:-9])
            found = await client.answer()
            assert (found.status, found.headers["connection"]) == (401, "close")
            assert await client.rest() == b""

    run(main())


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw", "x-gzip", "identity", "GZIP"])
def test_compressed_bodies(run: Run, coding: str) -> None:
    body = b"hello " * 1000
    packer = zlib.compressobj(wbits=-15)
    packed = {
        "deflate": zlib.compress(body),
        "raw": packer.compress(body) + packer.flush(),
        "identity": body,
    }.get(coding, gzip.compress(body[:7]) + gzip.compress(body[7:]))

    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            line = f"Content-Encoding: {coding.replace('raw', 'deflate')}"
            assert (await client.ask(post(packed, "/", line))).body == body
            assert (await client.ask(post(b"", "/", line))).body == b""
            if coding != "identity":
                found = await client.ask(post(packed[:-4], "/", line))
                assert found.status == 400
                assert b"cut short" in found.body

    run(main())


# What is compressed how, and the status that refuses it.
UNREADABLE = {
    "brotli": ("br", b"x", 415),
    "gzip twice": ("gzip, gzip", gzip.compress(gzip.compress(b"x")), 415),
    "plain as gzip": ("gzip", b"not gzip", 400),
    "more after gzip": ("gzip", gzip.compress(b"x") + b"junk", 400),
    "more after deflate": ("deflate", zlib.compress(b"x") + b"junk", 400),
    "many members": ("gzip", gzip.compress(b"") * 2000, 400),
    "a bomb": ("gzip", gzip.compress(bytes(3_000_000)), 413),
    "a bomb of deflate": ("deflate", zlib.compress(bytes(3_000_000)), 413),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_bodies_that_cannot_be_decompressed(run: Run, name: str) -> None:
    coding, body, status = UNREADABLE[name]

    async def main() -> None:
        bounds = HttpBounds(most_body_bytes=2_000_000)
        async with Served(echo, bounds=bounds) as server:
            for step in (0, 500):
                async with peer(server) as client:
                    await client.send(post(body, "/", f"Content-Encoding: {coding}"), step=step)
                    found = await client.answer()
                    assert (found.status, found.headers["connection"]) == (status, "close")

    run(main())


# Handlers that answer at once.


def test_answers_at_once_and_later_keep_their_order(run: Run) -> None:
    async def later(exchange: Exchange) -> None:
        await asyncio.sleep(0.001)
        exchange.respond(200, await exchange.body() + exchange.path.encode())

    def either(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if int(exchange.path[1:]) % 3 or not exchange.is_complete:
            return later(exchange)
        exchange.respond(200, exchange.received() + exchange.path.encode())
        return None

    async def main() -> None:
        async with Plain(either) as server, peer(server) as client:
            asked = [post(b"x" * (n % 7), f"/{n}") for n in range(150)]
            sending = asyncio.create_task(client.send(b"".join(asked), step=501))
            for number in range(150):
                assert (await client.answer()).body == b"x" * (number % 7) + b"/%d" % number
            await sending

    run(main())


@pytest.mark.parametrize("way", ["raises", "answers nothing"])
def test_a_plain_handler_that_fails_gives_away_nothing(
    run: Run, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(exchange: Exchange) -> None:
        if way == "raises":
            raise KeyError("sk-secret")

    async def main() -> None:
        async with Plain(fails) as server, peer(server) as client:
            found = await client.ask(get() + get())
            assert (found.status, found.headers["connection"]) == (500, "close")
            assert b"secret" not in found.body
            assert await client.rest() == b""

    with caplog.at_level(logging.ERROR, "asyncio"):
        run(main())


def test_a_client_that_leaves_with_its_request_leaves_no_coroutine_behind(run: Run) -> None:
    # One that is never awaited would be a warning, which fails the test.
    async def later(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with Plain(later) as server:
            for _ in range(50):
                async with peer(server) as client:
                    client.writer.write(get())
                    client.writer.write_eof()
                    assert await client.rest() == b""
            await until(lambda: server.connections == 0)
        gc.collect()

    run(main())


def test_large_answers_at_once_wait_for_a_slow_reader(run: Run) -> None:
    made = 0

    def large(exchange: Exchange) -> None:
        nonlocal made
        made += 1
        exchange.respond(200, b"x" * 1_000_000)

    async def main() -> None:
        async with Plain(large) as server, peer(server) as client:
            await client.send(get() * 100)
            held = -1
            while held != made:
                held = made
                await asyncio.sleep(0.1)
            assert held < 30
            for _ in range(100):
                assert len((await client.answer()).body) == 1_000_000

    run(main())


# Requests that two readers could read differently.


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_smuggled_requests_are_refused(run: Run, name: str) -> None:
    async def main() -> None:
        async with Served(echo) as server:
            for before, step in ((b"", 0), (b"", 1), (get("/before"), 0)):
                server.paths.clear()
                async with peer(server) as client:
                    await client.send(before + REFUSED[name] + NEXT, step=step)
                    if before:
                        assert (await client.answer()).status == 200
                    found = await client.answer()
                    assert 400 <= found.status <= 505
                    assert found.headers["connection"] == "close"
                    assert await client.rest() == b""
                assert not {"/next", "/smuggled"} & set(server.paths)

    run(main())


@pytest.mark.parametrize("name", TAKEN)
def test_odd_requests_that_are_right_are_answered(run: Run, name: str) -> None:
    data, method, path, body = TAKEN[name]

    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            for step in (0, 1):
                await client.send(data + NEXT, step=step)
                found = await client.answer()
                assert (found.status, found.body) == (200, body)
                assert found.headers["x-method"] == method
                assert found.headers["x-path"] == ascii(path)
                assert (await client.answer()).headers["x-path"] == "'/next'"

    run(main())


def test_after_connect_nothing_is_taken_for_a_request(run: Run) -> None:
    async def main() -> None:
        async with Served(echo) as server, peer(server) as client:
            await client.send(b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n" + NEXT)
            assert (await client.answer()).status == 501
            assert await client.rest() == b""
            assert server.paths == []

    run(main())


# Bounds.

SMALL = HttpBounds(most_head_bytes=2_000, most_body_bytes=5_000)
LONG = "x" * 3_000
# Beyond two pieces that are parsed at once.
LONGER = "x" * 60_000


TOO_LARGE = {
    "a target": (get(f"/{LONG}"), 431),
    "a value": (get("/", f"A: {LONG}"), 431),
    "a name": (get("/", f"{LONG}: a"), 431),
    "many headers": (get("/", *(f"A{n}: b" for n in range(500))), 431),
    "empty lines": (b"\r\n" * 1_500 + get(), 431),
    "a length": (post(b"x" * 5_001), 413),
    "two chunks": (chunked(b"x" * 3_000, b"y" * 3_000), 413),
    "many chunks": (chunked(*[b"x"] * 5_001), 413),
    "trailers": (chunked(b"a")[:-5] + f"0\r\nA: {LONGER}\r\n\r\n".encode(), 431),
    "an extension": (chunked(b"a")[:-5] + f"1;{LONGER}\r\na\r\n0\r\n\r\n".encode(), 431),
}


@pytest.mark.parametrize("step", [0, 10])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_heads_and_bodies_are_bounded(run: Run, name: str, step: int) -> None:
    data, status = TOO_LARGE[name]

    async def main() -> None:
        async with Served(echo, bounds=SMALL) as server, peer(server) as client:
            await client.send(data + NEXT, step=step)
            if name == "empty lines" and not step:
                # Empty lines in one piece with their request are skipped.
                assert (await client.answer()).status in (200, 431)
                return
            found = await client.answer()
            assert (found.status, found.headers["connection"]) == (status, "close")
            assert await client.rest() == b""
            assert "/next" not in server.paths

    run(main())


def test_what_is_just_within_the_bounds_is_taken(run: Run) -> None:
    async def main() -> None:
        async with Served(echo, bounds=SMALL) as server, peer(server) as client:
            assert (await client.ask(get("/", "A: " + "x" * 1_900))).status == 200
            assert (await client.ask(post(b"x" * 5_000))).status == 200
            assert (await client.ask(chunked(*[b"x"] * 5_000))).status == 200
            # Many small heads in one piece are no large head.
            await client.send(get() * 100)
            for _ in range(100):
                assert (await client.answer()).status == 200

    run(main())


def test_a_client_that_is_still_sending_reads_why_its_body_is_refused(run: Run) -> None:
    async def main() -> None:
        async with Served(echo, bounds=SMALL) as server, peer(server) as client:
            sending = asyncio.create_task(client.send(post(b"x" * 3_000_000)))
            found = await client.answer()
            assert (found.status, found.headers["connection"]) == (413, "close")
            assert found.body.endswith(b": the body is longer than 5,000 bytes\n")
            await sending

    run(main())


@pytest.mark.parametrize("data", [b"\r\n", b"G", b"GET / HTTP/1.1\r\nHost:", get()[:-1]])
def test_a_head_that_does_not_come_is_not_waited_for(run: Run, data: bytes) -> None:
    async def main() -> None:
        async with Served(echo, bounds=HttpBounds(head_s=0.05)) as server:
            for before in (b"", get("/before")):
                async with peer(server) as client:
                    if before:
                        assert (await client.ask(before)).status == 200
                    await client.send(data)
                    assert (await client.answer()).status == 408
                    assert await client.rest() == b""
            if data != b"\r\n":
                async with peer(server) as client:
                    assert (await client.ask(get("/before") + data)).status == 200
                    assert (await client.answer()).status == 408
            await until(lambda: server.connections == 0)

    run(main())


def test_a_head_byte_by_byte_is_no_longer_waited_for(run: Run) -> None:
    async def main() -> None:
        async with Served(echo, bounds=HttpBounds(head_s=0.1)) as server, peer(server) as client:

            async def drip() -> None:
                for byte in get("/", f"A: {LONG}"):
                    client.writer.write(bytes((byte,)))
                    await asyncio.sleep(0.005)

            dripping = asyncio.create_task(drip())
            assert (await client.answer()).status == 408
            dripping.cancel()

    run(main())


@pytest.mark.parametrize("is_dripping", [False, True])
def test_a_body_that_does_not_come_is_not_waited_for(run: Run, is_dripping: bool) -> None:
    async def main() -> None:
        async with Served(echo, bounds=HttpBounds(body_s=0.1)) as server, peer(server) as client:

            async def drip() -> None:
                while is_dripping:
                    client.writer.write(b"x")
                    await asyncio.sleep(0.005)

            await client.send(post(b"x" * 9_000)[:-8_999])
            dripping = asyncio.create_task(drip())
            found = await client.answer()
            assert (found.status, found.headers["connection"]) == (408, "close")
            dripping.cancel()

    run(main())


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(run: Run) -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.3)
        exchange.respond(200)

    async def main() -> None:
        bounds = HttpBounds(idle_s=0.05, body_s=0.05, head_s=0.05)
        async with (
            Served(slow, bounds=bounds) as server,
            peer(server) as client,
            peer(server) as unused,
        ):
            assert (await client.ask(post(b"x"))).status == 200
            assert await client.rest() == b""
            assert await unused.rest() == b""

    run(main())


def test_connections_beyond_the_bound_are_told_so(run: Run) -> None:
    async def main() -> None:
        async with Served(echo, bounds=HttpBounds(most_connections=2)) as server:
            async with peer(server) as one, peer(server) as two:
                assert (await one.ask(get())).status == 200
                assert (await two.ask(get())).status == 200
                async with peer(server) as three:
                    found = await three.ask(get())
                    assert (found.status, found.headers["connection"]) == (503, "close")
            await until(lambda: server.connections == 0)
            async with peer(server) as four:
                assert (await four.ask(get())).status == 200

    run(main())


async def unread(server: Served, buffer_bytes: int = 16_384) -> socket.socket:
    """A client with small buffers that has asked and reads nothing."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    await loop.sock_sendall(client, get())
    return client


@pytest.mark.parametrize("kind", ["whole", "stream", "closing"])
def test_a_client_that_does_not_read_is_cut_off(run: Run, kind: str) -> None:
    async def large(exchange: Exchange) -> None:
        if kind == "stream":
            await exchange.begin(200)
            while True:
                await exchange.write(b"x" * 65_536)
        exchange.respond(200, b"x" * 30_000_000, is_last=kind == "closing")

    async def main() -> None:
        async with Served(large, bounds=HttpBounds(unread_s=0.1)) as server:
            client = await unread(server)
            await until(lambda: server.paths != [])
            await until(lambda: server.connections == 0)
            client.close()

    run(main())


def test_a_client_that_reads_slowly_gets_everything(run: Run) -> None:
    async def large(exchange: Exchange) -> None:
        exchange.respond(200, b"x" * 20_000_000, is_last=True)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        # Between two looks at it, the kernel takes more than 64 KiB: some hundred at once.
        async with Served(large, bounds=HttpBounds(unread_s=0.8)) as server:
            client = await unread(server, 500_000)
            size = 0
            while data := await loop.sock_recv(client, 200_000):
                size += len(data)
                await asyncio.sleep(0.02)
            assert size > 20_000_000
            client.close()

    run(main())


def test_a_reader_sets_the_pace_of_a_stream(run: Run) -> None:
    written = 0

    async def endless(exchange: Exchange) -> None:
        nonlocal written
        await exchange.begin(200)
        while True:
            await exchange.write(b"x" * 65_536)
            written += 1

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Served(endless) as server:
            client = await unread(server)
            await until(lambda: written > 0)
            held = -1
            while held != written:
                held = written
                await asyncio.sleep(0.1)
            assert held < 200
            while written == held:
                await loop.sock_recv(client, 2**20)
            client.close()
            await until(lambda: server.cancelled == ["/"])

    run(main())


# Clients that leave, and handlers that fail.


@pytest.mark.parametrize("way", ["close", "eof", "reset", "in its body"])
def test_a_client_that_leaves_cancels_its_handler(run: Run, way: str) -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.body()
        await asyncio.Event().wait()

    async def main() -> None:
        async with Served(never) as server:
            async with peer(server) as client:
                asked = post(b"x" * 9, "/a") + (get("/b") if way == "close" else b"")
                await client.send(asked[:-3] if way == "in its body" else asked)
                await until(lambda: server.in_flight == 1)
                if way == "eof":
                    client.writer.write_eof()
                elif way == "reset":
                    client.writer.transport.abort()
                else:
                    client.writer.close()
                await until(lambda: server.cancelled == ["/a"])
            await until(lambda: server.connections == 0)
            assert server.paths == ["/a"]

    run(main())


@pytest.mark.parametrize(
    "way", ["raises", "answers nothing", "raises in a stream", "ends nothing", "only begins"]
)
def test_a_handler_that_fails_gives_away_nothing(
    run: Run, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(exchange: Exchange) -> None:
        if way.endswith(("stream", "ends nothing", "begins")):
            await exchange.begin(200, TEXT, b"" if way == "only begins" else b"half")
        if way.startswith("raises"):
            raise KeyError("sk-secret")

    async def main() -> None:
        async with Served(fails) as server, peer(server) as client:
            await client.send(get() + get())
            if way in ("raises", "answers nothing"):
                found = await client.answer()
                assert (found.status, found.headers["connection"]) == (500, "close")
                assert found.body.startswith(b"500 Internal Server Error: the request ")
                assert b"secret" not in found.body
                assert await client.rest() == b""
            else:
                with pytest.raises(h11.RemoteProtocolError):
                    await client.answer()
            assert server.paths == ["/"]

    with caplog.at_level(logging.ERROR, "asyncio"):
        run(main())
    assert ("a handler of the HTTP server failed" in caplog.text) == way.startswith("raises")


def test_half_a_stream_of_http_1_0_is_reset(run: Run) -> None:
    async def fails(exchange: Exchange) -> None:
        await exchange.begin(200, TEXT, b"half")
        await asyncio.sleep(0.01)

    async def main() -> None:
        async with Served(fails) as server, peer(server) as client:
            with pytest.raises(ConnectionResetError):
                await client.ask(get(version="1.0"))

    run(main())


def test_an_error_of_the_body_that_a_handler_does_not_catch_is_its_answer(run: Run) -> None:
    async def refuses(exchange: Exchange) -> None:
        raise BodyError(422, "not \u00fc")

    async def main() -> None:
        async with Served(refuses) as server, peer(server) as client:
            found = await client.ask(get())
            assert found.status == 422
            assert found.body.endswith("not \u00fc\n".encode())

    run(main())


def test_a_response_begins_once(run: Run) -> None:
    raised: list[str] = []

    async def twice(exchange: Exchange) -> None:
        with pytest.raises(RuntimeError, match="has not begun"):
            await exchange.write(b"x")
        exchange.respond(200)
        for again in (lambda: exchange.begin(200), lambda: exchange.end()):
            with pytest.raises(RuntimeError) as caught:
                await again()
            raised.append(str(caught.value))
        with pytest.raises(RuntimeError, match="already begun"):
            exchange.respond(200)

    async def main() -> None:
        async with Served(twice) as server, peer(server) as client:
            assert (await client.ask(get())).status == 200
            assert len(raised) == 2

    run(main())


# Its end.


def test_what_is_in_flight_may_end_while_it_drains(run: Run) -> None:
    go = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        if exchange.path == "/slow":
            await go.wait()
        exchange.respond(200, exchange.path.encode())

    async def main() -> None:
        server = Served(waits, grace_s=10.0)
        await server.start()
        async with peer(server) as slow, peer(server) as idle, peer(server) as unused:
            assert (await idle.ask(get("/quick"))).status == 200
            await slow.send(get("/slow") + get("/after"))
            await until(lambda: server.in_flight == 1)
            closing = asyncio.create_task(server.aclose())
            await asyncio.sleep(0.01)
            # A connection that is open already may ask once more.
            assert (await idle.ask(get("/quick"))).headers["connection"] == "close"
            assert await idle.rest() == b""
            with pytest.raises(OSError, match=r"."):
                await asyncio.open_connection("127.0.0.1", server.port)
            assert not closing.done()
            go.set()
            found = await slow.answer()
            assert (found.body, found.headers["connection"]) == (b"/slow", "close")
            assert await slow.rest() == b""
            await closing
            assert await unused.rest() == b""
        assert "/after" not in server.paths
        assert server.cancelled == []
        assert server.connections == 0
        await server.aclose()

    run(main())


def test_a_shutdown_that_is_cancelled_at_once_closes_the_address(run: Run) -> None:
    async def main() -> None:
        server = Served(echo)
        await server.start()
        closing = asyncio.create_task(server.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        # The loop closes a listener in its next turn.
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)

    run(main())


def test_what_does_not_end_in_time_is_cancelled(run: Run) -> None:
    async def never(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        server = Served(never, grace_s=0.02)
        await server.start()
        async with peer(server) as client:
            await client.send(get())
            await until(lambda: server.in_flight == 1)
            await server.aclose()
            assert server.cancelled == ["/"]
            assert await client.rest() == b""

    run(main())


def test_what_was_written_is_sent_before_the_end(run: Run) -> None:
    async def large(exchange: Exchange) -> None:
        exchange.respond(200, b"x" * 5_000_000)

    async def main() -> None:
        server = Served(large)
        await server.start()
        async with peer(server) as client:
            await client.send(get())
            reading = asyncio.create_task(client.answer())
            await until(lambda: server.paths == ["/"] and server.in_flight == 0)
            await asyncio.sleep(0.05)
            await server.aclose()
            assert len((await reading).body) == 5_000_000

    run(main())


@pytest.mark.parametrize("turns", range(4))
def test_an_end_that_is_cancelled_as_the_last_connection_closes_is_cancelled(
    run: Run, turns: int
) -> None:
    is_answered = is_past = False

    def large(exchange: Exchange) -> None:
        nonlocal is_answered
        exchange.respond(200, b"x" * 20_000_000, TEXT)
        is_answered = True

    async def main() -> None:
        async def end() -> None:
            nonlocal is_past
            await server.aclose()
            is_past = True
            await asyncio.Event().wait()

        server = Plain(large)
        await server.start()
        async with peer(server) as client:
            await client.send(get())
            await until(lambda: is_answered)
            ending = asyncio.create_task(end())
            reading = asyncio.create_task(client.reader.read())
            # Each turn of the loop counts.
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            was_past = is_past
            ending.cancel()
            await asyncio.wait([ending], timeout=5)
            assert ending.cancelled()
            assert is_past == was_past
            assert len(await reading) > 20_000_000

    run(main())


def test_a_connection_that_is_accepted_as_the_server_ends_is_closed(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Served(echo)
        await server.start()
        ends: list[asyncio.Task[None]] = []
        here, there = socket.socketpair()
        with here, there, socket.create_connection(("127.0.0.1", server.port), 5) as client:
            # The loop accepts the connection and begins the end in one and the same turn.
            loop.add_reader(there, lambda: ends or ends.append(loop.create_task(server.aclose())))
            here.send(b"x")
            await until(lambda: bool(ends))
            loop.remove_reader(there)
            await ends[0]
            client.setblocking(False)
            try:
                assert await asyncio.wait_for(loop.sock_recv(client, 1), 5) == b""
            except ConnectionResetError:
                pass
        assert server.connections == 0

    run(main())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_connection_that_comes_as_the_server_ends_is_closed_without_a_word(
    run: Run, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    async def main() -> None:
        server = Served(echo)
        await server.start()
        ends = asyncio.Event()
        here, there = socket.socketpair()
        with here, there, socket.socket() as client:
            asyncio.get_running_loop().add_reader(there, ends.set)
            # The loop sees both in one turn, in this order.
            if is_first:
                client.connect(("127.0.0.1", server.port))
            here.send(b"x")
            if not is_first:
                client.connect(("127.0.0.1", server.port))
            await ends.wait()
            asyncio.get_running_loop().remove_reader(there)
            await server.aclose()

    # What earlier tests have left is not this server's.
    gc.collect()
    caplog.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(main())
        gc.collect()
    assert [str(one.message) for one in found] == []
    assert caplog.messages == []


def test_tls(run: Run, authority: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "right.pem", authority / "right.key")
    trusting = ssl.create_default_context(cafile=authority / "ca.pem")

    async def either(exchange: Exchange) -> None:
        if exchange.path == "/reset":
            exchange.reset()
        elif exchange.path == "/stream":
            await exchange.begin(200, TEXT, b"a")
            await exchange.end(b"b")
        else:
            await echo(exchange)

    async def main() -> None:
        async with Served(either, ssl=context) as server:
            assert server.base_url.startswith("https://127.0.0.1:")
            async with peer(server, ssl=trusting) as client:
                for body in (b"x", b"y" * 3_000_000):
                    sending = asyncio.create_task(client.send(post(body)))
                    assert (await client.answer()).body == body
                    await sending
                assert (await client.ask(get("/stream"))).body == b"ab"
                await client.send(REFUSED["bare LF"])
                assert (await client.answer()).status == 400
            async with peer(server, ssl=trusting) as client:
                await client.send(get("/reset"))
                with pytest.raises((ConnectionError, h11.RemoteProtocolError)):
                    await client.answer()
            async with peer(server) as plain:
                await plain.send(get())
                assert await plain.rest() == b""

    run(main())


def test_many_connections_at_once(run: Run) -> None:
    async def main() -> None:
        async with Served(echo) as server:

            async def one(number: int) -> None:
                async with peer(server) as client:
                    for turn in range(5):
                        body = b"%d %d" % (number, turn)
                        assert (await client.ask(post(body))).body == body

            await asyncio.gather(*(one(number) for number in range(100)))
            await until(lambda: server.connections == 0)

    run(main())


@pytest.mark.parametrize("most_bytes", [50, 200])
def test_the_bound_of_a_path_holds_for_requests_of_a_known_form(run: Run, most_bytes: int) -> None:
    async def main() -> None:
        bounds = HttpBounds(most_body_bytes=100, bodies_by_path={"/own": most_bytes})
        async with Served(echo, bounds=bounds) as server, peer(server) as client:
            for size in (10, 11, 12, most_bytes):
                # The head of the later ones is known, but for the length.
                answer = await client.ask(post(b"x" * size, "/own"), "POST")
                assert (answer.status, len(answer.body)) == (200, size)
            answer = await client.ask(post(b"x" * (most_bytes + 1), "/own"), "POST")
            assert answer.status == 413

    run(main())
