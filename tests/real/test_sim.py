"""The simulated provider over real sockets, with aiohttp and the openai SDK as its clients."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import uvloop

from redline.errors import ConfigError, RedlineError
from redline.limits.rule import Rate, parse_rate
from redline.sim import CLASSES, Constant, SimSettings, Slots, Uniform, parse_faults
from redline.sim.server import Sim
from redline.sim.server import provider as provider_module
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

HOUR = Constant(3600.0)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Sim, aiohttp.ClientSession]]:
    """A sim and a client of it. At the end the sum must hold, with nothing in flight."""
    sim = Sim(SimSettings(**settings))
    connector = aiohttp.TCPConnector(limit=0)
    async with sim, aiohttp.ClientSession(connector=connector) as session:
        yield sim, session
        assert_sum(sim)
    assert sim.stats()["in_flight"] == 0
    assert_sum(sim)


def assert_sum(sim: Sim) -> None:
    shown = sim.stats()
    assert shown["received"] == sum(shown[name] for name in CLASSES) + shown["in_flight"]
    assert shown["received"] == sum(shown["by_status"].values()) + shown["in_flight"]


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


async def ask(
    sim: Sim, session: aiohttp.ClientSession, body: Any = None, path: str = "/chat/completions"
) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of one request."""
    async with session.post(sim.base_url + path, json=body or chat()) as reply:
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return reply.status, await reply.json(), headers


LoopFactory = Callable[[], asyncio.AbstractEventLoop]
# The command line serves on uvloop, a run in a notebook on asyncio's own loop.
on_both_loops = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def run(main: Coroutine[Any, Any, None], make_loop: LoopFactory = asyncio.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main)


def root(sim: Sim) -> str:
    return sim.base_url.removesuffix("/v1")


def test_answers_every_endpoint_and_counts() -> None:
    async def main() -> None:
        async with serving() as (sim, session):
            status, reply, headers = await ask(sim, session)
            assert status == 200
            assert reply["choices"][0]["message"]["content"] == "You said: hello"
            assert headers["x-request-id"] == "req-sim1"
            assert headers["content-type"] == "application/json"
            assert "x-ratelimit-limit-requests" not in headers
            for path, body in [
                ("/completions", {"model": "m", "prompt": "hi"}),
                ("/embeddings", {"model": "m", "input": ["hi", "you"]}),
                ("/responses", {"model": "m", "input": "hi"}),
            ]:
                status, reply, _ = await ask(sim, session, body, path)
                assert status == 200, reply
            async with session.get(f"{sim.base_url}/models") as models:
                assert (await models.json())["data"][0]["id"] == "sim"
            async with session.get(f"{root(sim)}/healthz") as health:
                assert await health.json() == {"status": "ok"}
            async with session.get(f"{root(sim)}/sim/stats") as shown:
                assert await shown.json() == sim.stats()
            assert sim.stats()["received"] == sim.stats()["answered"] == 4
            assert sim.stats()["tokens"] == (2 + 4) + (1 + 3) + 2 + (1 + 3)

    run(main())


def test_what_is_wrong_is_refused_in_openai_s_shape() -> None:
    async def main() -> None:
        async with serving() as (sim, session):
            status, reply, _ = await ask(sim, session, {"model": "m"})
            assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
            status, reply, _ = await ask(sim, session, chat(), "/v1/chat/completions")
            assert status == 404
            assert "/v1/v1/chat/completions" in reply["error"]["message"]
            async with session.get(f"{sim.base_url}/chat/completions") as reply:
                assert reply.status == 405
            async with session.head(f"{sim.base_url}/chat/completions") as reply:
                assert reply.status == 405
            async with session.get(f"{root(sim)}/sim/requests?limit=x") as reply:
                assert reply.status == 400
            assert sim.stats()["refused"] == 4
            assert sim.stats()["by_status"] == {"400": 1, "404": 1, "405": 2}

    run(main())


def test_the_key_is_asked_for() -> None:
    async def main() -> None:
        async with serving(api_key="sk-right") as (sim, session):
            status, reply, _ = await ask(sim, session)
            assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
            async with session.get(f"{sim.base_url}/models") as models:
                assert models.status == 401
            session.headers["Authorization"] = "Bearer sk-right"
            assert (await ask(sim, session))[0] == 200
            assert sim.stats()["by_status"] == {"401": 1, "200": 1}

    run(main())


def test_a_large_body_is_read_and_a_larger_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving() as (sim, session):
            body = io.BytesIO(json.dumps(chat("x" * 30_000_000)).encode())
            async with session.post(f"{sim.base_url}/chat/completions", data=body) as large:
                assert large.status == 200
                assert (await large.json())["usage"]["prompt_tokens"] == 7_500_000
        monkeypatch.setattr("redline.sim.server.server.MAX_BODY_BYTES", 1000)
        async with serving() as (sim, session):
            status, _, headers = await ask(sim, session, chat("x" * 2000))
            assert (status, headers["connection"]) == (413, "close")
            assert (await ask(sim, session))[0] == 200

    run(main())


def test_a_client_that_expects_100_continue_is_told_to_go_on() -> None:
    async def main() -> None:
        async with serving() as (sim, session):
            url = f"{sim.base_url}/chat/completions"
            async with session.post(url, json=chat(), expect100=True) as reply:
                assert reply.status == 200

    run(main())


def test_an_old_client_gets_its_connection_closed() -> None:
    async def main() -> None:
        async with serving() as (sim, _):
            reader, writer = await connect(sim)
            body = json.dumps(chat()).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body
            )
            reply = await reader.read()
            assert b"connection: close" in reply
            assert b"You said: hello" in reply
            writer.close()
            await writer.wait_closed()

    run(main())


async def read_until_error(
    reply: aiohttp.ClientResponse,
) -> tuple[bytes, aiohttp.ClientError | None]:
    """What came of the body, and what ended it."""
    received = b""
    try:
        while chunk := await reply.content.readany():
            received += chunk
    except aiohttp.ClientError as error:
        return received, error
    return received, None


async def connect(sim: Sim) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(root(sim).rpartition(":")[2]))


@pytest.mark.parametrize("algorithm", ["fixed", "moving", "counter", "bucket"])
def test_a_limit_rejects_and_tells_when_to_come_back(algorithm: str) -> None:
    async def main() -> None:
        rate = Rate(2, 3600.0)
        async with serving(requests=(rate,), algorithm=algorithm) as (sim, session):
            replies = [await ask(sim, session) for _ in range(4)]
            # A counter may begin a new window in between, once in 3,600 s; then one more passes.
            assert [status for status, _, _ in replies] == [200, 200, 429, 429]
            assert [h["x-ratelimit-remaining-requests"] for _, _, h in replies] == list("1000")
            assert replies[0][2]["x-ratelimit-limit-requests"] == "2"
            _, body, headers = replies[3]
            assert body["error"]["code"] == "rate_limit_exceeded"
            assert body["error"]["type"] == "requests"
            assert "Rate limit reached on requests" in body["error"]["message"]
            wait_ms = int(headers["retry-after-ms"])
            assert int(headers["retry-after"]) == math.ceil(wait_ms / 1000) > 0
            assert sim.stats()["rejected_by_limit"] == {"requests 2/3600s": 2}

    run(main())


def test_a_token_limit_charges_what_will_be_answered() -> None:
    async def main() -> None:
        async with serving(tokens=(Rate(20, 3600.0),)) as (sim, session):
            status, reply, headers = await ask(
                sim, session, chat("hello world, hello", max_tokens=2)
            )
            assert status == 200
            assert reply["usage"]["total_tokens"] == 7
            assert headers["x-ratelimit-remaining-tokens"] == "13"
            status, reply, headers = await ask(sim, session, chat("x" * 80))
            assert status == 429
            assert "can never be admitted" in reply["error"]["message"]
            assert "retry-after" not in headers
            assert headers["x-ratelimit-remaining-tokens"] == "13"
            assert sim.stats()["rejected_by_limit"] == {"tokens 20/3600s": 1}

    run(main())


# The prompt has 1 token, the answer 3, or fewer with max_tokens; n=2 answers twice.
@pytest.mark.parametrize(
    ("charge", "more", "charged"),
    [
        ("actual", {"max_tokens": 2}, 3),
        ("actual", {"max_tokens": 50, "n": 2}, 7),
        ("reserved", {}, 4),
        ("reserved", {"max_tokens": 50}, 51),
        ("reserved", {"max_tokens": 9, "max_completion_tokens": 20, "n": 2}, 41),
        ("answered", {"max_tokens": 50}, 4),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_tokens_are_charged_as_stated(
    charge: str, more: dict[str, Any], charged: int, is_stream: bool
) -> None:
    async def main() -> None:
        settings = {"tokens": (Rate(1000, 3600.0),), "charge": charge}
        async with serving(**settings) as (sim, session):
            url = f"{sim.base_url}/chat/completions"
            async with session.post(url, json=chat("hi", **more, stream=is_stream)) as reply:
                assert reply.status == 200
                await reply.read()
            _, _, headers = await ask(sim, session, {"model": "m", "input": "x"}, "/embeddings")
            assert int(headers["x-ratelimit-remaining-tokens"]) == 1000 - charged - 1

    run(main())


def test_what_is_reserved_covers_every_prompt_of_a_completion() -> None:
    async def main() -> None:
        async with serving(tokens=(Rate(1000, 3600.0),), charge="reserved") as (sim, session):
            for prompt, charged in [(["a", "b", "c"], 3 + 30), ("a", 1 + 10), ([7, 8], 2 + 10)]:
                _, _, before = await ask(sim, session, {"model": "m", "input": "x"}, "/embeddings")
                body = {"model": "m", "prompt": prompt, "max_tokens": 10}
                _, _, after = await ask(sim, session, body, "/completions")
                left = [int(h["x-ratelimit-remaining-tokens"]) for h in (before, after)]
                assert left[0] - left[1] == charged

    run(main())


def test_an_answer_counts_when_it_ends_whether_it_fits_or_not() -> None:
    async def main() -> None:
        settings = {"tokens": (Rate(20, 3600.0),), "charge": "answered", "latency": Constant(0.05)}
        async with serving(**settings) as (sim, session):
            # All four are in before the first answer counts; together they use 36 of 20.
            replies = await asyncio.gather(*(ask(sim, session) for _ in range(4)))
            assert [status for status, _, _ in replies] == [200] * 4
            status, reply, headers = await ask(sim, session)
            assert status == 429
            assert "Used 20, Requested 2" in reply["error"]["message"]
            assert headers["x-ratelimit-remaining-tokens"] == "0"

    run(main())


def test_anthropic_shows_input_and_output_apart() -> None:
    async def main() -> None:
        rates = {"input_tokens": (Rate(50, 60.0),), "output_tokens": (Rate(10, 60.0),)}
        async with serving(headers="anthropic", **rates) as (sim, session):
            _, _, headers = await ask(sim, session, chat("hi"))
            assert headers["anthropic-ratelimit-input-tokens-limit"] == "50"
            assert headers["anthropic-ratelimit-input-tokens-remaining"] == "49"
            assert headers["anthropic-ratelimit-output-tokens-remaining"] == "7"
            assert "anthropic-ratelimit-tokens-limit" not in headers
            status, reply, headers = await ask(sim, session, chat("hello world, how are you?"))
            assert (status, reply["error"]["type"]) == (429, "output-tokens")
            assert headers["anthropic-ratelimit-output-tokens-remaining"] == "7"
            assert sim.stats()["rejected_by_limit"] == {"output-tokens 10/60s": 1}
        async with serving(headers="openai", tokens=(Rate(99, 60.0),), **rates) as (sim, session):
            _, _, headers = await ask(sim, session)
            shown = [name for name in headers if name.startswith("x-ratelimit-limit")]
            assert shown == ["x-ratelimit-limit-tokens"]

    run(main())


def test_gemini_tells_the_wait_in_the_body() -> None:
    async def main() -> None:
        async with serving(headers="gemini", requests=(Rate(1, 60.0),)) as (sim, session):
            await ask(sim, session)
            status, reply, headers = await ask(sim, session)
            assert status == 429
            assert reply["error"]["status"] == "RESOURCE_EXHAUSTED"
            assert reply["error"]["details"][0]["retryDelay"] == "60s"
            assert "retry-after" not in headers
            await with_key(sim, session, "a", "/sim/faults", {"park_s": 100})
            status, reply, _ = await with_key(sim, session, "a")
            assert (status, reply["error"]["details"][0]["retryDelay"]) == (429, "100s")

    run(main())


def test_jitter_comes_before_the_limits() -> None:
    async def main() -> None:
        settings = {"jitter_s": 0.2, "seed": 1, "requests": (Rate(9, 3600.0),)}
        async with serving(**settings) as (sim, session):
            await asyncio.gather(*(ask(sim, session) for _ in range(12)))
            async with session.get(f"{root(sim)}/sim/requests") as reply:
                records = (await reply.json())["requests"]
        by_arrival = sorted(records, key=lambda record: record["arrival_s"])
        # All were sent at once; the limit let in the nine that came out of the jitter first.
        assert [record["outcome"] for record in by_arrival] == ["answered"] * 9 + ["rejected"] * 3
        assert [record["number"] for record in by_arrival] != list(range(1, 13))
        # Without jitter they arrive within a few milliseconds.
        assert by_arrival[-1]["arrival_s"] - by_arrival[0]["arrival_s"] > 0.05

    run(main())


async def change(
    sim: Sim, session: aiohttp.ClientSession, body: Any, method: str = "POST"
) -> tuple[int, Any]:
    async with session.request(method, f"{root(sim)}/sim/limits", json=body) as reply:
        return reply.status, await reply.json()


def test_limits_change_while_it_runs() -> None:
    async def main() -> None:
        settings = {"requests": (Rate(2, 3600.0),), "tokens": (Rate(900, 60.0),)}
        async with serving(**settings) as (sim, session):
            assert [(await ask(sim, session))[0] for _ in range(3)] == [200, 200, 429]
            status, shown = await change(sim, session, {"requests": ["3/1h"]})
            assert status == 200
            assert shown == {
                "requests": ["3/3600s"],
                "tokens": ["900/60s"],
                "input_tokens": [],
                "output_tokens": [],
            }
            assert [(await ask(sim, session))[0] for _ in range(2)] == [200, 429]
            assert (await change(sim, session, None, "GET"))[1] == shown
            await change(sim, session, {"requests": [], "output_tokens": ["4/60s"]})
            assert [(await ask(sim, session))[0] for _ in range(2)] == [200, 429]
            assert sim.stats()["received"] == 7

    run(main())


def test_limits_that_make_no_sense_are_refused_and_change_nothing() -> None:
    async def main() -> None:
        async with serving(requests=(Rate(2, 60.0),), api_key="sk-right") as (sim, session):
            assert (await change(sim, session, {"requests": []}))[0] == 401
            session.headers["Authorization"] = "Bearer sk-right"
            for body in ({"requests": ["2"]}, {"request": ["2/1s"]}, {"requests": "2/1s"}, []):
                status, reply = await change(sim, session, body)
                assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
            assert (await change(sim, session, {}, "PUT"))[0] == 405
            assert (await change(sim, session, {}))[1]["requests"] == ["2/60s"]
            assert sim.stats()["received"] == 0

    run(main())


async def with_key(
    sim: Sim, session: aiohttp.ClientSession, key: str, path: str = "", body: Any = None
) -> tuple[int, Any, str]:
    """Status, JSON and Retry-After of a request with this key; by default a chat completion."""
    url = root(sim) + path if path else f"{sim.base_url}/chat/completions"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with session.post(url, json=body or chat(), headers=headers) as reply:
        return reply.status, await reply.json(), reply.headers.get("Retry-After", "")


def test_each_key_has_limits_of_its_own() -> None:
    async def main() -> None:
        async with serving(requests=(Rate(2, 3600.0),)) as (sim, session):
            for key in ("a", "b", ""):
                statuses = [(await with_key(sim, session, key))[0] for _ in range(3)]
                assert statuses == [200, 200, 429]
            await change(sim, session, {"requests": ["3/1h"]})
            for key in ("a", "b", ""):
                statuses = [(await with_key(sim, session, key))[0] for _ in range(2)]
                assert statuses == [200, 429]
            # One that comes only now has the new limits.
            statuses = [(await with_key(sim, session, "c"))[0] for _ in range(4)]
            assert statuses == [200, 200, 200, 429]

    run(main())


@pytest.mark.parametrize("limits", [(), (Rate(9, 3600.0),)], ids=["no-limits", "limits"])
def test_one_key_is_parked(limits: tuple[Rate, ...]) -> None:
    async def main() -> None:
        async with serving(requests=limits) as (sim, session):
            await with_key(sim, session, "a", "/sim/faults", {"park_s": 100})
            status, _, retry_after = await with_key(sim, session, "a")
            assert (status, int(retry_after) in (100, 101)) == (429, True)
            assert (await with_key(sim, session, "b"))[0] == 200
            assert sim.stats()["rejected_by_limit"] == {"parked": 1}
            await with_key(sim, session, "a", "/sim/faults", {"park_s": 0})
            assert (await with_key(sim, session, "a"))[0] == 200

    run(main())


def test_faults_and_latency_change_while_it_runs() -> None:
    async def main() -> None:
        async with serving() as (sim, session):
            for faults, status in ((["500=1"], 500), (["503=1"], 503), ([], 200)):
                shown = (await with_key(sim, session, "", "/sim/faults", {"faults": faults}))[1]
                assert shown["faults"] == ({str(status): 1.0} if faults else {})
                assert (await ask(sim, session))[0] == status
                async with session.get(f"{root(sim)}/healthz") as reply:
                    assert reply.status == 200
            await with_key(sim, session, "", "/sim/faults", {"latency": "3600"})
            waiting = asyncio.create_task(ask(sim, session))
            await until(lambda: sim.stats()["serving"] == 1)
            await with_key(sim, session, "", "/sim/faults", {"latency": "0"})
            assert (await ask(sim, session))[0] == 200
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])

    run(main())


@pytest.mark.parametrize(
    "body",
    [{"faults": ["501=1"]}, {"faults": "500"}, {"latency": "x"}, {"park_s": -1}, {"fault": []}],
)
def test_faults_that_make_no_sense_are_refused_and_change_nothing(body: Any) -> None:
    async def main() -> None:
        async with serving() as (sim, session):
            status, reply, _ = await with_key(sim, session, "", "/sim/faults", body)
            assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
            async with session.get(f"{root(sim)}/sim/faults") as shown:
                assert await shown.json() == {"faults": {}, "latency": "0 s"}

    run(main())


@pytest.mark.parametrize(
    ("style", "present", "absent"),
    [
        ("azure", "x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-limit"),
        ("anthropic", "anthropic-ratelimit-requests-reset", "x-ratelimit-limit-requests"),
        ("none", "content-type", "retry-after"),
    ],
)
def test_headers_follow_the_style(style: str, present: str, absent: str) -> None:
    async def main() -> None:
        async with serving(requests=(Rate(1, 60.0),), headers=style) as (sim, session):
            replies = [await ask(sim, session) for _ in range(2)]
            assert [status for status, _, _ in replies] == [200, 429]
            for _, _, headers in replies:
                assert present in headers
                assert absent not in headers

    run(main())


@pytest.mark.parametrize(("kind", "status"), [("429", 429), ("500", 500), ("503", 503)])
def test_injected_statuses_come_out_of_the_blue(kind: str, status: int) -> None:
    async def main() -> None:
        faults = parse_faults([f"{kind}=1"])
        async with serving(faults=faults, requests=(Rate(9, 60.0),)) as (sim, session):
            got, reply, headers = await ask(sim, session)
            assert got == status
            assert "injected" in reply["error"]["message"]
            assert not {"retry-after", "x-ratelimit-limit-requests"} & set(headers)
            assert sim.stats()["faults_by_kind"] == {kind: 1}
            assert sim.stats()["rejected"] == 0

    run(main())


@on_both_loops
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_reset_is_a_reset(is_stream: bool, make_loop: LoopFactory) -> None:
    async def main() -> None:
        async with serving(faults=parse_faults(["reset=1"])) as (sim, _):
            reader, writer = await connect(sim)
            body = json.dumps(chat(stream=is_stream)).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
            writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            assert sim.stats()["faults_by_kind"] == {"reset": 1}
            assert sim.stats()["by_status"] == {"none": 1}

    run(main(), make_loop)


@on_both_loops
@pytest.mark.parametrize("is_stream", [False, True])
def test_half_a_body_is_half_a_body(is_stream: bool, make_loop: LoopFactory) -> None:
    async def main() -> None:
        async with serving(faults=parse_faults(["half=1"])) as (sim, session):
            url = f"{sim.base_url}/chat/completions"
            async with session.post(url, json=chat(stream=is_stream)) as reply:
                assert reply.status == 200
                received, error = await read_until_error(reply)
                assert isinstance(error, aiohttp.ClientPayloadError)
                if not is_stream:
                    whole = int(reply.headers["content-length"])
                    assert len(received) == whole // 2
            assert received.startswith(b"data: {" if is_stream else b'{"id"')
            assert b"[DONE]" not in received
            assert sim.stats()["faults_by_kind"] == {"half": 1}

    run(main(), make_loop)


def test_a_page_that_is_not_json() -> None:
    async def main() -> None:
        async with serving(faults=parse_faults(["notjson=1"])) as (sim, session):
            async with session.post(f"{sim.base_url}/chat/completions", json=chat()) as reply:
                assert (reply.status, reply.content_type) == (200, "text/html")
                assert "<html>" in await reply.text()
            assert sim.stats()["faults_by_kind"] == {"notjson": 1}

    run(main())


@on_both_loops
def test_a_stall_lasts_until_the_client_leaves(make_loop: LoopFactory) -> None:
    async def main() -> None:
        async with serving(faults=parse_faults(["stall=1"])) as (sim, session):
            asking = asyncio.create_task(ask(sim, session))
            await until(lambda: sim.stats()["in_flight"] == 1)
            asking.cancel()
            await asyncio.wait([asking])
            await until(lambda: sim.stats()["in_flight"] == 0)
            assert sim.stats()["faults_by_kind"] == {"stall": 1}
            assert sim.stats()["abandoned"] == 0

    run(main(), make_loop)


def test_a_stall_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "MAX_STALL_S", 0.01)

    async def main() -> None:
        async with serving(faults=parse_faults(["stall=1"])) as (sim, session):
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await ask(sim, session)
            assert sim.stats()["faults_by_kind"] == {"stall": 1}

    run(main())


def test_when_the_texts_of_a_stream_were_written_is_recorded() -> None:
    async def main() -> None:
        async with serving(latency=Constant(0.05), per_token_s=0.02) as (sim, session):
            body = chat("one two three", stream=True)
            async with session.post(f"{sim.base_url}/chat/completions", json=body) as reply:
                pieces = (await reply.text()).count('"content":"') - 1
            await ask(sim, session)
            async with session.get(f"{root(sim)}/sim/requests") as reply:
                streamed, whole = (await reply.json())["requests"]
            async with session.get(f"{root(sim)}/sim/gaps?limit=100") as reply:
                gaps_s = (await reply.json())["gaps_s"]
        # The first word is a token, which takes its time after the latency.
        assert streamed["first_token_s"] - streamed["arrival_s"] >= 0.07
        assert streamed["first_token_s"] + sum(gaps_s) <= streamed["ended_s"]
        assert len(gaps_s) == pieces - 1
        assert whole["first_token_s"] == 0

    run(main())


def test_a_seed_fixes_which_request_meets_what() -> None:
    async def outcomes(seed: int) -> list[tuple[Any, ...]]:
        faults = parse_faults(["429=0.2", "500=0.2", "notjson=0.1"])
        settings = {"faults": faults, "latency": Uniform(0, 0.002), "seed": seed}
        async with serving(**settings) as (sim, session):
            for _ in range(60):
                async with session.post(f"{sim.base_url}/chat/completions", json=chat()) as reply:
                    await reply.read()
            async with session.get(f"{root(sim)}/sim/requests") as reply:
                records = (await reply.json())["requests"]
        return [(r["number"], r["status"], r["detail"], r["latency_s"]) for r in records]

    async def main() -> None:
        first = await outcomes(7)
        assert first == await outcomes(7)
        assert first != await outcomes(8)
        assert [number for number, *_ in first] == list(range(1, 61))
        assert {status for _, status, *_ in first} == {200, 429, 500}

    run(main())


def test_a_fault_is_charged_to_the_limits() -> None:
    async def main() -> None:
        settings = {"faults": parse_faults(["500=1"]), "requests": (Rate(2, 3600.0),)}
        async with serving(**settings) as (sim, session):
            assert [(await ask(sim, session))[0] for _ in range(3)] == [500, 500, 429]
            assert (sim.stats()["faults"], sim.stats()["rejected"]) == (2, 1)

    run(main())


def test_the_concurrency_cap_makes_requests_wait_in_line() -> None:
    async def main() -> None:
        settings = {"concurrency": 3, "latency": Uniform(0.005, 0.02)}
        async with serving(**settings) as (sim, session):
            replies = await asyncio.gather(*(ask(sim, session) for _ in range(20)))
            assert {status for status, _, _ in replies} == {200}
            shown = sim.stats()
            assert shown["most_serving"] == 3
            assert shown["most_in_flight"] == 20
            assert (shown["serving"], shown["waiting"], shown["in_flight"]) == (0, 0, 0)

    run(main())


def test_a_full_queue_turns_requests_away_and_charges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_module, "Slots", lambda cap: Slots(cap, max_waiting=2))

    async def main() -> None:
        settings = {"concurrency": 1, "latency": HOUR, "requests": (Rate(3, 3600.0),)}
        async with serving(**settings) as (sim, session):
            held = [asyncio.create_task(ask(sim, session)) for _ in range(3)]
            await until(lambda: sim.stats()["waiting"] == 2)
            status, reply, _ = await ask(sim, session)
            assert (status, reply["error"]["code"]) == (503, "overloaded")
            assert sim.stats()["overloaded"] == 1
            assert sim.stats()["rejected"] == 0
            for task in held:
                task.cancel()
            await asyncio.wait(held)
            await until(lambda: sim.stats()["in_flight"] == 0)
            assert sim.stats()["abandoned"] == 3
            assert sim.stats()["serving"] == 0

    run(main())


@on_both_loops
def test_a_client_that_leaves_frees_its_slot_for_the_next(make_loop: LoopFactory) -> None:
    async def main() -> None:
        async with serving(concurrency=1, latency=HOUR) as (sim, session):
            first = asyncio.create_task(ask(sim, session))
            await until(lambda: sim.stats()["serving"] == 1)
            second = asyncio.create_task(ask(sim, session))
            await until(lambda: sim.stats()["waiting"] == 1)
            first.cancel()
            await until(lambda: sim.stats()["waiting"] == 0)
            assert sim.stats()["serving"] == 1
            assert sim.stats()["abandoned"] == 1
            second.cancel()
            await asyncio.wait([first, second])

    run(main(), make_loop)


@on_both_loops
def test_what_is_in_flight_at_the_end_is_abandoned(make_loop: LoopFactory) -> None:
    async def main() -> None:
        sim = Sim(SimSettings(latency=HOUR))
        async with aiohttp.ClientSession() as session:
            async with sim:
                asking = [asyncio.create_task(ask(sim, session)) for _ in range(5)]
                await until(lambda: sim.stats()["in_flight"] == 5)
            assert sim.stats()["in_flight"] == 0
            assert sim.stats()["abandoned"] == 5
            done, _ = await asyncio.wait(asking)
            assert all(isinstance(task.exception(), aiohttp.ClientError) for task in done)
        await sim.aclose()

    run(main(), make_loop)


@on_both_loops
def test_a_request_cut_off_in_its_body_is_abandoned(make_loop: LoopFactory) -> None:
    async def main() -> None:
        async with serving() as (sim, _):
            _, writer = await connect(sim)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"
            )
            await until(lambda: sim.stats()["in_flight"] == 1)
            writer.close()
            await until(lambda: sim.stats()["in_flight"] == 0)
            assert sim.stats()["abandoned"] == 1

    run(main(), make_loop)


@on_both_loops
def test_many_mixed_requests_add_up(make_loop: LoopFactory) -> None:
    async def main() -> None:
        settings = {
            "faults": parse_faults(["0.3"]),
            "requests": (parse_rate("150/60s"),),
            "concurrency": 8,
            "latency": Uniform(0, 0.01),
        }
        async with serving(**settings) as (sim, session):

            async def one(number: int) -> None:
                body = {"model": "m"} if number % 10 == 0 else chat(f"hello {number}")
                body["stream"] = number % 3 == 0
                url = f"{sim.base_url}/chat/completions"
                wait = aiohttp.ClientTimeout(total=0.05 if number % 7 == 0 else 2.0)
                try:
                    async with session.post(url, json=body, timeout=wait) as reply:
                        await reply.read()
                except (aiohttp.ClientError, TimeoutError):
                    return

            await asyncio.gather(*(one(number) for number in range(250)))
            await until(lambda: sim.stats()["in_flight"] == 0)
            shown = sim.stats()
            assert all(shown[name] > 0 for name in ("answered", "rejected", "faults", "refused"))
            assert shown["most_serving"] == 8

    run(main(), make_loop)


def test_gsm8k_is_replayed_over_http(shared_data: Path) -> None:
    folder = shared_data / "gsm8k"

    def rows(name: str) -> list[dict[str, str]]:
        text = (folder / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n") if line]

    answers = {r["question"]: r["answer"] for r in rows("answers-175b-finetuning.jsonl")}
    questions = [row["question"] for row in rows("test.jsonl")]

    async def main() -> None:
        replay = folder / "answers-175b-finetuning.jsonl"
        async with serving(replay=replay) as (sim, session):
            gate = asyncio.Semaphore(64)

            async def one(question: str) -> str:
                async with gate:
                    _, reply, _ = await ask(sim, session, chat(f"Q: {question}\nA:"))
                    return str(reply["choices"][0]["message"]["content"])

            said = await asyncio.gather(*(one(question) for question in questions))
            assert said == [answers[question] for question in questions]
            status, reply, _ = await ask(sim, session, chat("something else"))
            assert (status, reply["error"]["code"]) == (400, "no_such_question")
            assert sim.stats()["answered"] == 1319
            assert sim.stats()["refused"] == 1

    run(main())


@asynccontextmanager
async def sdk(**settings: Any) -> AsyncIterator[tuple[Sim, openai.AsyncOpenAI]]:
    async with (
        serving(api_key="sk-test", **settings) as (sim, _),
        openai.AsyncOpenAI(base_url=sim.base_url, api_key="sk-test", max_retries=0) as client,
    ):
        yield sim, client


def test_the_openai_sdk_reads_every_reply() -> None:
    async def main() -> None:
        async with sdk() as (_, client):
            messages: Any = [{"role": "user", "content": "hello"}]
            done = await client.chat.completions.create(model="m", messages=messages, n=2)
            assert [choice.message.content for choice in done.choices] == ["You said: hello"] * 2
            assert done.usage is not None
            assert done.usage.total_tokens == 10
            text = await client.completions.create(model="m", prompt="hi")
            assert text.choices[0].text == "You said: hi"
            vectors = await client.embeddings.create(model="m", input=["a", "b"], dimensions=16)
            floats = await client.embeddings.create(
                model="m", input="a", dimensions=16, encoding_format="float"
            )
            assert vectors.data[0].embedding == pytest.approx(floats.data[0].embedding, rel=1e-6)
            response = await client.responses.create(model="m", input="hi")
            assert response.output_text == "You said: hi"
            assert response.usage is not None
            assert response.usage.output_tokens == 3
            assert [model.id async for model in client.models.list()] == ["sim"]

    run(main())


def test_the_openai_sdk_reads_streams() -> None:
    async def main() -> None:
        async with sdk(per_token_s=0.001) as (sim, client):
            messages: Any = [{"role": "user", "content": "one two three"}]
            stream = await client.chat.completions.create(
                model="m",
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            said = [c.choices[0].delta.content or "" for c in chunks if c.choices]
            assert "".join(said) == "You said: one two three"
            assert len([piece for piece in said if piece]) == 5
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 6
            text = await client.completions.create(model="m", prompt="one two", stream=True)
            pieces = [chunk.choices[0].text async for chunk in text]
            assert "".join(pieces) == "You said: one two"
            assert sim.stats()["answered"] == 2

    run(main())


@on_both_loops
def test_a_stream_comes_token_by_token_and_may_be_left(make_loop: LoopFactory) -> None:
    async def main() -> None:
        async with serving(per_token_s=60.0) as (sim, session):
            url = f"{sim.base_url}/chat/completions"
            async with session.post(url, json=chat(stream=True)) as reply:
                first = await reply.content.readuntil(b"\n\n")
                assert b'"role":"assistant"' in first
                assert sim.stats()["in_flight"] == 1
                reply.close()
            await until(lambda: sim.stats()["in_flight"] == 0)
            assert sim.stats()["abandoned"] == 1
            assert sim.stats()["tokens"] == 0

    run(main(), make_loop)


def test_the_openai_sdk_names_every_fault() -> None:
    async def main() -> None:
        messages: Any = [{"role": "user", "content": "hello"}]
        expected = {
            "429": openai.RateLimitError,
            "500": openai.InternalServerError,
            "503": openai.InternalServerError,
            "reset": openai.APIConnectionError,
            "half": openai.APIConnectionError,
            "stall": openai.APITimeoutError,
        }
        for kind, error in expected.items():
            async with sdk(faults=parse_faults([f"{kind}=1"])) as (sim, client):
                with pytest.raises(error):
                    await client.with_options(timeout=0.2).chat.completions.create(
                        model="m", messages=messages
                    )
                await until(lambda sim=sim: sim.stats()["in_flight"] == 0)
                assert sim.stats()["faults_by_kind"] == {kind: 1}

    run(main())


def test_structured_answers_fit_their_schema_through_the_sdk() -> None:
    async def main() -> None:
        schema = {
            "type": "object",
            "properties": {"label": {"type": "string", "enum": ["billing", "bug"]}},
            "required": ["label"],
            "additionalProperties": False,
        }
        async with sdk() as (_, client):
            messages: Any = [{"role": "user", "content": "the invoice is wrong"}]
            done = await client.chat.completions.create(
                model="m",
                messages=messages,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "ticket", "schema": schema, "strict": True},
                },
            )
            assert json.loads(done.choices[0].message.content or "")["label"] in {"billing", "bug"}

    run(main())


def test_an_address_that_is_taken_is_a_settings_error() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match="cannot listen") as caught:
                await Sim(SimSettings(port=port)).start()
            assert caught.value.where == f"127.0.0.1:{port}"

    run(main())


def test_a_sim_starts_once_and_has_no_url_before() -> None:
    async def main() -> None:
        sim = Sim()
        await sim.aclose()
        with pytest.raises(RedlineError, match="not been started"):
            _ = sim.base_url
        async with sim:
            with pytest.raises(RedlineError, match="already been started"):
                await sim.start()

    run(main())


PROGRAM = "import sys; from redline.cli import main; main(['sim', *sys.argv[1:]])"


def start_program(*flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_program_tells_its_url_first_and_ends_cleanly(ending: signal.Signals) -> None:
    flags = ["--requests", "2/1h", "--requests", "900/1d", "--tokens", "200k/60s"]
    flags += ["--algorithm", "moving", "--latency", "0-0.01", "--headers", "azure"]
    with start_program(*flags) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/v1")

        async def main() -> None:
            async with aiohttp.ClientSession() as session:
                statuses = []
                for _ in range(3):
                    async with session.post(f"{url}/chat/completions", json=chat()) as reply:
                        statuses.append(reply.status)
                        assert "x-ratelimit-limit-requests" in reply.headers
                assert statuses == [200, 200, 429]
                program.send_signal(ending)
                # An open, idle connection must not hold the end up.
                out, err = await asyncio.to_thread(program.communicate, timeout=20)
                assert out == ""
                assert err.splitlines() == [
                    "simulating requests 2/3600s, requests 900/86400s, tokens 200000/60s (moving); "
                    "latency 0-0.01 s; seed 0; Ctrl-C stops it",
                    "received 3 = 2 answered + 1 rejected; at most 1 in flight",
                ]

        run(main())
        assert program.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--requests", "0/1s"], "--requests must be a whole number from 1 to 10^12"),
        (["--latency", "soon"], "latency is not a time: soon"),
        (["--charge", "twice"], "--charge must be one of actual, reserved, answered, not twice"),
        (["--jitter", "61"], "the jitter must be between 0 and 60 s, not 61"),
        (["--faults", "5"], "a share of faults must be 0 to 1, not 5"),
        (["--replay", "/nowhere/at/all.jsonl"], "the replay file cannot be read"),
    ],
)
def test_the_program_refuses_bad_values(flags: list[str], what: str) -> None:
    with start_program(*flags) as program:
        out, err = program.communicate(timeout=20)
    assert program.returncode == 2
    assert out == ""
    assert err.startswith("error: ")
    assert what in err
