"""What a connection may do: an exchange gets its own answer or one error."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.calls import Timeouts
from redline.errors import BadReply, Disconnected, Rejected, TimedOut
from support.asking import Asker, wire
from support.raw_server import RawServer, Seen, answer, reset
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]

THROUGH_ASYNCIO = pytest.mark.parametrize("run", ["asyncio"], indirect=True)

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answers with the request's own target."""
    writer.write(answer(seen.target.encode()))


# What comes unasked.


JUNK = (
    answer(b"/stolen"),
    b"HTTP/1.1 200 OK\r\nContent-Len",
    b"junk",
    b"\0",
    b"HTTP/1.1 101 Switching\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n",
)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("place", ["behind the answer", "while idle"])
def test_junk_reaches_no_exchange(run: Run, junk: bytes, place: str) -> None:
    async def main() -> None:
        has_begun, is_asked_again = False, asyncio.Event()

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            nonlocal has_begun
            if has_begun:
                await echo(seen, writer)
                return
            has_begun = True
            if place == "behind the answer":
                writer.write(answer(seen.target.encode()) + junk)
            else:
                await echo(seen, writer)
                await asyncio.sleep(0.01)
                writer.write(junk)
                is_asked_again.set()

        async with RawServer(handle) as server, Asker(server.base_url) as asker:
            assert (await asker.ask(wire("/first"))).body == b"/first"
            if place == "while idle":
                await is_asked_again.wait()
                await asyncio.sleep(0.01)
            assert (await asker.ask(wire("/second"))).body == b"/second"
            assert server.connections == 2

    run(main())


def test_a_connection_with_nothing_left_to_say_is_kept(run: Run) -> None:
    async def main() -> None:
        async with RawServer(echo) as server, Asker(server.base_url) as asker:
            for number in range(20):
                assert (await asker.ask(wire(f"/{number}"))).body == b"/%d" % number
            assert server.connections == 1

    run(main())


def test_the_answer_behind_an_unreadable_one_reaches_no_other_call(run: Run) -> None:
    ended = list[bool]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            for number in itertools.count():
                head = await reader.readuntil(b"\r\n\r\n")
                if number == 1:
                    # A response that belongs to no request; the one that does comes after it.
                    writer.write(answer(b"{"))
                    await asyncio.sleep(0.05)
                writer.write(answer(head.split()[1].decode()))
        writer.close()
        ended.append(True)

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, redline.Client(url, retry=redline.RetryPolicy(max_retries=0)) as client:
            outcomes = [
                await client.call(redline.Request(method="GET", url=f"/{number}", body=None))
                for number in range(3)
            ]
            assert [outcome.output for outcome in outcomes] == ["/0", None, "/2"]
            assert isinstance(outcomes[1].error, BadReply)
            await client.aclose()
            await until(lambda: len(ended) == 2)

    run(main())


@pytest.mark.parametrize(("status", "closed"), [(200, 1), (400, 0)])
def test_a_bad_reply_closes_no_other_connection(run: Run, status: int, closed: int) -> None:
    invalid = b'{"error": {"message": "No JSON.", "code": "json_validate_failed"}}'
    together = asyncio.Barrier(4)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target.endswith("/bad"):
            writer.write(answer(b"{" if status == 200 else invalid, status))
        else:
            await together.wait()
            writer.write(answer(b"1"))

    async def main() -> None:
        async with RawServer(handle) as server:
            once = redline.RetryPolicy(max_retries=0)
            async with redline.Client(server.base_url, retry=once) as client:

                async def get(url: str) -> redline.Outcome:
                    return await client.call(redline.Request(method="GET", url=url, body=None))

                await asyncio.gather(*(get("/good") for _ in range(4)))
                assert isinstance((await get("/bad")).error, BadReply)
                await asyncio.gather(*(get("/good") for _ in range(4)))
            assert server.connections == 4 + closed

    run(main())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_server_that_ends_kept_connections_costs_no_attempt(run: Run, ending: str) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await echo(seen, writer)
        await writer.drain()
        await asyncio.sleep(0.005)
        writer.close() if ending == "close" else reset(writer)

    async def main() -> None:
        async with RawServer(handle) as server, Asker(server.base_url) as asker:
            for number in range(10):
                assert (await asker.ask(wire(f"/{number}"))).body == b"/%d" % number
                await server.closed()
                await asyncio.sleep(0.005)
            assert server.connections == 10

    run(main())


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_server_that_ends_every_connection_at_once_is_an_error(run: Run, ending: str) -> None:
    async def main() -> None:
        async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close() if ending == "close" else reset(writer)

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with Asker(url) as asker:
            for number in range(20):
                with pytest.raises(Disconnected):
                    await asker.ask()
                if number == 0:
                    await asyncio.sleep(0.01)
                    files = len(os.listdir("/dev/fd"))
            await asyncio.sleep(0.01)
            assert len(os.listdir("/dev/fd")) <= files + 1
        server.close()
        await server.wait_closed()

    run(main())


@THROUGH_ASYNCIO
def test_junk_that_one_read_does_not_reach_is_not_taken_for_an_answer(run: Run) -> None:
    async def main() -> None:
        fills = 262_144  # one read of asyncio's
        body = b"x" * (fills - len(answer(b"x" * fills)) + fills)

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if seen.target == "/second":
                await echo(seen, writer)
            else:
                writer.write(answer(body) + answer(b"/stolen"))

        async with RawServer(handle) as server, Asker(server.base_url) as asker:
            for _ in range(5):
                assert (await asker.ask(wire("/first"))).body == body
                assert (await asker.ask(wire("/second"))).body == b"/second"

    run(main())


# Requests that no connection can carry.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nY: b"),
        ("X", "a\nY: b"),
        ("X", "a\0"),
        ("X", "\ud800"),
        ("X\r\nY", "a"),
        ("X Y", "a"),
        ("X:", "a"),
        ("", "a"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_before_anything_is(
    run: Run, name: str, value: str
) -> None:
    async def main() -> None:
        async with RawServer(echo) as server, Asker(server.base_url) as asker:
            with pytest.raises(Rejected, match="the request cannot be sent"):
                await asker.ask(wire(headers={name: value}))
            assert server.seen == []
            assert (await asker.ask(wire("/second"))).body == b"/second"

    run(main())


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_server_that_takes_a_long_body_slowly_gets_all_of_it(
    run: Run, authority: Path, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    body = random.Random(3).randbytes(6_000_000)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "right.pem", authority / "right.key")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            found = bytearray()
            while len(found) < len(body):
                await asyncio.sleep(0.002)
                found += await reader.readexactly(min(200_000, len(body) - len(found)))
            writer.write(answer(b"same" if found == body else b"other"))
        await writer.drain()
        await reader.read()
        writer.close()
        done.set()

    async def main() -> None:
        nonlocal done
        done = asyncio.Event()
        tls = context if is_tls else None
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Asker(f"{'https' if is_tls else 'http'}://{place}/v1") as asker:
            for _ in range(2):
                assert (await asker.ask(wire(body=body))).body == b"same"
        await done.wait()
        server.close()

    done = asyncio.Event()
    run(main())


# Answers that come early.


@pytest.mark.parametrize("ending", ["hold", "close", "shutdown"])
def test_an_answer_before_the_body_was_read_is_heard_or_one_error(run: Run, ending: str) -> None:
    has_begun = False

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal has_begun
        if has_begun:
            await echo(seen, writer)
            return
        has_begun = True
        # An unread body is several times what the sockets hold; the server's reader is paused.
        writer.write(answer(b"too large", status=413))
        await writer.drain()
        if ending == "shutdown":
            writer.write_eof()
        if ending == "close":
            writer.close()
        else:
            await asyncio.sleep(0.1)

    async def main() -> None:
        async with (
            RawServer(handle, reads_bodies=False) as server,
            Asker(server.base_url) as asker,
        ):
            try:
                found = await asker.ask(wire(body=b"x" * 16_000_000))
            except Disconnected:
                # An RST may overtake the answer where the server closes with bytes unread.
                assert ending == "close"
            else:
                assert (found.status, found.body) == (413, b"too large")
            assert (await asker.ask(wire("/second", b""))).body == b"/second"
            assert server.connections == 2

    run(main())


# Cancelled exchanges.


def test_no_answer_reaches_another_exchange_however_many_are_cancelled(run: Run) -> None:
    rng = random.Random(5)
    ended = {"answered": 0, "cancelled": 0}

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        data = answer(seen.target.encode() * 20)
        # What is to be cancelled has its answer come late, from anywhere in it.
        held = rng.randrange(len(data)) if seen.target.startswith("/held") else 0
        writer.write(data[:held])
        await asyncio.sleep(0.05 if held else rng.choice((0, 0, 0.001)))
        if not writer.is_closing():
            writer.write(data[held:])

    async def one(asker: Asker, number: str) -> None:
        is_held = rng.random() < 0.6
        target = f"/held/{number}" if is_held else f"/{number}"
        task = asyncio.create_task(asker.ask(wire(target)))
        if is_held:
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            await asyncio.sleep(rng.choice((0, 0.0005, 0.001)))
            task.cancel()
        try:
            assert (await task).body == target.encode() * 20
            ended["answered"] += 1
        except asyncio.CancelledError:
            ended["cancelled"] += 1

    async def main() -> None:
        async with RawServer(handle) as server, Asker(server.base_url) as asker:

            async def work(worker: int) -> None:
                for number in range(40):
                    await one(asker, f"{worker}/{number}")

            await asyncio.gather(*(work(worker) for worker in range(8)))
            assert min(ended.values()) > 50

    run(main())


@pytest.mark.parametrize("place", ["gate", "answer", "head", "body", "stream"])
def test_a_cancelled_exchange_leaves_the_next_its_own_answer(
    run: Run, request: pytest.FixtureRequest, place: str
) -> None:
    late: list[asyncio.StreamWriter] = []
    first = {"answer": b"", "gate": b"", "stream": STREAM + b"2\r\nab\r\n"}
    first |= {"head": answer(b"/late")[:20], "body": answer(b"/late")[:-2]}

    async def main() -> None:
        gate = asyncio.Event()

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if seen.target != "/first":
                await echo(seen, writer)
                return
            writer.write(first[place])
            late.append(writer)

        took = asyncio.Event()

        async def take(chunk: bytes) -> None:
            took.set()
            await asyncio.Event().wait()

        async with RawServer(handle) as server, Asker(server.base_url, gate=gate) as asker:
            if place != "gate":
                gate.set()
            asking = asker.stream(take, wire("/first")) if place == "stream" else None
            task = asyncio.create_task(asking or asker.ask(wire("/first")))
            await until(lambda: server.connections == 1 if place == "gate" else len(late) == 1)
            if place == "stream":
                await took.wait()
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            gate.set()
            for writer in late:
                # The rest of the answer, and a whole one, for whoever would take it.
                writer.write(answer(b"/late")[-2:] + answer(b"/late"))
            assert (await asker.ask(wire("/second"))).body == b"/second"
            if place == "gate":
                # A connection on which nothing was written is as good as new.
                assert server.connections == 1

    run(main())


# Streams.


def test_a_slow_reader_holds_up_the_server(run: Run) -> None:
    block, blocks = b"x" * 65_536, 1_000
    written, taken, may_take = 0, 0, asyncio.Event()

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(STREAM)
        for _ in range(blocks):
            writer.write(b"%x\r\n%b\r\n" % (len(block), block))
            await writer.drain()
            written += 1
        writer.write(b"0\r\n\r\n")

    async def take(chunk: bytes) -> None:
        nonlocal taken
        await may_take.wait()
        taken += len(chunk)

    async def main() -> None:
        most = 100_000_000
        async with RawServer(handle) as server, Asker(server.base_url, max_reply_bytes=most) as a:
            task = asyncio.create_task(a.stream(take))
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.1)
            assert 0 < written < blocks / 2
            may_take.set()
            await task
            assert taken == blocks * len(block)

    run(main())


def test_a_stream_is_bounded_and_its_clock_runs_while_it_is_read(run: Run) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        # Ends with its connection, which redline ends itself.
        writer.write(STREAM.replace(b"Transfer-Encoding: chunked", b"Connection: close"))
        while True:
            writer.write(b"x" * 50_000)
            await writer.drain()

    async def take(chunk: bytes) -> None:
        await asyncio.sleep(0.002)

    async def main() -> None:
        async with RawServer(handle) as server:
            async with Asker(server.base_url, max_reply_bytes=2_000_000) as asker:
                with pytest.raises(BadReply, match="longer than 2,000,000 bytes"):
                    await asker.stream(take)
            clocks = Timeouts(attempt_s=0.2, first_byte_s=8)
            async with Asker(server.base_url, timeouts=clocks, max_reply_bytes=1 << 40) as asker:
                with pytest.raises(TimedOut):
                    await asker.stream(take)

    run(main())


def test_a_whole_answer_to_the_wish_for_a_stream_may_be_long(run: Run) -> None:
    async def main() -> None:
        body = b"x" * 3_000_000

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            writer.write(answer(body))

        async def take(chunk: bytes) -> None:
            raise AssertionError("it is no event stream")

        async with RawServer(handle) as server, Asker(server.base_url) as asker:
            assert (await asker.stream(take)).body == body
            assert (await asker.stream(take)).body == body

    run(main())
