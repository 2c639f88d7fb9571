"""The front over real sockets: backends behind it, aiohttp and the openai SDK before it."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from redline.calls import (
    Call,
    Client,
    Endpoint,
    FunctionBackend,
    HttpBackend,
    Reply,
    Request,
)
from redline.errors import (
    CallError,
    ConfigError,
    Disconnected,
    NoEndpoint,
    OverLimit,
    RateLimited,
    RedlineError,
    Rejected,
    ServerFailed,
    TimedOut,
    Unpaid,
)
from redline.serve.http import Bounds, Front
from redline.sim import SimSettings
from redline.sim.server import Sim
from redline.testing import ScriptedBackend
from support.fronting import (
    BODY,
    MESSAGES,
    STREAM,
    Told,
    ask,
    port_of,
    read_until_broken,
    root,
    serving,
)
from support.raw_server import RawServer, Seen, answer, chat
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]


def sdk(front: Front) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=front.base_url, api_key="none", max_retries=0)


async def shout(row: Any) -> str:
    return str(row["messages"][-1]["content"]).upper()


# What is asked and answered.


def test_the_openai_sdk_talks_to_a_function(run: Run) -> None:
    async def main() -> None:
        backend = FunctionBackend(shout)
        async with serving(backend, models=["m", "n/o"]) as (front, _), sdk(front) as client:
            done = await client.chat.completions.create(model="m", messages=MESSAGES)
            assert done.choices[0].message.content == "HELLO"
            assert (done.model, done.object, done.usage) == ("m", "chat.completion", None)
            assert [model.id async for model in client.models.list()] == ["m", "n/o"]
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            chunks = [chunk async for chunk in stream]
            assert [chunk.choices[0].delta.content for chunk in chunks] == ["HELLO"]
            assert chunks[0].choices[0].finish_reason == "stop"
            with pytest.raises(openai.NotFoundError, match="did you mean m"):
                await client.chat.completions.create(model="mm", messages=MESSAGES)

    run(main())


def test_every_api_of_a_provider_passes_through_to_the_sdk(run: Run) -> None:
    async def main() -> None:
        async with Sim(SimSettings()) as sim:
            backend = HttpBackend(Endpoint(base_url=sim.base_url))
            async with serving(backend) as (front, _), sdk(front) as client:
                done = await client.chat.completions.create(model="m", messages=MESSAGES, n=2)
                assert [c.message.content for c in done.choices] == ["You said: hello"] * 2
                assert done.usage is not None
                assert done.usage.total_tokens == 10
                text = await client.completions.create(model="m", prompt="hi")
                assert text.choices[0].text == "You said: hi"
                vectors = await client.embeddings.create(model="m", input=["a", "b"])
                assert len(vectors.data) == 2
                response = await client.responses.create(model="m", input="hi")
                assert response.output_text == "You said: hi"
            await backend.aclose()

    run(main())


def test_the_bytes_of_an_answer_arrive_as_they_were_sent(run: Run) -> None:
    raw = msgspec.json.encode(chat("x" * 3_000_000)) + b"\n \n"

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(raw))

    async def main() -> None:
        async with RawServer(handle) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url))
            async with serving(backend) as (front, session):
                body = {**BODY, "priority": 3, "top_k": 2**60, "ä": "ö\u2028"}
                async with session.post(f"{front.base_url}/chat/completions", json=body) as reply:
                    assert await reply.read() == raw
                    assert reply.headers["content-type"] == "application/json"
                    assert reply.content_length == len(raw)
                del body["priority"]
                assert server.seen[0].json() == body
            await backend.aclose()

    run(main())


def test_the_priority_reaches_the_call(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        backend.go.set()
        async with serving(backend) as (front, session):
            for more in ({}, {"priority": -5}, {"priority": None}):
                assert (await ask(front, session, {**BODY, **more}))[0] == 200
        assert [call.priority for call in backend.calls] == [0, -5, 0]
        assert [request.body for request in backend.requests] == [BODY] * 3

    run(main())


def test_many_at_once_each_get_their_own_answer(run: Run) -> None:
    async def main() -> None:
        async def echo(row: Any) -> str:
            await asyncio.sleep(0.01)
            return str(row["messages"][0]["content"])

        async with (
            serving(FunctionBackend(echo)) as (front, _),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):

            async def one(number: int) -> str:
                body = {"model": "m", "messages": [{"role": "user", "content": str(number)}]}
                _, reply, _ = await ask(front, session, body)
                return str(reply["choices"][0]["message"]["content"])

            said = await asyncio.gather(*(one(number) for number in range(200)))
        assert said == [str(number) for number in range(200)]

    run(main())


def test_pages(run: Run) -> None:
    async def main() -> None:
        counts = iter(["a 1\n", "a 2\n"])
        backend = FunctionBackend(shout)
        async with serving(backend, metrics=lambda: next(counts)) as (front, session):
            for expected in ("a 1\n", "a 2\n"):
                async with session.get(f"{root(front)}/metrics") as reply:
                    assert await reply.text() == expected
                    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
            async with session.get(f"{root(front)}/health") as reply:
                assert (reply.status, await reply.json()) == (200, {"status": "ok"})
            async with session.head(f"{root(front)}/health") as reply:
                assert (reply.status, await reply.read()) == (200, b"")
            async with session.get(f"{front.base_url}/models") as reply:
                assert await reply.json() == {"object": "list", "data": []}

    run(main())


# Streams.


@pytest.mark.parametrize("wants_usage", [False, True])
def test_a_stream_passes_through_chunk_by_chunk(run: Run, wants_usage: bool) -> None:
    async def main() -> None:
        more: Any = {"stream_options": {"include_usage": True}} if wants_usage else {}
        async with Sim(SimSettings()) as sim:
            backend = HttpBackend(Endpoint(base_url=sim.base_url))
            async with serving(backend) as (front, session), sdk(front) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=MESSAGES, stream=True, **more
                )
                chunks = [chunk async for chunk in stream]
                texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
                assert "".join(text or "" for text in texts) == "You said: hello"
                assert len([text for text in texts if text]) == 3
                usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
                assert [usage.total_tokens for usage in usages] == [6] * wants_usage
                parts = await client.completions.create(model="m", prompt="hi", stream=True)
                assert "".join([p.choices[0].text async for p in parts]) == "You said: hi"
                body = {**STREAM, **more}
                async with session.post(f"{front.base_url}/chat/completions", json=body) as reply:
                    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
                    raw = await reply.read()
            assert raw.endswith(b"\n\ndata: [DONE]\n\n")
            await backend.aclose()

    run(main())


def test_a_chunk_is_sent_before_the_next_one_is_there(run: Run) -> None:
    async def main() -> None:
        backend = Told("a", "b")
        async with serving(backend) as (front, _), sdk(front) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            seen = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
            assert seen == ["a", "b"]
            assert backend.in_flight == 1
            backend.go.set()
            assert [chunk async for chunk in stream] == []

    run(main())


def test_a_response_streams_with_the_names_of_its_events(run: Run) -> None:
    events = [
        {"type": "response.output_text.delta", "delta": "hi"},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        sent = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
        writer.write(answer(sent, Content_Type="text/event-stream"))

    async def main() -> None:
        async with RawServer(handle) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url))
            async with serving(backend) as (front, session):
                body = {"model": "m", "input": "hi", "stream": True}
                async with session.post(f"{front.base_url}/responses", json=body) as reply:
                    raw = await reply.read()
            await backend.aclose()
        shown = [f"event: {event['type']}\ndata: ".encode() for event in events]
        assert raw == b"".join(
            name + msgspec.json.encode(event) + b"\n\n"
            for name, event in zip(shown, events, strict=True)
        )

    run(main())


def test_a_client_of_http_1_0_gets_its_stream_and_a_closed_connection(run: Run) -> None:
    async def main() -> None:
        backend = Told("a")
        backend.go.set()
        async with serving(backend) as (front, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
            body = msgspec.json.encode(STREAM)
            head = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            raw = await reader.read()
            assert b"transfer-encoding" not in raw.lower()
            assert raw.endswith(b"data: [DONE]\n\n")
            writer.close()
            await writer.wait_closed()

    run(main())


# Failures.

FAILURES: list[tuple[CallError | NoEndpoint, type[openai.APIStatusError], int, str | None]] = [
    (Rejected("top_p is 7"), openai.BadRequestError, 400, None),
    (Rejected("no", status=422), openai.UnprocessableEntityError, 422, None),
    (OverLimit("no"), openai.BadRequestError, 400, None),
    (RateLimited("no", retry_after_s=6.5), openai.RateLimitError, 429, "7"),
    (TimedOut("attempt", 1.0), openai.InternalServerError, 504, None),
    (NoEndpoint("no"), openai.InternalServerError, 503, "1"),
    (ServerFailed("full", status=503, retry_after_s=3), openai.InternalServerError, 503, "3"),
    (Disconnected("no"), openai.InternalServerError, 502, None),
    (Unpaid("no"), openai.InternalServerError, 502, None),
]


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_sdk_raises_what_fits_the_failure(run: Run, is_stream: bool) -> None:
    async def main() -> None:
        backend = ScriptedBackend([error for error, *_ in FAILURES])
        async with serving(backend) as (front, _), sdk(front) as client:
            for error, kind, status, wait in FAILURES:
                with pytest.raises(kind, match=re.escape(error.what)) as caught:
                    await client.chat.completions.create(
                        model="m", messages=MESSAGES, stream=is_stream
                    )
                assert caught.value.status_code == status
                assert caught.value.response.headers.get("retry-after") == wait

    run(main())


def test_redline_behind_redline_knows_the_failure_again(run: Run) -> None:
    errors = [
        RateLimited("no", retry_after_s=7.0),
        ServerFailed("full", status=503, retry_after_s=3.0),
        Disconnected("no"),
        Rejected("no", status=404),
        Unpaid("no"),
    ]

    async def main() -> None:
        async with serving(ScriptedBackend([*errors, Reply(output="hi")])) as (front, _):
            seen = []
            for _ in errors:
                # Each its own, since Retry-After parks the one that hears it.
                backend = HttpBackend(Endpoint(base_url=front.base_url))
                seen.append((await backend.send(Request(body=BODY), Call())).error)
                await backend.aclose()
            kinds = [RateLimited, ServerFailed, ServerFailed, Rejected, Rejected]
            assert [type(error) for error in seen] == kinds
            waits = [getattr(error, "retry_after_s", None) for error in seen]
            assert waits == [7.0, 3.0, None, None, None]
            async with Client(front.base_url) as client:
                assert (await client.call(BODY)).output == "hi"
        told = Told("h", "i")
        told.go.set()
        async with serving(told) as (front, _), Client(front.base_url) as client:
            assert [chunk.text async for chunk in client.stream(BODY)] == ["h", "i"]

    run(main())


def test_a_failure_after_the_first_chunk_is_an_event_and_breaks_the_stream(run: Run) -> None:
    async def main() -> None:
        backend = Told("a", end=ServerFailed("the model broke", status=500))
        backend.go.set()
        async with serving(backend) as (front, session), sdk(front) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            assert (await anext(stream)).choices[0].delta.content == "a"
            with pytest.raises(openai.APIError, match="the model broke"):
                await anext(stream)
            url = f"{front.base_url}/chat/completions"
            async with session.post(url, json=STREAM) as reply:
                raw = await read_until_broken(reply)
            assert b"[DONE]" not in raw
            event = msgspec.json.decode(raw.split(b"\n\n")[1].removeprefix(b"data: "))
            assert event["error"]["code"] == "server_failed"
            async with Client(front.base_url) as other:
                chunks = other.stream(BODY)
                assert (await anext(chunks)).text == "a"
                with pytest.raises(CallError, match="the model broke"):
                    await anext(chunks)

    run(main())


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "says"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed", "takes POST, not GET"),
        ("DELETE", "/v1/models", 405, "method_not_allowed", "takes GET, HEAD, not DELETE"),
        ("POST", "/health", 405, "method_not_allowed", "takes GET"),
        ("POST", "/chat/completions", 404, "unknown_url", "did you mean /v1/chat/completions?"),
        ("POST", "/v1/v1/completions", 404, "unknown_url", "did you mean /v1/completions?"),
        ("GET", "/metrics", 404, "unknown_url", "Unknown URL: GET /metrics"),
        ("GET", "/", 404, "unknown_url", "Unknown URL: GET /"),
        ("POST", "/v1/chat/completions", 400, None, "could not be read as JSON"),
    ],
)
def test_what_is_wrong_is_refused_in_openais_shape(
    run: Run, method: str, path: str, status: int, code: str | None, says: str
) -> None:
    async def main() -> None:
        backend = ScriptedBackend([Reply(output="hi")])
        async with serving(backend) as (front, session):
            async with session.request(method, root(front) + path) as reply:
                assert reply.status == status
                error = (await reply.json())["error"]
                assert (error["type"], error["code"]) == ("invalid_request_error", code)
                assert says in error["message"]
                if status == 405:
                    assert reply.headers["allow"] in ("POST", "GET, HEAD")
            # The connection goes on.
            assert (await ask(front, session))[0] == 200
        assert len(backend.sends) == 1

    run(main())


@pytest.mark.parametrize("way", ["announced", "in chunks", "packed"])
def test_a_body_that_is_too_large_is_refused(run: Run, way: str) -> None:
    async def main() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield b" " * 100

        backend = ScriptedBackend([Reply(output="hi")])
        bounds = Bounds(most_body_bytes=1000)
        async with serving(backend, bounds=bounds) as (front, session):
            url = f"{front.base_url}/chat/completions"
            large = msgspec.json.encode({**BODY, "x": "y" * 2000})
            data: Any = pieces() if way == "in chunks" else large
            headers = {}
            if way == "packed":
                data, headers = gzip.compress(large), {"content-encoding": "gzip"}
                assert len(data) < 1000
            async with session.post(url, data=data, headers=headers) as reply:
                assert reply.status == 413
                assert "1,000 bytes" in (await reply.json())["error"]["message"]
                assert reply.headers["connection"] == "close"
            assert (await ask(front, session))[0] == 200
        assert len(backend.sends) == 1

    run(main())


def test_a_body_that_does_not_come_is_not_waited_for(run: Run) -> None:
    async def main() -> None:
        backend = ScriptedBackend([Reply(output="hi")])
        async with serving(backend, bounds=Bounds(body_s=0.05)) as (front, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            await until(lambda: front.in_flight == 0)
            writer.close()
            await writer.wait_closed()
        assert backend.sends == []

    run(main())


def test_a_client_that_expects_100_continue_is_told_to_go_on(run: Run) -> None:
    async def main() -> None:
        async with serving(ScriptedBackend([Reply(output="hi")])) as (front, session):
            url = f"{front.base_url}/chat/completions"
            async with session.post(url, json=BODY, expect100=True) as reply:
                assert reply.status == 200

    run(main())


def test_an_address_that_is_taken(run: Run) -> None:
    async def main() -> None:
        front = Front(Told())
        with pytest.raises(RedlineError, match="has not been started"):
            _ = front.base_url
        async with front:
            with pytest.raises(ConfigError, match="cannot listen"):
                await Front(Told(), port=port_of(front)).start()
            with pytest.raises(RedlineError, match="already been started"):
                await front.start()
        await front.aclose()
        await Front(Told()).aclose()

    run(main())
