"""The engine as its users have it: a server that the SDK asks, and a run with a model inside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import openai
import pytest

pytest.importorskip("torch")

import redline
from crash.killing import COMMAND, clean_environ
from real.test_hostile_clients import attack, late, port_of
from redline import EngineSettings, LocalEngine
from redline.calls import Call, Health, Request
from redline.cli import main as command
from redline.engine.api import gpu_use
from redline.engine.model import Runner, SlotCache
from redline.engine.step import Core
from redline.errors import ConfigError, NoEndpoint, Rejected, TimedOut
from redline.serve import Serving, serving
from redline.timeline import NAME, ServerUse, merged_use, read_timeline
from support import server_fuzzing
from support.engine_models import (
    VOCABULARY,
    Continuation,
    continuations,
    load,
    random_model,
    random_prompts,
    tokenizer_of,
)
from support.mutating import cut

# A start imports torch and transformers, which takes minutes on a busy machine.
LIMIT_S = 240.0
# For as long as this a client of the hub waits for an answer.
HUB_S = 60.0
pytestmark = [pytest.mark.real, pytest.mark.timeout(2 * LIMIT_S)]
NEW = 24
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": NEW, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def folder(models_folder: Path) -> Path:
    return random_model("llama", models_folder)


@pytest.fixture(scope="module")
def said(folder: Path) -> list[Continuation]:
    return continuations(load(folder), random_prompts(10, most=40), NEW)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main

    asyncio.run(bounded())


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[tuple[Serving, Any]]:
    """An engine, and a client of the SDK for it that asks once."""
    async with serving(EngineSettings(model=str(folder), **settings)) as found:
        client = openai.AsyncOpenAI(
            base_url=found.front.base_url, api_key="none", max_retries=0, timeout=LIMIT_S
        )
        async with client:
            yield found, client


def text_of(folder: Path, tokens: list[int]) -> str:
    text: str = tokenizer_of(folder).decode(tokens, skip_special_tokens=True)
    return text


def figure(serving: Serving, *words: str) -> float:
    """The metric whose line has these words."""
    lines = str(serving.engine.metrics).splitlines()
    (line,) = [one for one in lines if one[0] != "#" and all(word in one for word in words)]
    return float(line.rpartition(" ")[2])


async def all_free(serving: Serving) -> None:
    """Returns once no sequence is left, of which the engine's thread tells nobody."""
    while figure(serving, "requests_running") or figure(serving, "requests_waiting"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_whole_and_streamed_answers_are_those_of_generate(
    folder: Path, said: list[Continuation]
) -> None:
    async def whole(client: Any, one: Continuation) -> str:
        answer = await client.completions.create(model="m", prompt=list(one.prompt), **GREEDY)
        assert answer.usage.prompt_tokens == len(one.prompt)
        assert answer.usage.completion_tokens == NEW
        assert answer.choices[0].finish_reason == "length"
        text: str = answer.choices[0].text
        return text

    async def streamed(client: Any, one: Continuation) -> str:
        parts, usage = [], None
        async for event in await client.completions.create(
            model="m",
            prompt=list(one.prompt),
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        ):
            parts += [choice.text for choice in event.choices]
            usage = event.usage or usage
        assert usage.completion_tokens == NEW
        return "".join(parts)

    async def main() -> None:
        async with served(folder, max_batch_size=4) as (found, client):
            asks = [ask(client, one) for one in said for ask in (whole, streamed)]
            answers = await asyncio.gather(*asks)
            expected = [text_of(folder, one.tokens) for one in said for _ in range(2)]
            assert answers == expected
            await all_free(found)

    run(main())


def test_a_chat_has_as_many_choices_as_asked_and_a_seed_repeats_them(folder: Path) -> None:
    ask: dict[str, Any] = {
        **{"model": "m", "n": 3, "seed": 5, "max_tokens": 12, "logprobs": True},
        "messages": [{"role": "user", "content": "hello"}],
    }

    async def main() -> None:
        async with served(folder) as (_, client):
            first = await client.chat.completions.create(**ask)
            again = await client.chat.completions.create(**ask)
            other = await client.chat.completions.create(**ask | {"seed": 6})
        texts = [choice.message.content for choice in first.choices]
        assert [choice.message.content for choice in again.choices] == texts
        assert len({*texts, *(choice.message.content for choice in other.choices)}) == 6
        assert first.usage.completion_tokens == sum(
            len(choice.logprobs.content) + (choice.finish_reason == "stop")
            for choice in first.choices
        )

    run(main())


def test_clients_that_leave_give_their_slots_back(folder: Path, said: list[Continuation]) -> None:
    async def leave(found: Serving, client: Any, one: Continuation, after: int) -> None:
        stream = await client.completions.create(
            model="m", prompt=list(one.prompt), stream=True, max_tokens=400, **IGNORE
        )
        async for _ in stream:
            after -= 1
            if after <= 0:
                break
        await stream.close()

    async def main() -> None:
        chance = random.Random(1)
        async with served(folder, max_batch_size=3) as (found, client):
            leavers = [leave(found, client, one, chance.randint(1, 20)) for one in said * 2]
            stays = client.completions.create(model="m", prompt=list(said[0].prompt), **GREEDY)
            answer, *_ = await asyncio.gather(stays, *leavers)
            assert answer.choices[0].text == text_of(folder, said[0].tokens)
            await all_free(found)
            assert figure(found, "request_success", "abort") >= len(said)

    run(main())


IGNORE: dict[str, Any] = {"extra_body": {"ignore_eos": True}}


@pytest.mark.parametrize(
    ("more", "words", "param"),
    [
        ({"prompt": list(range(2, 200)) * 3}, "at most 511", "prompt"),
        ({"max_tokens": 5000}, "max_model_len", "prompt"),
        ({"temperature": 3}, "`temperature` is 3", "temperature"),
        ({"extra_body": {"top_q": 1}}, "unknown parameter `top_q`", "top_q"),
        ({"n": 40}, "asks for 40 answers", None),
        ({"logit_bias": {"100000": 1}}, "names token 100000", "logit_bias"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    folder: Path, more: dict[str, Any], words: str, param: str | None
) -> None:
    async def main() -> None:
        async with served(folder, max_waiting=32) as (found, client):
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                await client.completions.create(**{"model": "m", "prompt": "a", **more})
            assert caught.value.param == param
            await all_free(found)

    run(main())


@pytest.mark.slow
def test_a_full_queue_says_so_and_what_is_in_it_is_answered(
    folder: Path, said: list[Continuation]
) -> None:
    async def main() -> None:
        async with served(folder, max_batch_size=1, max_waiting=2) as (_, client):
            asks = [
                client.completions.create(model="m", prompt=list(said[0].prompt), **GREEDY)
                for _ in range(12)
            ]
            found_ones = await asyncio.gather(*asks, return_exceptions=True)
            answers = [one for one in found_ones if not isinstance(one, BaseException)]
            refused = [one for one in found_ones if isinstance(one, openai.InternalServerError)]
            assert len(answers) + len(refused) == 12
            assert len(answers) >= 3
            assert refused
            assert all(one.status_code == 503 for one in refused)
            assert {one.choices[0].text for one in answers} == {text_of(folder, said[0].tokens)}

    run(main())


def test_an_engine_that_fails_tells_everybody(
    folder: Path, said: list[Continuation], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with served(folder, max_batch_size=2) as (found, client):
            compute, steps = Runner.submit, itertools.count()

            def fail(runner: Runner, work: Any) -> None:
                if next(steps) >= 5:
                    raise RuntimeError("the memory is gone")
                compute(runner, work)

            monkeypatch.setattr(Runner, "submit", fail)
            asks = [
                client.completions.create(model="m", prompt=list(one.prompt), **GREEDY)
                for one in said
            ]
            for answer in await asyncio.gather(*asks, return_exceptions=True):
                assert isinstance(answer, openai.InternalServerError)
                assert "the engine has failed: RuntimeError: the memory is gone" in str(answer)
            await found.engine.thread.has_failed()
            with pytest.raises(openai.InternalServerError, match="the memory is gone"):
                await client.completions.create(model="m", prompt="a")
            assert found.engine.backend.load(0.0).state is Health.GONE
            health = client.base_url.copy_with(path="/health")
            with pytest.raises(openai.InternalServerError, match="The backend is down"):
                await client.get(str(health), cast_to=object)

    run(main())


def test_a_call_ends_at_its_deadline_and_its_slot_is_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with served(folder, max_batch_size=1) as (found, _):
            compute = Runner.submit

            def slow(runner: Runner, work: Any) -> None:
                time.sleep(0.02)
                compute(runner, work)

            monkeypatch.setattr(Runner, "submit", slow)
            body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True}
            call = Call(deadline_s=time.monotonic() + 0.2)
            request = Request(url="/v1/completions", body=body)
            outcome = await found.engine.backend.send(request, call)
            assert isinstance(outcome.error, TimedOut)
            await all_free(found)
            assert figure(found, "generation_tokens") < 100
            refused = await found.engine.backend.send(Request(url="/v1/x", body=body), Call())
            assert isinstance(refused.error, Rejected)

    run(main())


def test_a_run_with_a_model_inside(folder: Path, said: list[Continuation], tmp_path: Path) -> None:
    rows = [{"url": "/v1/completions", "body": body_of(one), "custom_id": str(number)}
            for number, one in enumerate(said)]  # fmt: skip
    engine = LocalEngine(EngineSettings(model=str(folder), max_batch_size=4))
    output = tmp_path / "out.jsonl"
    report = redline.run(rows, endpoint=engine, output=str(output))
    assert report.succeeded == len(said)
    lines = {line["custom_id"]: line for line in map(json.loads, output.read_text().splitlines())}
    tokenizer = tokenizer_of(folder)
    for number, one in enumerate(said):
        line = lines[str(number)]
        assert line["output"] == tokenizer.decode(one.tokens, skip_special_tokens=True)
        assert line["endpoint"] == f"engine:{folder}"
        assert line["finish_reason"] == "length"
    os.utime(folder / "model.safetensors")  # another identity for a cache, and no other endpoint
    assert redline.run(rows, endpoint=engine, output=str(output)).skipped == len(said)


def caches() -> int:
    """How many caches of keys and values there are in this process."""
    gc.collect()
    return sum(isinstance(one, SlotCache) for one in gc.get_objects())


def test_a_run_with_a_model_inside_records_how_it_was_used(
    folder: Path, said: list[Continuation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.engine.api.gpu_use", lambda: 0.75)
    before = caches()
    engine = LocalEngine(EngineSettings(model=str(folder), max_batch_size=4))
    assert engine.use() == ServerUse()
    rows = [{"url": "/v1/completions", "body": body_of(one)} for one in said]
    report = redline.run(rows, endpoint=engine, output=str(tmp_path / "out.jsonl"))
    use = engine.use()
    assert report.succeeded == len(said)
    assert 0 < use.batch_rows <= use.batch_places
    assert use.batch_places % 4 == 0
    assert use.gpu_busy == 0.75 * use.gpu_reads > 0
    windows = read_timeline(tmp_path / "out.redline" / NAME).runs[-1].windows
    assert caches() <= before
    # The first reading is before the run.
    assert merged_use(one.server for one in windows).batch_places == use.batch_places
    assert merged_use(one.server for one in windows).batch_rows == use.batch_rows


def test_the_use_of_a_gpu_is_a_share_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})

    def refused() -> int:
        raise nvml.NVMLError

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_use() is None
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.utilization", lambda: 60)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_use() is None
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_use() == pytest.approx(0.6)
    monkeypatch.setattr("torch.cuda.utilization", refused)
    assert gpu_use() is None


def body_of(one: Continuation) -> dict[str, Any]:
    return {"prompt": list(one.prompt), "temperature": 0, "max_tokens": NEW, "ignore_eos": True}


def test_a_cache_keeps_models_apart(models_folder: Path, tmp_path: Path) -> None:
    """By what they are: in one folder today and another one tomorrow, or trained anew."""
    model = tmp_path / "one" / "model"
    shutil.copytree(random_model("llama", models_folder), model)
    # What is cut at its length is not kept.
    ends = {"stop_token_ids": list(range(256, VOCABULARY)), "ignore_eos": True}
    body = {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 200, **ends}
    rows = [{"url": "/v1/completions", "body": body}]

    def cached(place: str, **more: str) -> tuple[int, int]:
        engine = LocalEngine(EngineSettings(model=place, **more))
        report = redline.run(rows, endpoint=engine, cache=str(tmp_path / "kept"))
        assert report.cache is not None
        return report.succeeded, report.cache.hits

    assert [cached(str(model)), cached(str(model))] == [(1, 0), (1, 1)]
    with contextlib.chdir(model):
        assert cached(".") == (1, 1)
    assert cached(str(model), dtype="bfloat16") == (1, 0)
    shutil.copytree(random_model("qwen3", models_folder), model, dirs_exist_ok=True)
    assert cached(str(model)) == (1, 0)


def test_a_folder_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tiny" / "deep").mkdir(parents=True)
    with contextlib.chdir(tmp_path / "tiny" / "deep"):
        for model, name in ((".", "deep"), ("..", "tiny"), ("../deep/", "deep"), ("a/b", "a/b")):
            settings = EngineSettings(model=model)
            assert settings.name == name
            assert LocalEngine(settings).model == Path(name).name


def test_a_model_inside_is_listed_and_answers_any_name(folder: Path) -> None:
    """A gateway in front of it shows its clients what the server lists."""

    async def main() -> None:
        async with (
            LocalEngine(EngineSettings(model=str(folder))).open() as url,
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
        ):
            assert [model.id async for model in client.models.list()] == [folder.name, str(folder)]
            answer = await client.completions.create(model="other", prompt="a", max_tokens=1)
            assert answer.model == "other"

    run(main())


def test_an_engine_that_fails_ends_its_run(
    folder: Path, said: list[Continuation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: no row is tried again in vain, and the same call asks for all of them later."""
    rows = [{"url": "/v1/completions", "body": body_of(one)} for one in said]
    engine = LocalEngine(EngineSettings(model=str(folder), max_batch_size=2))
    output = tmp_path / "out.jsonl"

    def fail(core: Core) -> None:
        raise RuntimeError("the memory is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Core, "step", fail)
        begun_s = time.monotonic()
        report = redline.run(rows, endpoint=engine, output=str(output))
        assert time.monotonic() - begun_s < LIMIT_S
    assert isinstance(report.stopped, NoEndpoint)
    assert "the engine has failed: RuntimeError: the memory is gone" in report.stopped.what
    assert (report.failed, report.retries, report.succeeded) == (0, 0, 0)
    report = redline.run(rows, endpoint=engine, output=str(output))
    assert (report.succeeded, report.skipped) == (len(said), 0)


def test_a_run_says_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ran(model: str) -> None:
        redline.run([{"prompt": "a"}], endpoint=LocalEngine(EngineSettings(model=model)))

    with pytest.raises(ConfigError, match="there is no folder"):
        ran(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="no model in"):
        ran(str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="a local engine needs torch") as caught:
        ran(str(folder))
    assert "redline[engine]" in caught.value.hint


def started(*flags: str, instead: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    """`redline engine`. instead: called in the new process in place of the program; ends it."""
    return subprocess.Popen(
        [*COMMAND, "engine", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environ(),
        preexec_fn=instead,
        # Python ignores SIGPIPE; a new program does so itself.
        restore_signals=instead is None,
    )


def forked(*flags: str) -> subprocess.Popen[str]:
    """The same in a fork of this process, which need not import torch again."""

    def run() -> None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        status = 1
        try:
            command(["engine", *flags])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        finally:
            os._exit(status)

    return started(*flags, instead=run)


def kill(process: subprocess.Popen[str]) -> None:
    """Ends it, if it has not ended, and closes its pipes."""
    process.kill()
    process.communicate(timeout=LIMIT_S)


@pytest.fixture(params=[forked])
def program(request: pytest.FixtureRequest, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = request.param(str(folder), "--dtype", "float32", "--max-batch-size", "4")
    try:
        yield process
    finally:
        kill(process)


@pytest.mark.slow
@pytest.mark.parametrize("program", [started], indirect=True)
def test_the_command_serves_until_it_is_interrupted(
    program: subprocess.Popen[str], folder: Path
) -> None:
    assert program.stdout is not None
    url = program.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/v1")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/models", timeout=LIMIT_S) as reply:
        assert [one["id"] for one in json.load(reply)["data"]] == [folder.name, str(folder)]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        models = list(client.models.list())
        assert [client.models.retrieve(model.id) for model in models] == models
        with pytest.raises(openai.NotFoundError, match="`other` does not exist"):
            client.models.retrieve("other")
    with opener.open(f"{url.removesuffix('/v1')}/metrics", timeout=LIMIT_S) as reply:
        assert f'vllm:num_requests_running{{model_name="{folder.name}"}} 0' in reply.read().decode()
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=LIMIT_S)
    assert program.returncode == 0, err
    assert err.startswith(f"loading {folder}\n")
    assert "sequences of 512 tokens at once" in err


@contextmanager
def served_by_command(tmp_path: Path, folder: Path) -> Iterator[str]:
    """The URL of a `redline engine`, which ends as it should and says no more than it should."""
    # Clients ask for a model of this name.
    (tmp_path / "m").symlink_to(folder)
    program = forked(str(tmp_path / "m"), "--dtype", "float32", "--max-batch-size", "4")
    try:
        assert program.stdout is not None
        yield program.stdout.readline().strip()
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=LIMIT_S)
    finally:
        kill(program)
    assert program.returncode == 0, err
    # What it loads, and what it has room for.
    assert len(err.splitlines()) == 2, err


async def send_faulty(port: int) -> None:
    """Sends requests with faults: the server answers each, if at all, and closes its connection."""
    rng, answers, connections = random.Random(1), Counter[bytes](), 400
    for _ in range(connections):
        requests, _ = server_fuzzing.faulty(rng)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                for piece in cut(rng, requests):
                    writer.write(piece)
                    await asyncio.sleep(0)
                writer.write_eof()
                written = await reader.read()
                assert b"HTTP/1.1 500 " not in written
                answers[written[:13]] += 1
        writer.close()
    assert all(answer == b"" or answer.startswith(b"HTTP/1.1 ") for answer in answers), answers
    assert answers[b"HTTP/1.1 400 "] > connections / 10
    assert answers[b"HTTP/1.1 404 "] > connections / 10


@pytest.mark.slow
@pytest.mark.parametrize("meet", [attack, late, send_faulty], ids=["attack", "late", "faulty"])
def test_the_command_answers_after_hostile_clients(
    tmp_path: Path,
    folder: Path,
    said: list[Continuation],
    meet: Callable[[int], Coroutine[Any, Any, None]],
) -> None:
    with served_by_command(tmp_path, folder) as url:
        check_answers(url, folder, said[:3])
        asyncio.run(meet(port_of(url)))
        check_answers(url, folder, said[3:6])
        # Requests of clients that have left are given up.
        wait_until_idle(url, "m")


def check_answers(url: str, folder: Path, said: list[Continuation]) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        for one in said:
            answer = client.completions.create(model="m", prompt=list(one.prompt), **GREEDY)
            assert answer.choices[0].text == text_of(folder, one.tokens)


def wait_until_idle(url: str, model: str) -> None:
    """Returns once the metrics show no request, running or waiting."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    idle = [
        f'vllm:num_requests_{state}{{model_name="{model}"}} 0' for state in ("running", "waiting")
    ]
    until_s = time.monotonic() + HUB_S
    while True:
        with opener.open(f"{url.removesuffix('/v1')}/metrics", timeout=LIMIT_S) as reply:
            shown = reply.read().decode().splitlines()
        if set(idle) <= set(shown):
            return
        assert time.monotonic() < until_s, shown
        time.sleep(0.05)


def is_listening(url: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=LIMIT_S):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_while_it_loads(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub takes the connection and says nothing, for which its client waits a minute."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(LIMIT_S)
        address = hub.getsockname()

        def ask(settings: EngineSettings) -> None:
            with socket.create_connection(address, timeout=HUB_S) as asked:
                asked.recv(1)

        monkeypatch.setattr("redline.engine.api.open_engine", ask)
        process = forked("nobody/nothing")
        try:
            with hub.accept()[0]:
                process.send_signal(number)
                _, err = process.communicate(timeout=HUB_S / 2)
        finally:
            kill(process)
    assert process.returncode == 128 + number
    assert err.startswith("loading nobody/nothing\n")


def test_the_second_signal_ends_the_command_at_once(
    program: subprocess.Popen[str], folder: Path
) -> None:
    assert program.stdout is not None
    url = program.stdout.readline().strip()
    long: dict[str, Any] = {"model": folder.name, "prompt": "a", "max_tokens": 480, "n": 128}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        stream = client.completions.create(**long, stream=True, **IGNORE)
        next(iter(stream))
        program.send_signal(signal.SIGINT)
        while is_listening(url):
            time.sleep(0.02)
        assert program.poll() is None, "it answers what is in flight"
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=LIMIT_S)
    # Otherwise it ends with 0, once all is answered or the ten seconds for that are over.
    assert program.returncode == 128 + signal.SIGTERM


def test_answers_follow_a_schema(folder: Path) -> None:
    wanted = {
        "type": "object",
        "properties": {"kind": {"enum": ["bill", "ship"]}, "count": {"type": "integer"}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": wanted}}

    async def main() -> None:
        async with served(folder, has_lookup=True) as (found, client):
            answer = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "six barrels"}],
                response_format=form,
                max_tokens=200,
                n=4,
            )
            for choice in answer.choices:
                if choice.finish_reason == "stop":
                    jsonschema.validate(json.loads(choice.message.content), wanted)
            assert any(choice.finish_reason == "stop" for choice in answer.choices)
            form["json_schema"] = {"name": "order", "schema": {"type": "nothing"}}
            with pytest.raises(openai.BadRequestError, match="schema"):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "a"}], response_format=form
                )
            await all_free(found)

    run(main())


def children(pid: int) -> Iterator[int]:
    """The processes that `pid` has started, and those that these have."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            yield int(stat.parent.name)
            yield from children(int(stat.parent.name))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_rank_that_is_killed_ends_the_engine_and_tells_its_clients(
    folder: Path, said: list[Continuation]
) -> None:
    process = forked(str(folder), "--tensor-parallel", "2", "--dtype", "float32")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        ask = {"model": folder.name, "prompt": "a", "max_tokens": 480, "stream": True}
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=LIMIT_S) as client:
            asked = client.completions.create(
                model=folder.name, prompt=list(said[0].prompt), **GREEDY
            )
            assert asked.choices[0].text == text_of(folder, said[0].tokens)
            stream = client.completions.create(**ask, **IGNORE)
            next(iter(stream))
            (*_, rank) = children(process.pid)
            os.kill(rank, signal.SIGKILL)
            with pytest.raises(openai.APIError, match="was killed by SIGKILL"):
                for _ in stream:
                    pass
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1, err
        assert "was killed by SIGKILL" in err
        assert "hint: start the engine again" in err
    finally:
        kill(process)
    assert not list(children(process.pid))
