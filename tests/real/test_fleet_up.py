"""`redline fleet up` as a process, with real replicas, and the openai SDK before it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from redline.route.scale import ScaleSettings, fleet
from redline.serve.fleet import FleetSettings, FrontSettings, ServedFleet
from support.forked import Command
from support.replicas import (
    SERVER,
    gone_within,
    is_running,
    pids_in,
    processes_of,
    replica,
    server_of,
)
from support.shrinking import shrink
from support.until import until

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("no_proxy"),
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc"),
]
HELLO: Any = [{"role": "user", "content": "hello"}]
QUICK = """
panic_window_s = 1
scale_down_window_s = 1
warm_up_s = 0.5
tick_s = 0.1
queue_wait_slo_s = 0.1
"""


class Up:
    """A running `redline fleet up`."""

    def __init__(self, folder: Path, scale: str, command: str, rest: str = "") -> None:
        self.folder = folder
        self.file = folder / "fleet.toml"
        self.file.write_text(
            f'model = "sim"\n[front]\nport = 0\n[replica]\ncommand = """{command}"""\n{rest}\n'
            f"[scale]\n{scale}\n",
            "utf-8",
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redline", "fleet", "up", str(self.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def status(self, url: str) -> Any:
        with urllib.request.urlopen(url.removesuffix("/v1") + "/fleet", timeout=5) as answer:
            return json.load(answer)

    def until(self, url: str, is_so: Callable[[Any], bool], within_s: float = 15.0) -> Any:
        until_s = time.monotonic() + within_s
        while not is_so(status := self.status(url)):
            assert time.monotonic() < until_s, status
            time.sleep(0.05)
        return status

    def end(self) -> tuple[int, str]:
        """Its status and stderr, after it has been told to end."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


Start = Callable[..., Up]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[Up] = []

    def start(scale: str = "", *, mood: str = "", sim: str = "", rest: str = "") -> Up:
        (tmp_path / "server.py").write_text(SERVER, "utf-8")
        command = f"'{sys.executable}' -m redline sim --port {{port}} {sim}"
        if mood:
            server = f"'{tmp_path}/server.py' {{port}} '{mood}' '{tmp_path}'"
            command = f"'{sys.executable}' -I -S {server}"
        begun.append(Up(tmp_path, scale, command, rest))
        return begun[-1]

    yield start
    for up in begun:
        up.process.kill()
        up.process.wait()
        for pipe in (up.process.stdout, up.process.stderr):
            assert pipe is not None
            pipe.close()


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=40)


def asked(url: str, body: Any) -> tuple[int, bytes]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"{url}/chat/completions", raw, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_fleet_serves_the_sdk_and_passes_bytes_on(start: Start) -> None:
    up = start(sim="--per-token 0.001")
    url = up.url()

    async def ask() -> None:
        async with client_of(url) as client:
            done = await client.chat.completions.create(model="sim", messages=HELLO)
            assert done.choices[0].message.content == "You said: hello"
            for options, usages in ((None, 0), ({"include_usage": True}, 1)):
                given: Any = {} if options is None else {"stream_options": options}
                stream = await client.chat.completions.create(
                    model="sim", messages=HELLO, stream=True, **given
                )
                chunks = [chunk async for chunk in stream]
                texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
                assert "".join(texts) == "You said: hello"
                assert len(texts) > 1
                assert sum(chunk.usage is not None for chunk in chunks) == usages
                assert len(chunks) - len(texts) == usages
            assert (await client.embeddings.create(model="sim", input="a")).data
            assert [model.id async for model in client.models.list()] == ["sim"]
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="sim", messages=[])

    asyncio.run(ask())
    port = re.search(r"--port (\d+)", cmdline(up.folder, "replica-1"))
    assert port is not None
    direct = f"http://127.0.0.1:{port[1]}/v1"
    for body in ({"model": "sim"}, b'{"model": ', {"model": "sim", "messages": 5}):
        refused = asked(url, body)
        assert refused[0] == 400
        assert refused == asked(direct, body)
    assert up.status(url)["replicas"][0]["answered"] >= 4
    shown = Command(["fleet", "status", url])
    out, _ = shown.communicate()
    assert shown.returncode == 0
    assert re.search(r"^replica-1 +ready +0 +\d+ +0\.\d\d s$", out, re.M)
    assert "the minimum is 1: 0 -> 1" in out
    status, err = up.end()
    assert (status, not processes_of(up.folder)) == (0, True)
    assert "the minimum is 1: 0 -> 1" in err


def test_a_degraded_replica_keeps_its_count_of_answered_calls(start: Start) -> None:
    up = start(mood="works")
    url = up.url()
    assert [asked(url, {"model": "m"})[0] for _ in range(5)] == [200] * 5
    assert up.status(url)["replicas"][0]["answered"] == 5
    with ThreadPoolExecutor(8) as threads:
        failing = [threads.submit(asked, url, {"model": "500"}) for _ in range(8)]
        try:
            status = up.until(url, lambda status: status["replicas"][0]["state"] == "degraded")
            assert status["replicas"][0]["answered"] == 5
        finally:
            up.process.kill()
    assert all(one.exception() for one in failing)


def test_a_second_fleet_does_not_write_the_logs_of_the_first(start: Start) -> None:
    first = start()
    first.until(first.url(), lambda status: status["ready"] == 1)
    second = start()
    assert second.url() == ""
    _, err = second.process.communicate(timeout=30)
    assert second.process.returncode == 2
    assert f"another fleet writes its logs in {first.folder / 'fleet.logs'}" in err
    assert first.end()[0] == 0
    # The lock ends with its fleet, even with one that is killed.
    third = start()
    assert third.url()
    third.process.kill()
    assert start().url()


def test_a_fleet_follows_its_load_and_ends_with_calls_answered(start: Start) -> None:
    up = start(f"max_replicas = 3\n{QUICK}", mood="slow 0.2", rest="concurrency = 2")
    url = up.url()

    async def ask() -> list[Any]:
        async with client_of(url) as client:
            call = client.chat.completions.create
            return await asyncio.gather(*(call(model="m", messages=HELLO) for _ in range(40)))

    assert len(asyncio.run(ask())) == 40
    status = up.until(url, lambda status: status["ready"] == 1)
    assert status["answered"] == 40
    told = [one["what"] for one in status["changes"]]
    # A busy machine takes the samples at other moments, so the fleet may take two steps.
    grown = r"demand [\d.]+( exceeds [12] by more than 10%)?(, and the maximum is 3)?: [12] -> 3"
    assert re.search(grown, "\n".join(told))
    assert re.search(r"demand was at most [\d.]+ for 1 s: [23] -> 1", "\n".join(told))
    with ThreadPoolExecutor(1) as threads:
        last = threads.submit(asked, url, {"model": "m"})
        up.until(url, lambda status: status["in_flight"] == 1)
        code, err = up.end()
        assert last.result()[0] == 200
    assert (code, "waiting up to 60 s for 1 call in flight" in err) == (0, True)
    assert not processes_of(up.folder)


def test_a_fleet_may_have_as_many_connections_as_the_system_allows(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        up = start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert up.url()
    found, _ = resource.prlimit(up.process.pid, resource.RLIMIT_NOFILE)
    assert found == min(hard, 1 << 20)
    up.end()


def test_a_stopped_fleet_holds_a_call_until_a_replica_is_ready(start: Start) -> None:
    up = start(f"min_replicas = 0\nidle_s = 0.5\n{QUICK}", mood="slow 0")
    url = up.url()
    for _ in range(2):
        assert up.until(url, lambda status: not status["replicas"])["ready"] == 0
        assert gone_within(processes_of(up.folder / "server.py"), 5)
        assert asked(url, {"model": "m"})[0] == 200
    assert up.end()[0] == 0


def test_nothing_is_left_of_a_fleet_whose_redline_is_killed(start: Start) -> None:
    up = start("min_replicas = 2", mood="deaf")
    url = up.url()
    up.until(url, lambda status: status["ready"] == 2)
    pids = [*pids_in(up.folder, "itself", "of-session", "orphan"), *processes_of(up.folder)]
    pids.remove(up.process.pid)
    assert sum(map(is_running, pids)) >= 5
    begun_s = time.monotonic()
    up.process.kill()
    assert gone_within(pids, 20)
    assert time.monotonic() - begun_s < 20


def test_a_replica_that_is_killed_under_load_loses_no_call(start: Start) -> None:
    up = start("min_replicas = 2\nmax_replicas = 2", mood="slow 0.1", rest="concurrency = 4")
    url = up.url()
    up.until(url, lambda status: status["ready"] == 2)

    async def ask() -> list[int]:
        async with client_of(url) as client:

            async def several() -> int:
                asking = client.chat.completions.create
                return sum([bool(await asking(model="m", messages=HELLO)) for _ in range(5)])

            calls = [asyncio.create_task(several()) for _ in range(12)]
            await asyncio.sleep(0.3)
            os.kill(server_of(up.folder, "replica-1", "fleet.logs"), signal.SIGKILL)
            return await asyncio.gather(*calls)

    assert asyncio.run(ask()) == [5] * 12
    status = up.until(url, lambda status: status["ready"] == 2)
    assert {one["name"] for one in status["replicas"]} == {"replica-2", "replica-3"}
    assert [one["what"] for one in status["failures"]] == [
        "replica-1 was lost: its command ended with status 137 (SIGKILL)"
    ]
    up.end()


@pytest.mark.parametrize("least", [1, 0])
def test_calls_get_503_while_no_replica_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(fleet, "FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(fleet, "LONGEST_PAUSE_S", 0.2)
    works = replica(tmp_path, "slow 0.2")
    broken = tmp_path / "broken"
    shell = 'if [ -e "$0" ]; then exit 3; fi; exec "$@"'
    command = ("/bin/sh", "-c", shell, str(broken), *works.command)
    scale = ScaleSettings(min_replicas=least, tick_s=0.05, panic_window_s=1, idle_s=0.5)
    settings = FleetSettings(
        model="m",
        replica=replica(tmp_path, command=command),
        front=FrontSettings(port=0),
        scale=scale,
    )

    async def main() -> None:
        stop, urls = asyncio.Event(), asyncio.Queue[str]()
        events: list[str] = []
        served = ServedFleet(
            settings, on_url=urls.put_nowait, on_event=events.append, on_status=lambda _: None
        )
        running = asyncio.create_task(served.run(stop))
        url = await urls.get()

        def ask() -> asyncio.Future[tuple[int, bytes]]:
            return asyncio.ensure_future(asyncio.to_thread(asked, url, {"model": "m"}))

        assert (await ask())[0] == 200
        broken.touch()
        os.kill(server_of(tmp_path, "replica-1"), signal.SIGKILL)
        # One that waits for a replica, and one that comes when there is no hope.
        for calls in ([ask()], [ask(), ask()]):
            for status, body in await asyncio.gather(*calls):
                assert status == 503
                assert json.loads(body)["error"]["code"] == "no_replica"
        if not least:
            # A fleet that is stopped is started again by a call.
            await until(lambda: served.status().changes[-1].what.endswith("-> 0"))
        broken.unlink()
        async with asyncio.timeout(10):
            while (await ask())[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        stop.set()
        await running
        assert "replica-1 is ready" in events
        assert any(one.startswith("replica-1 was lost: ") for one in events)
        assert any("could not be started: its command ended with status 3" in one for one in events)

    asyncio.run(main())
    assert not processes_of(tmp_path)


def test_a_fleet_that_cannot_start_says_why_and_hides_keys(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "sk-very-secret-0123456789")
    up = start(mood="exits")
    out, err = up.process.communicate(timeout=20)
    assert up.process.returncode == 1
    assert "error: the fleet could not be started\n" in err
    assert "its command ended with status 1 (" in err
    assert "ValueError: there is no such model; key <key>" in err
    assert "very-secret" not in out + err
    assert not processes_of(up.folder)


async def test_replicas_that_are_stopped_with_calls_in_flight_drop_none(tmp_path: Path) -> None:
    stopped = 0
    for number in range(3):
        # Which replicas have calls at that moment is chance.
        caught, outcomes = await shrink(tmp_path / str(number))
        assert set(outcomes) == {"succeeded"}
        stopped += caught
        if stopped:
            break
    assert stopped
    assert not processes_of(tmp_path)


def cmdline(folder: Path, name: str) -> str:
    text = Path(f"/proc/{server_of(folder, name, 'fleet.logs')}/cmdline").read_text("utf-8")
    return text.replace("\0", " ")
