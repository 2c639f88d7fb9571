"""Replicas as processes: started, ready when they answer, and gone when they are not needed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Call, Health, Request
from redline.errors import ConfigError, RedlineError
from redline.route import Pool, PoolMember, Seat, strategy_of
from redline.route.scale import Fleet, LocalLauncher, ScaleSettings, launcher
from support.replicas import (
    gone_within,
    is_running,
    pids_in,
    processes_of,
    replica,
    server_of,
)

Run = Callable[[Coroutine[Any, Any, None]], None]

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("no_proxy"),
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc"),
]
ASKED = Request(body={"model": "m", "messages": [{"role": "user", "content": "hello"}]})


def member(seat: Seat) -> PoolMember:
    pool = Pool([seat], strategy_of("p2c", random.Random(1)))
    return pool.members[0]


def test_replicas_have_a_port_and_a_slot_each_and_answer(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        local = LocalLauncher(replica(tmp_path, env={"SLOT": "{slot}"}))
        seen = []
        for name in ("a", "b"):
            one = member(await local.start(name))
            outcome = await one.backend.send(ASKED, Call())
            assert outcome.endpoint == name
            seen.append(json.loads(outcome.output))
            await one.backend.aclose()
        assert [slot for slot, _ in seen] == ["0", "1"]
        assert len({port for _, port in seen}) == 2
        await local.stop("a")
        third = member(await local.start("c"))
        slot, port = json.loads((await third.backend.send(ASKED, Call())).output)
        assert (slot, port not in {port for _, port in seen[1:]}) == ("0", True)
        await third.backend.aclose()
        await asyncio.gather(local.stop("b"), local.stop("c"), local.stop("never begun"))
        for freed in [port, *(port for _, port in seen)]:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", freed), 1).close()

    run(main())


def test_a_file_in_place_of_the_folder_of_the_logs_is_named(run: Run, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.write_text("mine")

    async def main() -> None:
        with pytest.raises(RedlineError, match=f"its log folder {logs} cannot be created: File"):
            await LocalLauncher(replica(tmp_path)).start("a")

    run(main())


def test_only_logs_of_ended_replicas_are_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_KEPT_LOGS", 2)

    async def main() -> None:
        local = LocalLauncher(replica(tmp_path))
        kept = member(await local.start("kept"))
        for name in "abcd":
            await member(await local.start(name)).backend.aclose()
            await local.stop(name)
        names = {path.stem for path in (tmp_path / "logs").iterdir()}
        # Those that have ended are counted when the next one begins.
        assert names == {"kept", "b", "c", "d"}
        await kept.backend.aclose()
        await local.stop("kept")

    run(main())


MOODS = {
    "exits": "its command ended with status 1",
    "silent": "it was not ready within {start_s:g} s: it did not listen on its port",
    "hangs": "it was not ready within {start_s:g} s: no success in time",
    "500": "it was not ready within {start_s:g} s: the server failed: HTTP 500: no m here",
    "404": "it refused a trial request: the endpoint rejected the request: HTTP 404: no m here",
}


def test_a_replica_that_does_not_work_is_told_in_time_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "sk-very-secret-0123456789")

    async def begin(mood: str, told: str) -> None:
        folder = tmp_path / mood
        folder.mkdir()
        for start_s in (60.0,) if mood in ("exits", "404") else (0.7, 3.0, 12.0, 48.0):
            local = LocalLauncher(replica(folder, mood, start_s=start_s))
            begun_s = time.monotonic()
            with pytest.raises(RedlineError) as caught:
                await local.start("a")
            if mood == "silent" or "did not listen" not in caught.value.what:
                break
            # A busy machine has not begun it yet.
            await local.stop("a")
        # What is known at once is not waited for.
        took_s = time.monotonic() - begun_s
        assert took_s < start_s / 2 if mood in ("exits", "404") else took_s >= start_s
        assert caught.value.what.startswith(told.format(start_s=start_s))
        assert caught.value.where == str(folder / "logs" / "a.log")
        text = str(caught.value)
        if mood == "exits":
            assert "\n    loading\n    ValueError: there is no such model; key <key>" in text
        assert "very-secret" not in text
        await local.stop("a")

    async def main() -> None:
        await asyncio.gather(*(begin(mood, told) for mood, told in MOODS.items()))

    asyncio.run(main())
    assert not processes_of(tmp_path)


def test_a_port_that_another_process_took_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        local = LocalLauncher(replica(tmp_path))
        other = member(await local.start("a"))
        port = int(other.backend.endpoint.base_url.split(":")[2].removesuffix("/v1"))
        monkeypatch.setattr(launcher, "free_port", lambda _: port)
        silent = LocalLauncher(replica(tmp_path, "silent"))
        with pytest.raises(RedlineError, match=f"another process took its port, {port}"):
            await silent.start("b")
        await asyncio.gather(silent.stop("b"), local.stop("a"), other.backend.aclose())

    asyncio.run(main())


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        for wait_s in (0.0, 0.001, 0.3):
            local = LocalLauncher(replica(tmp_path, "silent"))
            starting = asyncio.create_task(local.start("a"))
            await asyncio.sleep(wait_s)
            starting.cancel()
            await asyncio.wait([starting])
            begun_s = time.monotonic()
            await local.stop("a")
            # SIGTERM is not lost, whenever it comes.
            assert time.monotonic() - begun_s < 3
        assert not processes_of(tmp_path)

    asyncio.run(main())


def test_what_ignores_sigterm_and_leaves_its_session_ends_with_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "GRACE_S", 0.3)

    async def main() -> None:
        local = LocalLauncher(replica(tmp_path, "deaf"))
        one = member(await local.start("a"))
        pids = await asyncio.to_thread(pids_in, tmp_path, "itself", "of-session", "orphan")
        assert all(map(is_running, pids))
        await local.stop("a")
        assert not any(map(is_running, pids))
        await one.backend.aclose()

    asyncio.run(main())


def test_the_slot_of_a_replica_that_ended_late_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "GRACE_S", 0.5)

    async def main() -> None:
        local = LocalLauncher(replica(tmp_path, "deaf", env={"SLOT": "{slot}"}))
        late = member(await local.start("a"))
        with monkeypatch.context() as patched:
            patched.setattr(launcher, "END_S", 0.1)
            with pytest.raises(RedlineError, match="did not exit"):
                await local.stop("a")
        async with asyncio.timeout(20):
            while late.health(0.0) is not Health.GONE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        other = member(await local.start("b"))
        slot, _ = json.loads((await other.backend.send(ASKED, Call())).output)
        assert slot == "0"
        await local.stop("b")
        await asyncio.gather(late.backend.aclose(), other.backend.aclose())

    asyncio.run(main())


def test_a_replica_whose_process_dies_is_gone_at_once_with_all_below_it(tmp_path: Path) -> None:
    async def main() -> None:
        local = LocalLauncher(replica(tmp_path, "deaf"))
        one = member(await local.start("a"))
        pids = await asyncio.to_thread(pids_in, tmp_path, "itself", "of-session", "orphan")
        assert one.health(0.0) is Health.READY
        os.kill(pids[0], signal.SIGKILL)
        async with asyncio.timeout(2):
            while one.health(0.0) is not Health.GONE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert one.backend.load(0.0).binds == "its command ended with status 137 (SIGKILL)"
        assert not any(map(is_running, pids))
        await local.stop("a")
        await one.backend.aclose()

    asyncio.run(main())


# Starts a replica and waits; argv: folder.
STARTER = """
import asyncio, sys
from pathlib import Path
from support.replicas import replica
from redline.route.scale import LocalLauncher, launcher

launcher.GRACE_S = 1.0

async def main():
    await LocalLauncher(replica(Path(sys.argv[1]), "deaf")).start("a")
    print("ready", flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


def test_nothing_is_left_when_redline_is_killed(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    bystander = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", STARTER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            pids = [*pids_in(tmp_path, "itself", "of-session", "orphan"), *processes_of(tmp_path)]
            process.kill()
        assert gone_within(pids, 20)
        assert not processes_of(tmp_path)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


# Starts a guardian that reads the stdin of this process, and waits.
PARENT = """
import subprocess, time
from redline.route.scale import guardian

child = subprocess.Popen(guardian.guarded(["sleep", "300"], 1), start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""


def test_a_guardian_notices_its_parents_death_while_its_stdin_is_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        assert gone_within([pid], 10)


def test_a_fleet_replaces_a_replica_that_dies(tmp_path: Path) -> None:
    async def main() -> None:
        settings = ScaleSettings(min_replicas=2, max_replicas=2, tick_s=0.1, panic_window_s=10)
        pool = Pool([], strategy_of("p2c", random.Random(1)), may_be_empty=True)
        fleet = Fleet(pool, LocalLauncher(replica(tmp_path)), settings)
        running = asyncio.create_task(fleet.run())
        async with asyncio.timeout(20):
            while len(fleet.ready) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            os.kill(server_of(tmp_path, "replica-1"), signal.SIGKILL)
            while {one.name for one in fleet.ready} != {"replica-2", "replica-3"}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert [str(one) for one in fleet.failures] == [
            "replica-1 was lost: its command ended with status 137 (SIGKILL)"
        ]
        running.cancel()
        await asyncio.wait([running])
        await pool.aclose()
        assert not processes_of(tmp_path)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"command": ()}, "command is empty"),
        ({"command": ("sleep", "5")}, r"command has no \{port\}"),
        ({"command": ("no-such-command", "{port}")}, "command does not exist: no-such-command"),
        ({"trial": "/v1/chat/completion"}, "unknown trial: /v1/chat/completion"),
        ({"cwd": Path("no/such/folder")}, "cwd is not a folder: no/such/folder"),
        ({"start_s": 0.0}, "start_s must be above 0"),
    ],
)
def test_what_cannot_be_started_is_refused_before_it_is(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        replica(tmp_path, **settings)
