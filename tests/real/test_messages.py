"""Anthropic's SDK before the front and the relay, with servers behind them that speak chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic.types import Message

from redline.apis import DONE_EVENT, event_bytes
from redline.calls import (
    Backend,
    Call,
    Chunk,
    Endpoint,
    FunctionBackend,
    HttpBackend,
    Outcome,
    Request,
    Sink,
    failed,
)
from redline.errors import NoEndpoint, RateLimited, Refused
from redline.serve.http import Bounds, Door, Front, Relay
from redline.sim import SimSettings
from redline.sim.server import Sim
from support.fronting import Told, piece, root
from support.raw_server import RawServer, Seen, answer, chat
from support.serve_process import Serve, keys_of
from support.sim_process import fleet_of
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]
HELLO: Any = [{"role": "user", "content": "hello there"}]
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": HELLO}
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
TOOLS: Any = [
    {"name": "weather", "description": "of a city", "input_schema": CITY},
    {"name": "now", "input_schema": {"type": "object"}},
]
DOORS: list[Callable[[Backend], Door]] = [Front, Relay]


def client_of(door: Door) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=root(door), api_key="none", max_retries=0, timeout=40)


@asynccontextmanager
async def asking(
    open_door: Callable[[Backend], Door], url: str
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """A client of a door in front of the server with this base URL."""
    backend = HttpBackend(Endpoint(base_url=url))
    async with open_door(backend) as door, client_of(door) as client:
        yield client
    await backend.aclose()
    assert door.in_flight == 0


async def streamed(client: anthropic.AsyncAnthropic, **asked: Any) -> tuple[list[str], Message]:
    """The kinds of the events, and the message that the SDK makes of them."""
    async with client.messages.stream(**{**ASKED, **asked}) as stream:
        kinds = [event.type async for event in stream]
        return kinds, await stream.get_final_message()


def said_in(message: Message) -> list[str]:
    """The texts, of an answer that has nothing else."""
    texts = [block.text for block in message.content if block.type == "text"]
    assert len(texts) == len(message.content)
    return texts


# In front of the simulated provider.


@pytest.mark.parametrize("open_door", DOORS)
def test_a_call_a_stream_and_a_count(run: Run, open_door: Any) -> None:
    async def main() -> None:
        async with Sim(SimSettings()) as sim, asking(open_door, sim.base_url) as client:
            message = await client.messages.create(**ASKED, system="be brief")
            assert said_in(message) == ["You said: hello there"]
            assert (message.stop_reason, message.model, message.role) == (
                "end_turn",
                "m",
                "assistant",
            )
            assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 6)
            kinds, whole = await streamed(client, system="be brief")
            assert kinds.count("text") > 1
            assert said_in(whole) == said_in(message)
            assert (whole.stop_reason, whole.usage) == ("end_turn", message.usage)
            cut = await client.messages.create(**{**ASKED, "max_tokens": 2})
            assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
            few = await client.messages.count_tokens(model="m", messages=HELLO)
            many = await client.messages.count_tokens(model="m", messages=HELLO, tools=TOOLS)
            assert 1 < few.input_tokens < 20 < many.input_tokens
            assert sim.stats()["received"] == 3

    run(main())


@pytest.mark.parametrize("open_door", DOORS)
def test_tools_are_called_and_their_results_go_back(run: Run, open_door: Any) -> None:
    async def main() -> None:
        async with Sim(SimSettings()) as sim, asking(open_door, sim.base_url) as client:
            forced: Any = {"tools": TOOLS, "tool_choice": {"type": "any"}}
            message = await client.messages.create(**ASKED, **forced)
            calls = [block for block in message.content if block.type == "tool_use"]
            assert [(call.name, call.input) for call in calls] == [
                ("weather", {"city": "Oslo"}),
                ("now", {}),
            ]
            assert message.stop_reason == "tool_use"
            _, whole = await streamed(client, **forced)
            assert whole.stop_reason == "tool_use"
            assert [(one.name, one.input) for one in whole.content if one.type == "tool_use"] == [
                (call.name, call.input) for call in calls
            ]
            alone = {"type": "any", "disable_parallel_tool_use": True}
            message = await client.messages.create(**ASKED, tools=TOOLS, tool_choice=alone)
            assert len(message.content) == 1
            results: Any = [
                {"type": "tool_result", "tool_use_id": call.id, "content": "rain"} for call in calls
            ]
            turns: Any = [
                *HELLO,
                {"role": "assistant", "content": whole.content},
                {"role": "user", "content": results},
            ]
            message = await client.messages.create(**{**ASKED, "messages": turns}, tools=TOOLS)
            assert message.content[0].type == "text"
            assert message.stop_reason == "end_turn"

    run(main())


# In front of servers that say what they are told to.


def test_what_reaches_the_server_is_a_chat(run: Run) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(chat("ok")))

    async def main() -> None:
        turns: Any = [
            *HELLO,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "now", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": "noon", "is_error": True}
                ],
            },
        ]
        async with RawServer(handle) as server, asking(Relay, server.base_url) as client:
            await client.messages.create(**{**ASKED, "messages": turns}, stop_sequences=["END"])
            (seen,) = server.seen
        assert seen.target == "/v1/chat/completions"
        # A client's key is never sent upstream.
        assert not {"x-api-key", "anthropic-version"} & {*seen.headers}
        assert seen.json() == {
            "model": "m",
            "max_tokens": 99,
            "stop": ["END"],
            "messages": [
                {"role": "user", "content": "hello there"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "now", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "Error: noon"},
            ],
        }

    run(main())


def test_a_tool_runner_sends_the_whole_conversation_in_every_turn(run: Run) -> None:
    """By default, it would continue a thread that the server holds."""
    called = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    answers = [{"choices": [{"index": 0, "message": message}]}, chat("It is noon.")]

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(answers[len(server.seen) - 1]))

    @anthropic.beta_async_tool
    async def now() -> str:
        """Returns the time."""
        return "noon"

    server = RawServer(handle)

    async def main() -> None:
        async with server, asking(Relay, server.base_url) as client:
            runner = client.beta.messages.tool_runner(**ASKED, tools=[now], system="be brief")
            assert (await runner.until_done()).stop_reason == "end_turn"
        first, second = [json.loads(seen.body) for seen in server.seen]
        assert second.keys() == first.keys()
        assert second["tools"] == first["tools"]
        assert [message["role"] for message in second["messages"]] == [
            *("system", "user", "assistant", "tool")
        ]

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_error_of_the_server(
    run: Run, status: int, kind: str, error: Any, is_stream: bool
) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = {"error": {"message": "what the server says", "type": "x", "code": None}}
        writer.write(answer(body, status))

    async def main() -> None:
        async with RawServer(handle) as server, asking(Relay, server.base_url) as client:
            with pytest.raises(error) as caught:
                await client.messages.create(**ASKED, stream=is_stream)
        found = caught.value
        assert (found.status_code, found.type) == (status, kind)
        assert found.body["error"]["message"] == "what the server says"
        assert found.request_id == found.body["request_id"]
        assert found.request_id.startswith("req_")

    run(main())


class Down(Told):
    """Answers all calls with the error, after a piece of the answer if it is streamed."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self._error = error

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        if sink is not None:
            await sink.put(Chunk("hi", piece("hi")))
        return failed(self._error)


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Refused("no such key", status=401), 502, "api_error"),
        (NoEndpoint("all are down"), 503, "overloaded_error"),
        (RateLimited("slow down", retry_after_s=6.1), 429, "rate_limit_error"),
    ],
)
@pytest.mark.parametrize("open_door", DOORS)
def test_an_error_of_ours(run: Run, open_door: Any, failure: Any, status: int, kind: str) -> None:
    async def main() -> None:
        async with open_door(Down(failure)) as door, client_of(door) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(**ASKED)
            found = caught.value
            assert (found.status_code, found.type) == (status, kind)
            if status == 429:
                assert found.response.headers["retry-after"] == "7"
            with pytest.raises(anthropic.APIStatusError) as caught:
                await streamed(client)
            assert (caught.value.status_code, caught.value.type) == (200, kind)

    run(main())


@pytest.mark.parametrize("open_door", DOORS)
def test_messages_need_not_be_proper_json(run: Run, open_door: Any) -> None:
    asked = json.dumps(ASKED).encode()
    # Half of a surrogate pair, as where a text was cut within an emoji.
    texts = [asked.replace(b"there", b"\\ud83d"), b"\xef\xbb\xbf" + asked]

    async def main() -> None:
        backend = Told()
        backend.go.set()
        async with open_door(backend) as door, aiohttp.ClientSession() as session:
            for path in ("messages", "messages/count_tokens"):
                for text in texts:
                    async with session.post(f"{door.base_url}/{path}", data=text) as reply:
                        assert reply.status == 200, await reply.text()
        assert len(backend.requests) == len(texts)

    run(main())


def test_what_the_door_refuses_has_the_same_shape(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        async with (
            Front(backend, models=["m"], bounds=Bounds(most_requests=1, grace_s=0.05)) as door,
            client_of(door) as client,
            aiohttp.ClientSession() as session,
        ):
            for asked, error, said in [
                ({"model": "other"}, anthropic.NotFoundError, "`other` does not exist"),
                ({"max_tokens": 0}, anthropic.BadRequestError, "`max_tokens`"),
                ({"messages": []}, anthropic.BadRequestError, "`messages`"),
                ({"container": "c"}, anthropic.BadRequestError, "`container`"),
            ]:
                with pytest.raises(error, match=said):
                    await client.messages.create(**{**ASKED, **asked})
            url = f"{door.base_url}/messages"
            async with session.post(url, data=b"{") as reply:
                assert (reply.status, (await reply.json())["type"]) == (400, "error")
            async with session.get(url) as reply:
                assert reply.status == 405
                assert (await reply.json())["error"]["type"] == "invalid_request_error"
                assert reply.headers["request-id"] == (await reply.json())["request_id"]
            async with session.get(f"{url}/batches") as reply:
                assert (await reply.json())["error"]["type"] == "not_found_error"
            first = asyncio.create_task(client.messages.create(**ASKED))
            await until(lambda: backend.in_flight == 1)
            with pytest.raises(anthropic.InternalServerError) as caught:
                await client.messages.create(**ASKED)
            assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
            backend.go.set()
            assert (await first).content[0].type == "text"

    run(main())


@pytest.mark.parametrize("open_door", DOORS)
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_stream_in_any_pieces(run: Run, open_door: Any, size: int) -> None:
    def event(**delta: Any) -> bytes:
        return event_bytes({"id": "chatcmpl-9", "choices": [{"index": 0, "delta": delta}]})

    arguments = json.dumps({"city": "Tromsø 🎈"}, ensure_ascii=False)
    call = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": arguments[:9]}}
    rest = {"index": 0, "function": {"arguments": arguments[9:]}}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    usage = {
        "prompt_tokens": 8,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 6},
    }
    raw = b"".join(
        [
            b": hello\n\n",
            event(role="assistant", content=""),
            event(reasoning_content="hm"),
            b'data: {"choices": [{"delta": {"content": "a \\ud83c"}}]}\n\n',
            b'data: {"choices": [{"delta": {"content": "\\udf88"}}]}\n\n',
            event(tool_calls=[call]),
            event(tool_calls=[rest]),
            event_bytes(end),
            event_bytes({"choices": [], "usage": usage}),
            DONE_EVENT,
        ]
    )

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: theirs\r\n"
        writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode())
        for at in range(0, len(raw), size):
            writer.write(raw[at : at + size])
            await asyncio.sleep(0)

    async def main() -> None:
        async with RawServer(handle) as server, asking(open_door, server.base_url) as client:
            async with client.messages.stream(**ASKED) as stream:
                message = await stream.get_final_message()
                assert stream.response.headers["request-id"] == "theirs"
            assert [block.to_dict() for block in message.content] == [
                {"type": "text", "text": "a 🎈"},
                {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Tromsø 🎈"}},
            ]
            assert (message.id, message.model, message.stop_reason) == ("msg_9", "m", "tool_use")
            counted = message.usage
            assert (counted.input_tokens, counted.cache_read_input_tokens) == (2, 6)
            (seen,) = server.seen
            sent: Any = seen.json()
            assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})

    run(main())


def test_a_stream_that_breaks_off_ends_with_an_error(run: Run) -> None:
    broken = event_bytes({"error": {"message": "out of memory", "code": 500}})

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        writer.write(head + event_bytes(piece("hi")))
        if seen.json()["model"] == "error":  # type: ignore[index]
            writer.write(broken)
        await writer.drain()
        writer.close()

    async def read(client: anthropic.AsyncAnthropic, model: str, texts: list[str]) -> None:
        async with client.messages.stream(**{**ASKED, "model": model}) as stream:
            async for text in stream.text_stream:
                texts.append(text)  # noqa: PERF401 - what came before the error counts

    async def main() -> None:
        async with RawServer(handle) as server, asking(Relay, server.base_url) as client:
            for model, said in (("error", "out of memory"), ("cut", "complete")):
                texts: list[str] = []
                with pytest.raises(anthropic.APIStatusError, match=said) as caught:
                    await read(client, model, texts)
                assert texts == ["hi"]
                assert caught.value.type == "api_error"

    run(main())


def test_a_server_that_does_not_stream_and_a_function(run: Run) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(chat("all at once")))

    async def said(prompt: Any) -> str:
        return "from a function"

    async def main() -> None:
        async with RawServer(handle) as server, asking(Relay, server.base_url) as client:
            _, message = await streamed(client)
            assert said_in(message) == ["all at once"]
        async with Front(FunctionBackend(said)) as door, client_of(door) as client:
            _, message = await streamed(client)
            whole = await client.messages.create(**ASKED)
            assert said_in(message) == said_in(whole)
            assert said_in(message) == ["from a function"]

    run(main())


def test_a_client_that_leaves_ends_the_call(run: Run) -> None:
    async def main() -> None:
        backend = Told("a", "b")
        async with Relay(backend) as door, client_of(door) as client:
            async with client.messages.stream(**ASKED) as stream:
                async for text in stream.text_stream:
                    assert text == "a"
                    break
            await until(lambda: backend.cancelled == 1)
            await until(lambda: door.in_flight == 0)

    run(main())


# In front of `redline serve`.


def test_the_gateway_translates_for_tenants_and_within_their_limits(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one", "few")
    with fleet_of(2) as sims:
        endpoints = "".join(
            f'[endpoints.e{i}]\nbase_url = "{sim.base_url}"\nmodels = {{ fast = "real" }}\n'
            for i, sim in enumerate(sims)
        )
        toml = f'[serve]\nkeys = "keys.jsonl"\n{endpoints}\n[tenants.few]\nrequests = "1/60s"\n'
        with Serve(tmp_path, toml=toml) as serve:

            def client(key: str) -> anthropic.Anthropic:
                url = serve.url.removesuffix("/v1")
                return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)

            asked: Any = {**ASKED, "model": "fast"}
            with client(keys["one"]) as one, client(keys["few"]) as few, client("no") as nobody:
                assert said_in(one.messages.create(**asked)) == ["You said: hello there"]
                with pytest.raises(anthropic.NotFoundError, match="`other` does not exist"):
                    one.messages.create(**{**asked, "model": "other"})
                with pytest.raises(anthropic.BadRequestError, match="`container`") as caught:
                    one.messages.create(**asked, container="c")
                assert str(caught.value.request_id).startswith("req_")
                with pytest.raises(anthropic.AuthenticationError) as unknown:
                    nobody.messages.create(**asked)
                assert unknown.value.type == "authentication_error"
                # A count is no call.
                for _ in range(3):
                    assert few.messages.count_tokens(model="fast", messages=HELLO).input_tokens > 1
                few.messages.create(**asked)
                with pytest.raises(anthropic.RateLimitError) as limited:
                    few.messages.create(**asked)
                assert int(limited.value.response.headers["retry-after"]) > 0
                assert limited.value.type == "rate_limit_error"


def test_the_gateway_streams_texts_and_calls_tools_before_two_servers(tmp_path: Path) -> None:
    with (
        fleet_of(2, "--latency", "0.05") as sims,
        Serve(tmp_path, *(word for sim in sims for word in ("--endpoint", sim.base_url))) as serve,
        anthropic.Anthropic(
            base_url=serve.url.removesuffix("/v1"), api_key="none", max_retries=0
        ) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        forced: Any = {"tools": TOOLS, "tool_choice": {"type": "any"}}

        def stream(number: int) -> None:
            """A text, asked for with instructions."""
            content = f"call {number}"
            turns: Any = [{"role": "user", "content": content}]
            asked: Any = {**ASKED, "messages": turns, "system": "be brief"}
            with client.messages.stream(**asked) as events:
                pieces = list(events.text_stream)
                whole = events.get_final_message()
            assert len(pieces) > 2
            assert ["".join(pieces)] == said_in(whole) == [f"You said: {content}"]
            assert whole.stop_reason == "end_turn"

        def converse(number: int) -> None:
            """Tools are called, whole or as a stream; their results go back."""
            if number % 2:
                whole = client.messages.create(**ASKED, **forced)
            else:
                with client.messages.stream(**ASKED, **forced) as events:
                    whole = events.get_final_message()
            calls = [block for block in whole.content if block.type == "tool_use"]
            assert whole.stop_reason == "tool_use"
            assert [(call.name, call.input) for call in calls] == [
                ("weather", {"city": "Oslo"}),
                ("now", {}),
            ]
            results: Any = [
                {"type": "tool_result", "tool_use_id": call.id, "content": "rain " * 50}
                for call in calls
            ]
            turns: Any = [
                *HELLO,
                {"role": "assistant", "content": whole.content},
                {"role": "user", "content": results},
            ]
            last = client.messages.create(**{**ASKED, "messages": turns}, tools=TOOLS)
            assert (said_in(last), last.stop_reason) == (["You said: hello there"], "end_turn")
            # Both results have reached the server.
            assert last.usage.input_tokens - whole.usage.input_tokens > 100

        list(threads.map(stream, range(8)))
        list(threads.map(converse, range(8)))
        received = [sim.stats()["received"] for sim in sims]
        assert sum(received) == 24
        assert min(received) > 0
