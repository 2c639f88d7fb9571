"""The front that passes bytes on, before real servers and backends that are told what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest

from redline.calls import Call, Endpoint, HttpBackend, Outcome, Request, Sink, failed
from redline.errors import NoEndpoint, Refused
from redline.serve.http import Bounds, Refusal, Relay, busy
from redline.sim import SimSettings
from redline.sim.server import Sim
from support.fronting import BODY, STREAM, Told, ask, read_until_broken, root
from support.raw_server import Handler, RawServer, Seen, answer
from support.until import until

Run = Callable[[Coroutine[Any, Any, None]], None]

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
ODD = b'{"error": {"message":"caf\\u00e9",  "code":null}}\n '


class Down(Told):
    """Answers all calls with the error."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self._error = error

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        return failed(self._error)


def test_a_refusal_of_the_endpoint_arrives_as_it_was_sent_and_so_does_the_request(run: Run) -> None:
    seen: list[bytes] = []

    async def handle(got: Seen, writer: asyncio.StreamWriter) -> None:
        seen.append(got.body)
        writer.write(answer(ODD, 422))

    async def main() -> None:
        async with RawServer(handle) as server, aiohttp.ClientSession() as session:
            backend = HttpBackend(Endpoint(base_url=server.base_url))
            raw = b'{"model" :"m", "x": 1.50, "messages":[ ]}'
            async with (
                Relay(backend) as relay,
                session.post(f"{relay.base_url}/chat/completions", data=raw) as reply,
            ):
                assert (reply.status, await reply.read()) == (422, ODD)
                assert reply.headers["content-type"] == "application/json"
            await backend.aclose()
        assert seen == [raw]

    run(main())


def test_half_a_surrogate_pair_is_the_endpoints_to_judge(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        backend.go.set()
        raw = rb'{"model" :"m", "messages":[{"role":"user","content":"cut \ud83d"}]}'
        async with (
            Relay(backend) as relay,
            aiohttp.ClientSession() as session,
            session.post(f"{relay.base_url}/chat/completions", data=raw) as reply,
        ):
            assert reply.status == 200
        assert [request.raw for request in backend.requests] == [raw]

    run(main())


def test_a_body_that_only_a_lenient_endpoint_can_read_is_not_sent(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        raw = b'{"stream": true, "messages": [], "service_tier": "\xc4"}'
        async with (
            Relay(backend) as relay,
            aiohttp.ClientSession() as session,
            session.post(f"{relay.base_url}/chat/completions", data=raw) as reply,
        ):
            assert (reply.status, "could not be read as JSON" in await reply.text()) == (400, True)
        assert not backend.calls

    run(main())


def test_nothing_can_be_served_is_told_to_new_calls_and_to_those_that_wait(run: Run) -> None:
    trouble: list[Refusal] = []

    async def main() -> None:
        backend = Told()
        relay = Relay(backend, trouble=lambda: trouble[0] if trouble else None)
        async with relay, aiohttp.ClientSession() as session:
            waiting = []
            # One after the other: which of them the backend has first is not left to chance.
            for body in (BODY, STREAM):
                waiting.append(asyncio.create_task(ask(relay, session, body)))
                await until(lambda: backend.in_flight == len(waiting))
            relay.refuse_waiting()
            await asyncio.sleep(0.05)
            assert backend.in_flight == 2
            trouble.append(busy("no replica", "no_replica", wait_s=7.2))
            # One has been written: its answer may still come.
            backend.calls[0].sent_s = 1.0
            relay.refuse_waiting()
            status, body, headers = await waiting[1]
            assert (status, body["error"]["code"], headers["retry-after"]) == (
                503,
                "no_replica",
                "8",
            )
            assert (await ask(relay, session, BODY))[0] == 503
            async with session.get(f"{root(relay)}/healthz") as reply:
                assert reply.status == 503
            trouble.clear()
            async with session.get(f"{root(relay)}/healthz") as reply:
                assert (reply.status, await reply.json()) == (200, {"status": "ok"})
            backend.go.set()
            assert (await waiting[0])[0] == 200

    run(main())


@pytest.mark.parametrize(
    ("error", "status"), [(NoEndpoint("all are down"), 503), (Refused("bad key", status=401), 502)]
)
def test_what_is_not_the_clients_matter_is_no_error_of_its_request(
    run: Run, error: Any, status: int
) -> None:
    async def main() -> None:
        async with Relay(Down(error)) as relay, aiohttp.ClientSession() as session:
            assert (await ask(relay, session, BODY))[0] == status

    run(main())


async def relayed(handle: Handler) -> bytes:
    """What comes through a relay of the stream that `handle` writes, until it ends or breaks."""
    async with RawServer(handle) as server, aiohttp.ClientSession() as session:
        backend = HttpBackend(Endpoint(base_url=server.base_url))
        async with (
            Relay(backend) as relay,
            session.post(f"{relay.base_url}/chat/completions", json=STREAM) as reply,
        ):
            raw = await read_until_broken(reply)
        await backend.aclose()
    return raw


def test_a_stream_that_breaks_off_does_not_pass_for_a_whole_one(run: Run) -> None:
    event = {"id": "c", "choices": [{"index": 0, "delta": {"content": "hi"}}]}

    async def handle(got: Seen, writer: asyncio.StreamWriter) -> None:
        data = b"data: %b\n\n" % json.dumps(event).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\n"
        writer.write(head + data)
        await writer.drain()
        writer.close()

    async def main() -> None:
        raw = await relayed(handle)
        assert raw.startswith(b"data: " + json.dumps(event).encode())
        assert b'"error"' in raw
        assert b"[DONE]" not in raw

    run(main())


def chunk(text: str, finish: str | None = None) -> bytes:
    """An event of a streamed chat, in a chunk of its own."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    event = b"data: %b\n\n" % json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def test_a_stream_is_neither_held_back_nor_stored_on_its_way(run: Run) -> None:
    async def handle(got: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk("hi", "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def main() -> None:
        async with RawServer(handle) as server, aiohttp.ClientSession() as session:
            backend = HttpBackend(Endpoint(base_url=server.base_url))
            async with (
                Relay(backend) as relay,
                session.post(f"{relay.base_url}/chat/completions", json=STREAM) as reply,
            ):
                assert b"[DONE]" in await reply.read()
                assert reply.headers["content-type"] == "text/event-stream"
                # nginx collects a response before it passes it on, unless it has this header.
                assert reply.headers["x-accel-buffering"] == "no"
                assert reply.headers["cache-control"] == "no-cache"
            await backend.aclose()

    run(main())


@pytest.mark.slow
def test_a_client_that_does_not_read_holds_the_endpoint_up_and_loses_nothing(run: Run) -> None:
    texts = [f"{number} {'x' * 2000}" for number in range(10_000)]
    written = 0

    async def handle(got: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(STREAM_HEAD)
        for text in texts:
            writer.write(chunk(text))
            written += 1
            await writer.drain()
            # Each chunk comes in a read of its own.
            await asyncio.sleep(0)
        writer.write(chunk("", "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def main() -> None:
        async with RawServer(handle) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url))
            async with Relay(backend) as relay:
                port = int(relay.base_url.rpartition(":")[2].partition("/")[0])
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
                body = json.dumps(STREAM).encode()
                head = (
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
                )
                writer.write(head % len(body) + body)
                await reader.readuntil(b"\r\n\r\n")
                before = -1
                while written != before:
                    before = written
                    await asyncio.sleep(0.3)
                # What is between them: sockets, and at most some hundred KB in each connection.
                assert 0 < written < len(texts) * 0.9
                got = bytearray()
                while not got.endswith(b"\r\n0\r\n\r\n"):
                    more = await reader.read(1 << 20)
                    assert more, got[-300:]
                    got += more
                writer.close()
            await backend.aclose()
        found = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: {")]
        contents = [event["choices"][0]["delta"]["content"] for event in found]
        assert contents == [*texts, ""]

    run(main())


@pytest.mark.parametrize(("together", "status"), [(1, 500), (3, 400), (3, 401)])
def test_an_error_behind_events_of_text_ends_the_stream_in_its_place(
    run: Run, together: int, status: int
) -> None:
    error = b'data: {"error": {"message": "out of memory", "code": %d}}\n\n' % status
    chunks = [chunk(str(number)) for number in range(30)]

    async def handle(got: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for at in range(0, len(chunks), together):
            writer.write(b"".join(chunks[at : at + together]))
            await asyncio.sleep(0.001)
        writer.write(b"%x\r\n%b\r\n" % (len(error), error))
        writer.write(chunk("too late") + b"0\r\n\r\n")
        await writer.drain()

    async def main() -> None:
        raw = await relayed(handle)
        events = [json.loads(line[6:]) for line in raw.splitlines() if line]
        contents = [event["choices"][0]["delta"]["content"] for event in events[:-1]]
        assert contents == [str(number) for number in range(30)]
        # No hint for those who run the gateway follows.
        assert events[-1]["error"]["message"].endswith("out of memory (sent with HTTP 200)")

    run(main())


def test_who_leaves_ends_the_call_at_the_endpoint_too(run: Run) -> None:
    async def main() -> None:
        async with Sim(SimSettings(per_token_s=60.0)) as sim, aiohttp.ClientSession() as session:
            backend = HttpBackend(Endpoint(base_url=sim.base_url))
            async with Relay(backend) as relay:
                for number, body in enumerate((BODY, STREAM), 1):
                    asking = asyncio.create_task(ask(relay, session, body))
                    await until(lambda: relay.in_flight == backend.load(0.0).in_flight == 1)
                    await asyncio.sleep(0.05)
                    asking.cancel()
                    await asyncio.wait([asking])
                    await until(lambda: relay.in_flight == backend.load(0.0).in_flight == 0)
                    await until(lambda n=number: sim.stats()["abandoned"] == n)
            await backend.aclose()

    run(main())


def test_calls_in_flight_end_when_it_closes_and_then_get_503(run: Run) -> None:
    async def main() -> None:
        for grace_s, wanted in ((5.0, 200), (0.05, 503)):
            backend = Told()
            relay = Relay(backend, bounds=Bounds(grace_s=grace_s))
            await relay.start()
            async with aiohttp.ClientSession() as session:
                asking = asyncio.create_task(ask(relay, session, BODY))
                await until(lambda b=backend: b.in_flight == 1)
                closing = asyncio.create_task(relay.aclose())
                await asyncio.sleep(0.02)
                if wanted == 200:
                    backend.go.set()
                assert (await asking)[0] == wanted
                await closing

    run(main())
