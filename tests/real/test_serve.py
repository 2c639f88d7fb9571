"""`redline serve` as a process before simulated providers, with the openai SDK and curl."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from msgspec.structs import replace

from redline.calls import Endpoint
from redline.errors import ConfigError
from redline.job.settings import EmbeddedSim
from redline.limits import Limits, Rate
from redline.serve.admission import ClassSettings
from redline.serve.gateway import GatewaySettings, gateway_of, serve_gateway, serve_workers
from redline.serve.keys import DEFAULT_TENANT, TenantSettings, add_key, revoke_key
from support.raw_server import RawServer, Seen, answer, chat
from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess, fleet_of
from support.until import until, wait_until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
# For so many seconds an endpoint wants no calls.
WAIT = {"Retry_After": "20"}
HELLO: Any = [{"role": "user", "content": "hello"}]
TOO_LARGE = "Request too large for m on tokens per min (TPM): Limit 30000, Requested 32099."


def client_of(serve: Serve, **facts: Any) -> openai.OpenAI:
    return serve.client(**facts)


def flags_of(sims: Any) -> list[str]:
    return [word for sim in sims for word in ("--endpoint", sim.base_url)]


def test_the_openai_sdk_calls_streams_embeds_and_lists_models(tmp_path: Path) -> None:
    with fleet_of(2) as sims, Serve(tmp_path, *flags_of(sims)) as serve:
        client = client_of(serve)
        whole = client.chat.completions.create(model="m", messages=HELLO)
        assert whole.choices[0].message.content == "You said: hello"
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        texts = [event.choices[0].delta.content or "" for event in stream]
        assert "".join(texts) == "You said: hello"
        assert len(texts) > 2
        assert len(client.embeddings.create(model="m", input=["a", "b"]).data) == 2
        assert client.responses.create(model="m", input="hello").output_text == "You said: hello"
        assert [model.id for model in client.models.list()] == ["sim"]
        assert client.models.retrieve("sim").id == "sim"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("another")
        assert serve.page("/v1/modelssim")[0] == 404
        assert "Unknown URL" in serve.page("/v1/modelssim")[1]["error"]["message"]


async def curl(url: str, body: bytes) -> bytes:
    """The body of the answer."""
    command = ["curl", "-sSN", f"{url}/chat/completions", "--data-binary", "@-"]
    done = await asyncio.to_thread(
        subprocess.run, command, input=body, capture_output=True, check=True
    )
    return done.stdout


async def test_curl_gets_whole_and_streamed_answers_of_two_servers(tmp_path: Path) -> None:
    with (
        fleet_of(2, "--latency", "0.5") as sims,
        Serve(tmp_path, *flags_of(sims)) as serve,
    ):

        def body(number: int, *, is_stream: bool) -> bytes:
            messages = [{"role": "user", "content": f"call {number}"}]
            return json.dumps({"model": "m", "messages": messages, "stream": is_stream}).encode()

        answers = await asyncio.gather(
            *(curl(serve.url, body(number, is_stream=number % 2 == 1)) for number in range(8))
        )
        for number, answered in enumerate(answers):
            if number % 2:
                *events, last, nothing = answered.decode().split("\n\n")
                assert (last, nothing) == ("data: [DONE]", "")
                read = [json.loads(event.removeprefix("data: "))["choices"] for event in events]
                texts = [choices[0]["delta"].get("content") or "" for choices in read if choices]
                assert len(texts) > 2
                text = "".join(texts)
            else:
                text = json.loads(answered)["choices"][0]["message"]["content"]
            assert text == f"You said: call {number}"
        assert all(sim.stats()["received"] for sim in sims)


# Spaces, numbers, escapes, the order of fields, and fields that are unknown.
ODD_FIELDS = b'"odd" : [1.50, 1E2,12345678901234567890],\n "\\u00e9\xc3\xa9":null'
ODD_REQUEST = b'{ %b , "messages":[{"content":"hello","role":"user"}],"model":"m" %b}\n'
ODD_STREAM = b', "stream":true,  "stream_options":{"include_usage" : true}'
ODD_CHOICE = b'"choices":[{"index":0,"finish_reason":"stop", "%b":{"content":"hi"}}]'
ODD_ANSWER = b"{ %b,\t%b }\n" % (ODD_FIELDS, ODD_CHOICE % b"message")
ODD_EVENTS = b": a comment\n\nevent: odd\ndata:{ %b,%b }\n\ndata: [DONE]\n\n" % (
    ODD_FIELDS.replace(b"\n", b""),
    ODD_CHOICE % b"delta",
)


async def test_curl_and_the_server_get_the_bytes_of_each_other(tmp_path: Path) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        is_stream = b"stream" in seen.body
        kind = "text/event-stream" if is_stream else "application/json"
        writer.write(answer(ODD_EVENTS if is_stream else ODD_ANSWER, Content_Type=kind))

    async with RawServer(handle) as server:
        with Serve(tmp_path, "--endpoint", server.base_url) as serve:
            for more, told in ((b"", ODD_ANSWER), (ODD_STREAM, ODD_EVENTS)):
                asked = ODD_REQUEST % (ODD_FIELDS, more)
                assert await curl(serve.url, asked) == told
                assert server.seen[-1].body == asked


PLACE: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}


def test_the_openai_sdk_calls_tools_before_two_servers(tmp_path: Path) -> None:
    with (
        fleet_of(2, "--latency", "0.05") as sims,
        Serve(tmp_path, *flags_of(sims)) as serve,
        ThreadPoolExecutor(8) as threads,
    ):
        client = client_of(serve)
        asked: Any = {"model": "m", "tools": [TOOL], "messages": HELLO}

        def converse(number: int) -> str | None:
            """A call of a tool, whole or as a stream; its result goes back."""
            if number % 2:
                whole = client.chat.completions.create(**asked, tool_choice="required")
            else:
                with client.chat.completions.stream(**asked, tool_choice="required") as stream:
                    whole = stream.get_final_completion()
            [choice] = whole.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.tool_calls is not None
            [call] = choice.message.tool_calls
            assert call.type == "function"
            assert call.function.name == "weather"
            assert set(json.loads(call.function.arguments)) == {"city"}
            answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
            turns: Any = [*HELLO, choice.message.model_dump(exclude_none=True), answer]
            told = client.chat.completions.create(**{**asked, "messages": turns})
            assert told.choices[0].finish_reason == "stop"
            return told.choices[0].message.content

        assert all(threads.map(converse, range(16)))
        received = [sim.stats()["received"] for sim in sims]
        assert sum(received) == 32
        assert min(received) > 0


def test_what_a_server_refuses_reaches_the_client_as_it_was_said(tmp_path: Path) -> None:
    with SimProcess() as sim, Serve(tmp_path, "--endpoint", sim.base_url) as serve:
        with pytest.raises(openai.BadRequestError) as through:
            client_of(serve).chat.completions.create(model="m", messages="no list")  # type: ignore[arg-type]
        with (
            openai.OpenAI(base_url=sim.base_url, api_key="none", max_retries=0) as direct,
            pytest.raises(openai.BadRequestError) as told,
        ):
            direct.chat.completions.create(model="m", messages="no list")  # type: ignore[arg-type]
        assert through.value.response.content == told.value.response.content


def test_models_lead_to_the_endpoints_that_name_them(tmp_path: Path) -> None:
    with fleet_of(3) as (one, two, rest):
        toml = f"""
            [serve]
            endpoint = ["one", "two", "rest"]
            [endpoints.one]
            base_url = "{one.base_url}"
            models = {{ fast = "qwen3-8b" }}
            [endpoints.two]
            base_url = "{two.base_url}"
            models = {{ fast = "Qwen/Qwen3-8B", slow = "big" }}
            [endpoints.rest]
            base_url = "{rest.base_url}"
        """
        with Serve(tmp_path, toml=toml) as serve:
            client = client_of(serve)
            for _ in range(8):
                answer = client.chat.completions.create(model="fast", messages=HELLO)
                assert answer.model in ("qwen3-8b", "Qwen/Qwen3-8B")
                client.chat.completions.create(model="slow", messages=HELLO)
            other = client.chat.completions.create(model="gpt-9", messages=HELLO)
            assert other.model == "gpt-9"
            assert {model.id for model in client.models.list()} == {"sim", "fast", "slow"}
        answered = [sim.stats()["answered"] for sim in (one, two)]
        assert sum(answered) == 16
        assert answered[1] >= 8
        # A call, and the list of models.
        assert rest.stats()["answered"] == 1


def test_a_model_that_no_endpoint_has_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    with SimProcess() as sim:
        toml = f"""
            [endpoints.one]
            base_url = "{sim.base_url}"
            models = {{ fast = "m" }}
        """
        with (
            Serve(tmp_path, toml=toml) as serve,
            pytest.raises(openai.NotFoundError, match="did you mean fast") as told,
        ):
            client_of(serve).chat.completions.create(model="fasst", messages=HELLO)
        assert told.value.code == "model_not_found"


@pytest.mark.slow
def test_a_server_that_dies_under_load_loses_no_call_that_it_had_not_begun_to_answer(
    tmp_path: Path,
) -> None:
    with (
        fleet_of(2, "--latency", "0.05") as (one, two),
        Serve(tmp_path, *flags_of((one, two))) as serve,
    ):
        client = client_of(serve)

        def ask(number: int) -> str | None:
            content = f"call {number}"
            told = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": content}]
            )
            return told.choices[0].message.content

        with ThreadPoolExecutor(16) as threads:
            killer = threading.Timer(0.5, one.kill)
            killer.start()
            answers = list(threads.map(ask, range(400)))
            killer.join()
        assert answers == [f"You said: call {number}" for number in range(400)]
        one.start()
        wait_until(lambda: one.stats()["answered"] > 0 or not ask(0))


def test_hangup_changes_the_endpoints_and_loses_no_call(tmp_path: Path) -> None:
    with fleet_of(2, "--latency", "0.1") as (one, two):

        def toml(*names: str, broken: str = "") -> str:
            return broken + "".join(
                f'[endpoints.{name}]\nbase_url = "{sim.base_url}"\n'
                for name, sim in (("one", one), ("two", two))
                if name in names
            )

        with Serve(tmp_path, toml=toml("one")) as serve:
            client = client_of(serve)
            is_over = threading.Event()

            def ask(_: int) -> int:
                answered = 0
                while not is_over.is_set():
                    client.chat.completions.create(model="m", messages=HELLO)
                    answered += 1
                return answered

            with ThreadPoolExecutor(8) as threads:
                asking = [threads.submit(ask, number) for number in range(8)]
                wait_until(lambda: one.stats()["answered"] > 8)
                assert two.stats()["received"] == 0
                serve.write(toml("one", "two", broken="[serve]\nprot = 1\n"))
                serve.process.send_signal(signal.SIGHUP)
                time.sleep(0.3)
                (tmp_path / "redline.toml").write_bytes(b"\xff\xfe")
                serve.process.send_signal(signal.SIGHUP)
                time.sleep(0.3)
                serve.write(toml("one", "two"))
                serve.process.send_signal(signal.SIGHUP)
                wait_until(lambda: two.stats()["answered"] > 8)
                serve.write(toml("two"))
                serve.process.send_signal(signal.SIGHUP)
                wait_until(lambda: one.stats()["in_flight"] == 0)
                before = one.stats()["received"]
                time.sleep(0.5)
                is_over.set()
                # Raises what a call met.
                answered = sum(one.result() for one in asking)
            assert one.stats()["received"] == before
            assert answered == one.stats()["answered"] + two.stats()["answered"]
            status, err = serve.end()
    assert status == 0
    assert "the settings are unchanged: redline.toml, [serve]: unknown setting: prot" in err
    assert "the settings are unchanged: cannot read redline.toml: it is not UTF-8" in err
    assert "settings read: new endpoints: two" in err
    assert "settings read: removed endpoints: one" in err


@pytest.mark.parametrize("models", ["", 'models = { m = "sim" }'])
def test_calls_wait_on_while_their_only_endpoint_gets_another_name(
    tmp_path: Path, models: str
) -> None:
    with SimProcess("--latency", "0.5") as sim:

        def toml(name: str) -> str:
            return f'[endpoints.{name}]\nbase_url = "{sim.base_url}"\nconcurrency = 2\n{models}\n'

        with Serve(tmp_path, toml=toml("old")) as serve, ThreadPoolExecutor(6) as threads:
            client = client_of(serve)

            def ask(_: int) -> str | None:
                whole = client.chat.completions.create(model="m", messages=HELLO, timeout=8.0)
                return whole.choices[0].message.content

            asking = [threads.submit(ask, number) for number in range(6)]
            wait_until(lambda: sim.stats()["in_flight"] == 2)
            serve.write(toml("new"))
            serve.process.send_signal(signal.SIGHUP)
            assert [one.result() for one in asking] == ["You said: hello"] * 6
            _, err = serve.end()
    assert "settings read: new endpoints: new" in err


def test_an_endpoint_comes_back_though_its_calls_have_not_ended(tmp_path: Path) -> None:
    with fleet_of(3, "--latency", "1.5") as sims:

        def toml(*numbers: int) -> str:
            return "".join(
                f'[endpoints.sim-{number}]\nbase_url = "{sims[number].base_url}"\n'
                for number in numbers
            )

        with Serve(tmp_path, toml=toml(0, 1, 2)) as serve, ThreadPoolExecutor(12) as threads:
            client, is_over = client_of(serve), threading.Event()

            def ask(_: int) -> None:
                while not is_over.is_set():
                    client.chat.completions.create(model="m", messages=HELLO)

            asking = [threads.submit(ask, number) for number in range(12)]
            wait_until(lambda: all(sim.stats()["in_flight"] for sim in sims))
            serve.write(toml(2))
            serve.process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            before = [sim.stats()["received"] for sim in sims]
            serve.write(toml(0, 1, 2))
            serve.process.send_signal(signal.SIGHUP)
            try:
                wait_until(
                    lambda: all(
                        sim.stats()["received"] > count
                        for sim, count in zip(sims, before, strict=True)
                    )
                )
            finally:
                is_over.set()
            for one in asking:
                one.result()


def test_hangup_changes_the_list_of_models_at_once(tmp_path: Path) -> None:
    with SimProcess() as sim:
        toml = f'[endpoints.one]\nbase_url = "{sim.base_url}"\n'
        with Serve(tmp_path, toml=toml) as serve:
            client = client_of(serve)
            assert [model.id for model in client.models.list()] == ["sim"]
            serve.write(toml + 'models = { fast = "m" }\n')
            serve.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "changed endpoints" in str(serve.page("/status")[1]))
            assert [model.id for model in client.models.list()] == ["fast"]


def test_hangup_changes_the_limits_of_a_simulated_provider(tmp_path: Path) -> None:
    head = '[serve]\nendpoint = "sim"\nconcurrency = 50\n'
    with Serve(tmp_path, toml=head) as serve:
        client = client_of(serve)

        def slots() -> int:
            client.chat.completions.create(model="m", messages=HELLO)
            # While its old settings leave, an endpoint may not be listed.
            return sum(int(one["slots"]) for one in serve.page("/status")[1]["endpoints"])

        assert slots() == 50
        serve.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "nothing has changed" in str(serve.page("/status")[1]))
        serve.write(head.replace("50", "3"))
        serve.process.send_signal(signal.SIGHUP)
        wait_until(lambda: slots() == 3)
        serve.write('[serve]\nendpoint = "http://127.0.0.1:9/v1"\nconcurrency = 4\n')
        serve.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "restart" in str(serve.page("/status")[1]))
        assert slots() == 3
        _, err = serve.end()
    assert err.splitlines() == [
        "settings read: nothing has changed",
        "settings read: changed endpoints: sim",
        "settings read: concurrency changed",
        "settings read: endpoint: a change needs a restart",
    ]


def test_a_class_that_comes_only_at_a_start_is_refused_on_sighup(tmp_path: Path) -> None:
    with SimProcess() as sim:
        toml = f"""
            [serve]
            keys = "keys.jsonl"
            [endpoints.one]
            base_url = "{sim.base_url}"
        """
        gold = """
            [serve.classes.gold]
            priority = 5
            [tenants.team]
            class = "gold"
        """
        key = keys_of(tmp_path, "team")["team"]
        with Serve(tmp_path, toml=toml) as serve:
            serve.write(toml + gold)
            serve.process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            client = serve.client(key)
            assert client.chat.completions.create(model="m", messages=HELLO).choices
            status, err = serve.end()
    assert status == 0
    assert (
        "the settings are unchanged: tenant team uses the class gold, which the "
        "running gateway does not have" in err
    )


def test_sigterm_answers_what_is_in_flight_and_refuses_the_rest(tmp_path: Path) -> None:
    with (
        SimProcess("--latency", "1") as sim,
        Serve(tmp_path, "--endpoint", sim.base_url) as serve,
        ThreadPoolExecutor(9) as threads,
    ):
        client = client_of(serve)
        asked = [
            threads.submit(client.chat.completions.create, model="m", messages=HELLO)
            for _ in range(8)
        ]
        parts = urlsplit(serve.url)
        kept = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        kept.request("GET", "/readyz")
        assert kept.getresponse().read() == b'{"status":"ok"}'
        wait_until(lambda: sim.stats()["in_flight"] == 8)
        ending = threads.submit(serve.end)
        time.sleep(0.2)
        kept.request("GET", "/readyz")
        told = kept.getresponse()
        assert (told.status, told.headers["connection"]) == (503, "close")
        told.read()
        kept.close()
        with pytest.raises(ConnectionRefusedError):
            http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10).connect()
        assert all(one.result().choices for one in asked)
        status, err = ending.result()
        assert (status, "for 8 calls in flight" in err) == (0, True)


class Caller(threading.Thread):
    """Asks in a closed loop on one connection, until an answer is the last one of it.

    answers: when each was sent and answered, its status, and whether it was the last one. lost:
    calls that were sent and not answered.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = urlsplit(url).netloc
        self.answers: list[tuple[float, float, int, bool]] = []
        self.lost: list[str] = []

    def run(self) -> None:
        body = json.dumps({"model": "m", "messages": HELLO})
        with closing(http.client.HTTPConnection(self._address, timeout=60)) as connection:
            is_last = False
            while not is_last:
                try:
                    connection.request("POST", "/v1/chat/completions", body)
                except OSError:
                    # Nothing of the call was sent.
                    return
                sent_s = time.monotonic()
                try:
                    told = connection.getresponse()
                    told.read()
                except (OSError, http.client.HTTPException) as error:
                    self.lost.append(repr(error))
                    return
                is_last = told.headers["connection"] == "close"
                self.answers.append((sent_s, time.monotonic(), told.status, is_last))


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_loses_no_call_that_was_sent(tmp_path: Path, workers: int) -> None:
    drain_s = 20.0
    flags = ("--drain", f"{drain_s}s", "--workers", str(workers))
    with (
        SimProcess("--latency", "0.02-1") as sim,
        Serve(tmp_path, "--endpoint", sim.base_url, *flags) as serve,
    ):
        callers = [Caller(serve.url) for _ in range(32)]
        for caller in callers:
            caller.start()
        wait_until(lambda: sim.stats()["answered"] > 60)
        told_s = time.monotonic()
        status, err = serve.end()
        took_s = time.monotonic() - told_s
        for caller in callers:
            caller.join()
        stats = sim.stats()
    assert [lost for caller in callers for lost in caller.lost] == []
    assert (status, "cut off" in err) == (0, False)
    assert took_s < drain_s
    answers = [each for caller in callers for each in caller.answers]
    # What was in flight has its answer; what came later may be told to come back.
    assert {status for sent_s, _, status, _ in answers if sent_s < told_s} == {200}
    assert {status for sent_s, _, status, _ in answers if sent_s >= told_s} <= {200, 503}
    assert [status for _, _, status, _ in answers].count(200) == stats["answered"]
    assert stats["answered"] == stats["received"]
    # It takes the gateway a moment to notice.
    meanwhile = [is_last for _, answered_s, _, is_last in answers if answered_s > told_s + 0.3]
    assert len(meanwhile) > 5
    assert all(meanwhile)
    assert all(caller.answers[-1][-1] for caller in callers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_loses_no_call_on_a_new_connection(tmp_path: Path, workers: int) -> None:
    """What the kernel has taken and the gateway has not yet seen is answered, too."""
    body = json.dumps({"model": "m", "messages": HELLO}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    call = head + b"content-length: %d\r\n\r\n" % len(body) + body
    with SimProcess("--latency", "0.01") as sim, ThreadPoolExecutor(24) as threads:
        # A busy gateway leaves some to the kernel in most of the tries.
        for _ in range(4):
            flags = ("--endpoint", sim.base_url, "--workers", str(workers))
            with Serve(tmp_path, *flags) as serve:
                address = urlsplit(serve.url)

                def ask(host: str, port: int) -> list[str]:
                    lost: list[str] = []
                    while True:
                        with socket.socket() as client:
                            try:
                                client.connect((host, port))
                            except OSError:
                                return lost
                            try:
                                client.sendall(call)
                                if not client.makefile("rb").read().startswith(b"HTTP/1.1 "):
                                    lost.append("no answer")
                            except OSError as error:
                                lost.append(repr(error))

                asking = [
                    threads.submit(ask, address.hostname or "", address.port or 0)
                    for _ in range(24)
                ]
                time.sleep(0.5)
                assert serve.end()[0] == 0
                assert [lost for one in asking for lost in one.result()] == []


async def test_calls_that_are_cut_off_at_the_end_are_counted_as_such(tmp_path: Path) -> None:
    with SimProcess("--latency", "30") as slow, SimProcess("--per-token", "0.2") as streaming:
        settings = GatewaySettings(
            endpoints=(
                Endpoint(base_url=slow.base_url, models={"slow": "m"}),
                Endpoint(base_url=streaming.base_url, models={"streaming": "m"}),
            ),
            port=0,
            drain_s=0.5,
        )
        async with gateway_of(settings) as served:
            url = served.gateway.base_url
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                whole = asyncio.create_task(
                    client.chat.completions.create(model="slow", messages=HELLO)
                )
                long: Any = [{"role": "user", "content": "word " * 100}]
                stream = await client.chat.completions.create(
                    model="streaming", messages=long, stream=True
                )
                await anext(stream)
                closing = asyncio.create_task(served.gateway.aclose())
                with pytest.raises(openai.InternalServerError) as caught:
                    await whole
                assert caught.value.status_code == 503
                with pytest.raises(openai.APIError):
                    async for _ in stream:
                        pass
                await closing
        found = {(model, kind): n for (model, _, kind), n in served.gateway.totals.answers.items()}
        assert found == {("slow", "cut"): 1, ("streaming", "cut"): 1}
        assert {one.calls for one in served.gateway.totals.tenants.values()} == {2}


def test_the_gateway_says_how_many_calls_it_has_cut_off(tmp_path: Path) -> None:
    with (
        SimProcess("--latency", "30") as sim,
        Serve(tmp_path, "--endpoint", sim.base_url, "--drain", "1s") as serve,
    ):
        client = client_of(serve)
        with ThreadPoolExecutor(2) as threads:
            calls = [
                threads.submit(client.chat.completions.create, model="m", messages=HELLO)
                for _ in range(2)
            ]
            wait_until(lambda: sim.stats()["in_flight"] == 2)
            status, err = serve.end()
            assert all(isinstance(call.exception(), openai.InternalServerError) for call in calls)
        assert (status, err) == (
            0,
            "waiting up to 1 s for 2 calls in flight\n2 calls were cut off after 1 s\n",
        )


def test_pages_say_whether_it_lives_and_whether_it_can_answer(tmp_path: Path) -> None:
    with SimProcess() as sim, Serve(tmp_path, "--endpoint", sim.base_url) as serve:
        assert serve.page("/healthz") == (200, {"status": "ok"})
        assert serve.page("/readyz")[0] == 200
        sim.kill()
        with pytest.raises(openai.InternalServerError):
            client_of(serve, timeout=30).chat.completions.create(model="m", messages=HELLO)
        status, body = serve.page("/readyz")
        assert (status, body["error"]["code"]) == (503, "no_endpoint")
        assert serve.page("/healthz")[0] == 200
        sim.start()
        # If a load balancer waits for this page before its next call, no call comes.
        wait_until(lambda: serve.page("/readyz")[0] == 200)


def test_https_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
        *("-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "chain.pem"),
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    flags = ("--tls-cert", "chain.pem", "--tls-key", "key.pem")
    with SimProcess() as sim, Serve(tmp_path, "--endpoint", sim.base_url, *flags) as serve:
        assert serve.url.startswith("https://127.0.0.1:")
        done = subprocess.run(
            ["curl", "-sk", f"{serve.url}/models"], capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["data"][0]["id"] == "sim"


def test_a_function_of_a_list_is_served_and_one_bad_item_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(
        "def one(text):\n"
        "    return ValueError('too long') if len(text) > 20 else [float(len(text)), 0.5]\n"
        "def embed(texts):\n"
        "    return [one(text) for text in texts]\n",
        "utf-8",
    )
    flags = ("--function", "lengths:embed", "--max-wait", "200ms", "--max-batch-size", "32")
    with Serve(tmp_path, *flags) as serve, ThreadPoolExecutor(32) as threads:
        client = client_of(serve)

        def embed(number: int) -> list[float] | None:
            text = "x" * (99 if number == 7 else number % 20)
            if number == 7:
                with pytest.raises(openai.BadRequestError, match="too long"):
                    client.embeddings.create(model="embed", input=text)
                return None
            return client.embeddings.create(model="embed", input=text).data[0].embedding

        found = list(threads.map(embed, range(32)))
        assert found == [None if n == 7 else [float(n % 20), 0.5] for n in range(32)]
        assert [model.id for model in client.models.list()] == ["embed"]
        with urllib.request.urlopen(serve.url.removesuffix("/v1") + "/metrics") as page:
            metrics = page.read().decode()
        counts = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[:1] != "#")
        assert float(counts['redline_batch_items_total{model="embed"}']) == 32
        assert float(counts['redline_batches_total{model="embed"}']) < 16
        assert serve.page("/readyz")[0] == 200


def test_a_full_queue_refuses_with_the_time_to_come_back_and_the_rest_is_answered(
    tmp_path: Path,
) -> None:
    with SimProcess("--latency", "0.2") as sim:
        toml = f"""
            [serve]
            concurrency = 2
            [serve.classes.normal]
            most_waiting = 8
            most_waiting_each = 8
            [endpoints.one]
            base_url = "{sim.base_url}"
        """
        with Serve(tmp_path, toml=toml) as serve, ThreadPoolExecutor(40) as threads:
            client = client_of(serve)

            def ask(_: int) -> int:
                try:
                    client.chat.completions.create(model="m", messages=HELLO)
                except openai.RateLimitError as error:
                    return int(error.response.headers["retry-after"])
                return 0

            waits = list(threads.map(ask, range(40)))
            refused = [wait for wait in waits if wait]
            # 2 in flight and 8 waiting at a time; those that come later find room again.
            assert 10 <= len(waits) - len(refused) <= 39
            assert all(1 <= wait <= 10 for wait in refused)
            _, state = serve.page("/status")
            [normal] = [one for one in state["classes"] if one["name"] == "normal"]
            assert normal["refused"] == len(refused)
            assert (normal["running"], normal["waiting"]) == (0, 0)
        assert sim.stats()["received"] == len(waits) - len(refused)


def test_a_client_that_leaves_ends_its_call_and_a_stream_that_breaks_says_so(
    tmp_path: Path,
) -> None:
    with (
        SimProcess("--latency", "2") as slow,
        SimProcess("--faults", "half=1") as broken,
        Serve(tmp_path, "--endpoint", slow.base_url) as serve,
        Serve(tmp_path, "--endpoint", broken.base_url, "--state", "other") as other,
    ):
        with pytest.raises(openai.APITimeoutError):
            client_of(serve, timeout=0.5).chat.completions.create(model="m", messages=HELLO)
        wait_until(lambda: slow.stats()["abandoned"] == 1)
        command = ["curl", "-sN", f"{other.url}/chat/completions", "-d"]
        body = json.dumps({"model": "m", "messages": HELLO, "stream": True})
        done = subprocess.run([*command, body], capture_output=True, text=True, check=False)
        # 18: the body has ended before it was whole.
        assert done.returncode == 18
        events = [line for line in done.stdout.splitlines() if line.startswith("data: ")]
        assert "error" in json.loads(events[-1].removeprefix("data: "))
        assert "[DONE]" not in done.stdout


async def test_a_call_whose_client_leaves_before_it_is_sent_costs_nothing() -> None:
    with SimProcess("--latency", "1") as sim:
        settings = GatewaySettings(
            endpoints=(Endpoint(base_url=sim.base_url, limits=Limits(concurrency=1)),),
            port=0,
            tenants={DEFAULT_TENANT: TenantSettings(requests=(Rate(2, 3600.0),))},
        )
        async with (
            gateway_of(settings) as served,
            openai.AsyncOpenAI(
                base_url=served.gateway.base_url, api_key="none", max_retries=0
            ) as client,
        ):

            def ask() -> asyncio.Task[Any]:
                return asyncio.create_task(
                    client.chat.completions.create(model="m", messages=HELLO)
                )

            first = ask()
            await until(lambda: served.gateway.in_flight == 1)
            waiting = ask()
            await until(lambda: served.gateway.in_flight == 2)
            waiting.cancel()
            await until(lambda: served.gateway.in_flight == 1)
            # Two may be sent in an hour.
            assert (await ask()).choices
            assert (await first).choices
            with pytest.raises(openai.RateLimitError):
                await ask()
        assert sim.stats()["received"] == 2


async def test_a_call_that_the_gateway_refuses_itself_costs_nothing() -> None:
    with SimProcess("--latency", "1") as sim:
        settings = GatewaySettings(
            endpoints=(Endpoint(base_url=sim.base_url, limits=Limits(concurrency=1)),),
            port=0,
            classes=(ClassSettings(name="normal", priority=0, longest_wait_s=0.1),),
            tenants={DEFAULT_TENANT: TenantSettings(requests=(Rate(2, 3600.0),))},
        )
        async with (
            gateway_of(settings) as served,
            openai.AsyncOpenAI(
                base_url=served.gateway.base_url, api_key="none", max_retries=0
            ) as client,
        ):
            create = client.chat.completions.create
            first = asyncio.create_task(create(model="m", messages=HELLO))
            await until(lambda: served.gateway.in_flight == 1)
            with pytest.raises(openai.InternalServerError, match="has waited"):
                await create(model="m", messages=HELLO)
            assert (await first).choices
            # Two may be sent in an hour.
            assert (await create(model="m", messages=HELLO)).choices
            with pytest.raises(openai.RateLimitError):
                await create(model="m", messages=HELLO)


async def test_a_call_that_is_too_large_for_its_provider_is_not_repeated() -> None:
    """OpenAI states it with 429, which its SDK repeats unless it is told not to."""
    body = {"error": {"code": "rate_limit_exceeded", "message": TOO_LARGE, "type": "tokens"}}

    async def handle(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body, 429))

    async with RawServer(handle) as server:
        endpoint = Endpoint(base_url=server.base_url, proxy="")
        async with gateway_of(GatewaySettings(endpoints=(endpoint,), port=0)) as served:
            url = served.gateway.base_url
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=2) as client:
                with pytest.raises(openai.RateLimitError, match="Request too large"):
                    await client.chat.completions.create(model="m", messages=HELLO)
    assert len(server.seen) == 1


def test_a_server_that_is_stopped_dead_under_load_loses_no_call(tmp_path: Path) -> None:
    with (
        fleet_of(2, "--latency", "0.05") as (one, two),
        Serve(tmp_path, *flags_of((one, two)), "--first-byte-timeout", "3s") as serve,
        ThreadPoolExecutor(16) as threads,
    ):
        client = client_of(serve)

        def ask(number: int) -> str | None:
            told = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"call {number}"}]
            )
            return told.choices[0].message.content

        stopper = threading.Timer(0.3, one.stop)
        stopper.start()
        answers = list(threads.map(ask, range(300)))
        stopper.join()
        assert answers == [f"You said: call {number}" for number in range(300)]
        # It takes connections, and is left alone all the same.
        _, state = serve.page("/status")
        stopped = next(each for each in state["endpoints"] if str(one.port) in each["name"])
        assert stopped["state"] == "degraded"
        one.go_on()
        wait_until(lambda: ask(0) is not None and one.stats()["in_flight"] == 0)


# Words of which the simulator streams one in each fifth of a second.
LONG = " ".join(f"word-{number}" for number in range(15))
TIMEOUT_S, FIRST_BYTE_S = 8.0, 3.0
# How late a busy machine may notice it.
LATE_S = 3.0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_stream_ends_with_an_error_in_time_once_its_server_is_dead(
    tmp_path: Path, end: str
) -> None:
    """And calls of that server whose answers had not begun are answered by the other one."""
    times = ("--timeout", f"{TIMEOUT_S}s", "--first-byte-timeout", f"{FIRST_BYTE_S}s")
    with (
        fleet_of(2, "--latency", "0.2", "--per-token", "0.2") as (one, two),
        Serve(tmp_path, *flags_of((one, two)), *times) as serve,
        ThreadPoolExecutor(32) as threads,
    ):
        client = client_of(serve, timeout=60)
        messages: Any = [{"role": "user", "content": LONG}]
        have_begun, are_over = threading.Semaphore(0), threading.Event()

        def stream() -> tuple[str, float]:
            """Its text, or that of its error, and how long it took."""
            began_s, text = time.monotonic(), ""
            try:
                for event in client.chat.completions.create(
                    model="m", messages=messages, stream=True
                ):
                    if event.choices and (more := event.choices[0].delta.content):
                        have_begun.release() if not text else None
                        text += more
            except openai.APIError as error:
                # The SDK raises it for an event with an error, and another one for a cut body.
                text = f"error: {error.message}"
            return text, time.monotonic() - began_s

        def ask(number: int) -> list[str | None]:
            found = []
            while not are_over.is_set():
                content = f"call {number}"
                told = client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": content}]
                )
                assert told.choices[0].message.content == f"You said: {content}"
                found.append(told.choices[0].message.content)
            return found

        calls = [threads.submit(ask, number) for number in range(8)]
        streams = [threads.submit(stream) for _ in range(12)]
        for _ in streams:
            assert have_begun.acquire(timeout=30)
        getattr(one, end)()
        ended = [each.result() for each in streams]
        are_over.set()
        assert all(len(each.result()) > 1 for each in calls)
        broken = [(text, took_s) for text, took_s in ended if text.startswith("error: ")]
        whole = [text for text, _ in ended if not text.startswith("error: ")]
        assert broken
        assert set(whole) == {f"You said: {LONG}"}
        for text, took_s in broken:
            assert took_s < TIMEOUT_S + LATE_S, broken
            assert any(why in text for why in (f"{TIMEOUT_S:g} s", "connection")), text


@pytest.mark.parametrize(("fault", "status"), [("500=1", 500), ("429=1", 429)])
def test_a_call_fails_over_twice_at_most_and_then_gets_the_servers_own_answer(
    tmp_path: Path, fault: str, status: int
) -> None:
    with fleet_of(5, "--faults", fault) as sims, Serve(tmp_path, *flags_of(sims)) as serve:
        body = json.dumps({"model": "m", "messages": HELLO}).encode()

        def answer(url: str) -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(f"{url}/chat/completions", body, timeout=30) as found:
                    return found.status, json.load(found)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        own = answer(sims[0].base_url)
        before = sum(sim.stats()["received"] for sim in sims)
        assert answer(serve.url) == own
        assert own[0] == status
        assert sum(sim.stats()["received"] for sim in sims) == before + 3
        # Each of them was another server.
        assert max(sim.stats()["received"] for sim in sims[1:]) == 1


async def test_calls_pass_by_an_endpoint_that_parks_as_it_is_asked_for_its_models() -> None:
    """The list of models is asked of each endpoint, past the pool that shares out calls."""
    asked = list[str]()

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target.endswith("/models"):
            asked.append(seen.headers["host"])
            is_first = seen.headers["host"] == asked[0]
            writer.write(answer({"data": []}, **({"status": 429} if is_first else {}), **WAIT))
        else:
            writer.write(answer(chat("yes")))

    async with RawServer(handle) as one, RawServer(handle) as two:
        limits = Limits(requests="1000/1s", concurrency=64)
        endpoints = tuple(
            Endpoint(base_url=server.base_url, name=name, limits=limits, proxy="")
            for name, server in (("one", one), ("two", two))
        )
        async with gateway_of(GatewaySettings(endpoints=endpoints, port=0)) as served:
            url = served.gateway.base_url
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

                async def ask(_: int) -> float:
                    begun_s = time.monotonic()
                    await client.chat.completions.create(model="m", messages=HELLO)
                    return time.monotonic() - begun_s

                # Both endpoints are known to answer, and are not looked at for each call any more.
                for _ in range(6):
                    await asyncio.gather(*map(ask, range(8)))
                    await asyncio.sleep(0.15)
                assert [model async for model in client.models.list()] == []
                took_s = await asyncio.gather(*map(ask, range(20)))
    assert len(asked) == 2
    assert max(took_s) < float(WAIT["Retry_After"]) / 2


def test_an_endpoint_that_asked_to_wait_is_parked_also_for_prometheus(tmp_path: Path) -> None:
    with SimProcess("--requests", "1/60s") as sim, Serve(tmp_path, *flags_of([sim])) as serve:
        client = client_of(serve)
        client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HELLO)
        (endpoint,) = serve.page("/status")[1]["endpoints"]
        with urllib.request.urlopen(serve.url.removesuffix("/v1") + "/metrics") as page:
            lines = page.read().decode().splitlines()
    assert endpoint["state"] == "parked"
    states = [line for line in lines if line.startswith("redline_endpoint_state{")]
    assert [line for line in states if not line.endswith(" 0.0")] == [
        f'redline_endpoint_state{{endpoint="{endpoint["name"]}",kind="parked"}} 1.0'
    ]


FEWER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("chat/completions", {"messages": HELLO, "n": 2}, chat("only one")),
    ("embeddings", {"input": ["a", "b"]}, {"data": [{"index": 0, "embedding": [0.5]}]}),
]


@pytest.mark.parametrize("name", ["m", "another"])
@pytest.mark.parametrize(("path", "asked", "told"), FEWER)
async def test_fewer_answers_than_were_asked_for_are_the_endpoints_to_give(
    name: str, path: str, asked: dict[str, Any], told: dict[str, Any]
) -> None:
    async def handle(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(told))

    async with RawServer(handle) as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(base_url=server.base_url, models={name: "m"}, proxy="")
        async with (
            gateway_of(GatewaySettings(endpoints=(endpoint,), port=0)) as served,
            session.post(
                f"{served.gateway.base_url}/{path}", json={"model": name, **asked}
            ) as reply,
        ):
            assert (reply.status, await reply.json(content_type=None)) == (200, told)
    assert len(server.seen) == 1


@pytest.mark.parametrize("stream", [True, "true", 1, "Yes"])
async def test_a_stream_is_one_however_its_client_asks_for_it(stream: Any) -> None:
    events = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    events += b"data: [DONE]\n\n"

    async def handle(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(events, Content_Type="text/event-stream"))

    async with RawServer(handle) as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(base_url=server.base_url, proxy="")
        body = {"model": "m", "messages": HELLO, "stream": stream}
        async with (
            gateway_of(GatewaySettings(endpoints=(endpoint,), port=0)) as served,
            session.post(f"{served.gateway.base_url}/chat/completions", json=body) as reply,
        ):
            assert (reply.status, await reply.read()) == (200, events)


async def test_a_deferred_response_is_refused_before_it_is_sent() -> None:
    async def handle(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer({"id": "r", "status": "queued", "output": []}))

    async with RawServer(handle) as server:
        endpoint = Endpoint(base_url=server.base_url, proxy="")
        async with gateway_of(GatewaySettings(endpoints=(endpoint,), port=0)) as served:
            url = served.gateway.base_url
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                with pytest.raises(openai.BadRequestError, match="`background`") as told:
                    await client.responses.create(model="m", input="x", background=True)
    assert told.value.param == "background"
    assert not server.seen


FAILED = {
    "type": "response.failed",
    "response": {
        "status": "failed",
        "output": [],
        "error": {"code": "server_error", "message": "upstream refused secret-key"},
    },
}


async def streamed_response(*answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of a response through a gateway, before a server for each answer.

    answers: the events of the first call, at whichever server, those of the second, ... If the SDK
    raises an error, it comes last.
    """
    left = [
        b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in answer)
        for answer in answers
    ]

    async def handle(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(left.pop(0), Content_Type="text/event-stream"))

    events: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(RawServer(handle)) for _ in answers]
        endpoints = tuple(
            Endpoint(base_url=server.base_url, api_key="secret-key", proxy="") for server in servers
        )
        settings = GatewaySettings(endpoints=endpoints, port=0)
        served = await stack.enter_async_context(gateway_of(settings))
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=served.gateway.base_url, api_key="none", max_retries=0)
        )
        try:
            async for event in await client.responses.create(model="m", input="x", stream=True):
                events += [event.to_dict()]
        except openai.APIError as error:
            events.append({"type": type(error).__name__, "message": error.message})
    return events


async def test_a_response_that_fails_within_its_stream_is_one_error_without_the_key() -> None:
    begun = {"type": "response.created", "response": {"status": "in_progress", "output": []}}
    first, error = await streamed_response([begun, FAILED])
    assert (first["type"], error["type"]) == ("response.created", "APIError")
    assert "upstream refused <key>" in error["message"]


async def test_a_response_that_fails_at_once_fails_over() -> None:
    whole = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    (event,) = await streamed_response([FAILED], [whole])
    assert event["type"] == "response.completed"
    (error,) = await streamed_response([FAILED])
    assert error["type"] == "InternalServerError"


class Loading(EmbeddedSim):
    """Takes a while to start, in which the process gets a SIGHUP. error: why it does not start."""

    def __init__(self, error: ConfigError | None = None) -> None:
        self.error = error

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        yield "http://127.0.0.1:9/v1"


@pytest.fixture
def deadly() -> Iterator[list[int]]:
    """The SIGHUPs that would have ended the process."""
    found = list[int]()
    before = signal.signal(signal.SIGHUP, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_while_a_gateway_starts_has_it_read_its_settings_once_it_serves(
    deadly: list[int],
) -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1")
    settings = GatewaySettings(endpoints=(endpoint,), embedded=Loading(), port=0)
    notes = list[str]()
    serve_gateway(
        settings,
        reread=lambda: settings,
        on_url=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        on_note=notes.append,
    )
    assert not deadly
    assert notes == ["settings read: nothing has changed"]


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_hangup_after_a_key_was_revoked_says_that_keys_are_others(
    tmp_path: Path, *, is_followed: bool
) -> None:
    path = tmp_path / "keys.jsonl"
    key, _ = add_key(path, "acme")
    add_key(path, "lab")
    settings = GatewaySettings(
        endpoints=(Endpoint(base_url="http://127.0.0.1:9/v1"),), port=0, keys=path
    )
    notes = list[str]()

    def hang_up(_: str) -> None:
        revoke_key(path, key.id)

        def tell() -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

        # Changes of the file are also noticed without a signal, within a second.
        asyncio.get_running_loop().call_later(2.5 if is_followed else 0.0, tell)

    serve_gateway(settings, reread=lambda: settings, on_url=hang_up, on_note=notes.append)
    assert notes == ["settings read: keys changed (1 active)"]


def test_a_damaged_key_file_is_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    add_key(path, "acme")
    settings = GatewaySettings(
        endpoints=(Endpoint(base_url="http://127.0.0.1:9/v1"),), port=0, keys=path
    )
    notes = list[str]()

    def damage(_: str) -> None:
        path.write_text('{"oops"\n')
        # The gateway has looked at the file twice by then.
        asyncio.get_running_loop().call_later(2.5, os.kill, os.getpid(), signal.SIGTERM)

    serve_gateway(settings, reread=lambda: settings, on_url=damage, on_note=notes.append)
    assert len(notes) == 1
    assert notes[0].startswith(f"the keys are unchanged: {path}: line 1 is not a key")


async def test_keys_do_not_change_if_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    key, _ = add_key(path, "acme")
    add_key(path, "lab")
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1")
    settings = GatewaySettings(endpoints=(endpoint,), port=0, keys=path)
    async with gateway_of(settings) as served:
        revoke_key(path, key.id)
        with pytest.raises(ConfigError):
            await served.change(replace(settings, endpoints=(endpoint, endpoint)))
        assert served.gateway.keyring.active == 2
        assert await served.change(settings) == ["keys changed (1 active)"]
        assert served.gateway.keyring.active == 1


def test_a_hangup_while_the_server_of_several_workers_starts_does_not_end_it(
    deadly: list[int],
) -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1")
    embedded = Loading(ConfigError("it cannot start"))
    settings = GatewaySettings(endpoints=(endpoint,), embedded=embedded, port=0, workers=2)
    with pytest.raises(ConfigError, match="it cannot start"):
        serve_workers(settings, {}, on_url=print, on_note=print)
    assert not deadly
