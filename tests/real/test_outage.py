"""A server that dies during a run, and Ctrl-C: what the screen and the summary say."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import redline
from support.raw_server import RawServer, Seen, answer, chat
from support.starting import free_port

ROWS = 60
# Of the requests that come first, so many are answered, in all runs below.
FIRST = 20


@asynccontextmanager
async def running(folder: Path, port: int, *flags: str) -> AsyncIterator[Process]:
    """`redline run` on 60 rows, writing out.jsonl."""
    rows = [{"prompt": f"row {number}"} for number in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "redline", "run", "rows.jsonl", "--model", "m"),
        *("--base-url", f"http://127.0.0.1:{port}/v1", "-o", "out.jsonl", *flags),
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(process: Process, text: str) -> str:
    """The first line on stderr that holds `text`."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while line := (await process.stderr.readline()).decode():
            if text in line:
                return line
    raise AssertionError(f"the run ended without saying: {text}")


class Mortal:
    """A server on a port of its own, which dies after `FIRST` answers and can be begun again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.answered = 0
        self.received = 0
        self.left = FIRST
        self.died = asyncio.Event()

    async def begin(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def die(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self.died.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = re.search(rb"content-length: (\d+)", head)
                assert size is not None
                await reader.readexactly(int(size[1]))
                self.received += 1
                if not self.left:
                    self.die()
                    return
                self.left -= 1
                self.answered += 1
                writer.write(answer(chat("yes")))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def test_a_server_that_dies_is_told_at_once_and_retries_are_requests(tmp_path: Path) -> None:
    server = Mortal()
    await server.begin()
    async with running(tmp_path, server.port, "-c", "4") as process:
        told = await line_with(process, "has refused connections")
        assert server.died.is_set()
        assert re.fullmatch(
            rf"endpoint 127\.0\.0\.1:{server.port} has refused connections for [\d.]+ s; "
            r"retrying, nothing is lost\n",
            told,
        )
        server.left = ROWS
        await server.begin()
        _, err = await process.communicate()
    server.die()
    summary = err.decode()
    assert process.returncode == 0, summary
    assert summary.partition(" + ")[0] == f"{ROWS} rows = {ROWS} succeeded"
    numbers = re.search(r"(\d+) requests at [\d.,]+/s, (\d+) retr", summary)
    assert numbers is not None
    requests, retries = map(int, numbers.groups())
    twice = re.search(r"^(\d+) requests? sent twice", summary, re.M)
    # Connections that were refused are no requests, and what follows them is no retry.
    assert requests == ROWS + retries + (int(twice[1]) if twice else 0) >= server.received
    assert 1 <= retries <= 4
    assert re.search(
        rf"^endpoint 127\.0\.0\.1:{server.port} refused connections for ", summary, re.M
    )


async def test_a_run_that_is_ended_while_its_server_is_down_says_so(tmp_path: Path) -> None:
    server = Mortal()
    await server.begin()
    async with running(tmp_path, server.port, "-c", "4", "--log", "json") as process:
        told = json.loads(await line_with(process, "has refused connections"))
        assert told["event"] == "progress"
        assert (told["notices"].keys(), told["eta_s"]) == ({"outage"}, None)
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    summary = json.loads(err.decode().splitlines()[-1])
    assert process.returncode == 130
    assert summary["outages"]["endpoint"] == f"127.0.0.1:{server.port}"
    assert 0 < summary["outages"]["down_s"] <= summary["outages"]["lasted_s"]
    # Each of the four that were on the wire when it died is one request.
    assert FIRST < summary["attempts"] - summary["retries"] <= FIRST + 4
    assert summary["succeeded"] == FIRST


async def test_ctrl_c_is_answered_with_what_is_being_finished(tmp_path: Path) -> None:
    waiting, release = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: Seen, writer: asyncio.StreamWriter) -> None:
        waiting.release()
        await release.wait()
        writer.write(answer(chat("yes")))

    async with (
        RawServer(slow) as server,
        running(tmp_path, server.port, "-c", "3", "--timeout", "5m") as process,
    ):
        for _ in range(3):
            await waiting.acquire()
        process.send_signal(signal.SIGINT)
        told = await line_with(process, "interrupted")
        found = re.fullmatch(
            r"interrupted: finishing 3 calls, for at most (\d) m (\d\d) s; press Ctrl-C again to "
            r"drop the calls\n",
            told,
        )
        assert found is not None, told
        assert 0 < 60 * int(found[1]) + int(found[2]) <= 300
        release.set()
        _, err = await process.communicate()
    assert process.returncode == 130
    assert err.decode().startswith("3 rows = 3 succeeded + 0 failed + 0 unfinished")


async def test_a_server_that_answers_nothing_but_errors_is_told(tmp_path: Path) -> None:
    async def failing(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer({"error": {"message": "boom"}}, 500))

    async with (
        RawServer(failing) as server,
        running(tmp_path, server.port, "-c", "4") as process,
    ):
        told = await line_with(process, "every request has failed")
        # It may not say that redline retries: with --max-retries 0 it does not.
        assert re.fullmatch(r"every request has failed for [\d.]+ s, \d+ in a row\n", told)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130


async def test_retries_of_a_function_are_the_calls_made_again() -> None:
    calls = 0

    async def flaky(row: dict[str, int]) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 5, 6):
            raise ConnectionError("gone")
        return row["n"]

    rows = [{"n": number} for number in range(10)]
    report = await redline.arun(rows, call=flaky, concurrency=1)
    assert (report.succeeded, report.attempts, report.retries) == (10, 13, 3)
    assert calls == report.attempts
