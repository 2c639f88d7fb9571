"""Rows of 1 MB, answers of 10 MB, inputs without an end: memory is bounded, time is linear.

Memory is the most that was ever resident, from the kernel, of a process of its own. Time is its
CPU time, as ratios of runs that do the same amount of work.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import redline

pytestmark = pytest.mark.real

MB = 1 << 20
SERVER = Path(__file__).parents[1] / "support" / "sized_server.py"
# What Python and redline take before the first row: 47 MB on Linux with Python 3.11, and room.
EMPTY_MB = 60


@contextmanager
def answers_of(size: int, lasts_s: float = 0.0) -> Iterator[str]:
    """The base URL of a server whose answers have so many bytes, and take so long at least."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(size), str(lasts_s)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    finally:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    with answers_of(10) as url:
        yield url


@pytest.fixture(scope="module")
def large() -> Iterator[str]:
    with answers_of(10 * MB) as url:
        yield url


class Spent(NamedTuple):
    """What a process took: CPU seconds, and MiB at its largest."""

    cpu_s: float
    peak_mb: float


# The kernel counts what a process was before it became another program, so a large pytest would be
# taken for its child. This one is small.
LAUNCHER = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


# The command on a slow disk, so that groups are large; with a journal that may keep its results.
ON_A_SLOW_DISK = """
import sys
from redline.job.outputs import resume
from redline.journal import journal

class Keeping(journal.Journal):
    kept = []

    def append(self, result):
        self.kept.append(result.outcome)
        super().append(result)

if sys.argv.pop(1) == "keeping":
    resume.Journal = Keeping
journal.GROUP_S = 0.5
from redline.cli import main
sys.exit(main())
"""


def spent(folder: Path, rows: str, url: str, *flags: str, journal: str = "") -> Spent:
    start = ["-c", ON_A_SLOW_DISK, journal] if journal else ["-m", "redline"]
    run = [sys.executable, *start, "run", rows, "--model", "m", "--base-url", url, "-q"]
    # Results to the null device where they go to standard output: the figures come after them.
    to_null = ["/bin/sh", "-c", 'exec "$@" >/dev/null', "sh"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *to_null, *run, *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    status, cpu_s, peak_kb = done.stdout.split()
    assert status == "0", done.stderr
    return Spent(float(cpu_s), int(peak_kb) / 1024)


def write_rows(path: Path, count: int, size: int) -> str:
    line = json.dumps({"prompt": "word " * (size // 5)})
    with path.open("w") as file:
        for number in range(count):
            file.write(f'{{"custom_id":"r{number}",{line[1:]}\n')
    return path.name


@pytest.mark.slow
def test_rows_of_1_mb(tmp_path: Path, small: str) -> None:
    """200 of them, four in flight; then a few that are ten times as long."""
    few = spent(tmp_path, write_rows(tmp_path / "few", 2, 100), small, "-o", "few.jsonl")
    rows = write_rows(tmp_path / "rows", 200, MB)
    done = spent(tmp_path, rows, small, "-c", "4", "-o", "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 200
    # 4 in flight hold each its line and its data, its prompt, and its request until that is sent;
    # then the batch at hand.
    assert done.peak_mb < EMPTY_MB + 4 * 4 + 10
    longer = write_rows(tmp_path / "longer", 10, 10 * MB)
    again = spent(tmp_path, longer, small, "-c", "4", "-o", "longer.jsonl")
    # Half the bytes. What grows with the square of a row's length would take five times as long.
    assert again.cpu_s - few.cpu_s < 1.5 * (done.cpu_s - few.cpu_s)


# The body of one, beside its pieces; its text, and its line, which is copied as it is sealed.
ONE_ANSWER_MB = 5 * 10


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["plain", "keeping"])
def test_an_answer_of_10_mb_is_kept_until_its_line_is_made(
    tmp_path: Path, large: str, journal: str
) -> None:
    rows = write_rows(tmp_path / "rows", 24, 100)
    done = spent(tmp_path, rows, large, "-c", "8", "-o", "o.jsonl", journal=journal)
    assert (done.peak_mb < EMPTY_MB + 8 * 10 + ONE_ANSWER_MB) == (journal == "plain")


@pytest.mark.slow
def test_64_answers_of_10_mb_at_once(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows", 70, 100)
    with answers_of(10 * MB, lasts_s=1.0) as url:
        done = spent(tmp_path, rows, url, "-c", "64", "-o", "o.jsonl", "--output-path", "model")
    # 384 MiB, and one read for each connection (calls/wire/reply_memory.py); 640 MB come at once.
    assert done.peak_mb < EMPTY_MB + 384 + 64 / 4 + ONE_ANSWER_MB < 640


@pytest.mark.slow
def test_answers_of_10_mb_go_to_standard_output_as_they_go_to_a_file(
    tmp_path: Path, large: str
) -> None:
    """They are written in pieces; a piece must not cost as much as all that is left."""
    rows = write_rows(tmp_path / "rows", 8, 100)
    file = spent(tmp_path, rows, large, "-c", "2", "-o", "o.jsonl")
    lines = (tmp_path / "o.jsonl").read_bytes().splitlines()
    assert [len(json.loads(line)["output"]) for line in lines] == [10 * MB] * 8
    out = spent(tmp_path, rows, large, "-c", "2")
    assert out.cpu_s < 3 * file.cpu_s


def test_an_input_without_an_end_and_a_reader_that_is_slow(tmp_path: Path, small: str) -> None:
    command = [sys.executable, "-m", "redline", "run", "-", "--model", "m", "--base-url", small]
    process = subprocess.Popen(
        [*command, "-c", "4", "-q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    given = {"rows": 0}
    row = b'{"prompt":"%s"}\n' % (b"x" * 10_000)

    def feed(pipe: Any) -> None:
        try:
            while True:
                pipe.write(row)
                given["rows"] += 1
        except OSError:
            return

    feeder = threading.Thread(target=feed, args=(process.stdin,))
    feeder.start()
    ahead, peaks = [], []
    for number, _ in enumerate(process.stdout, start=1):
        if number in (100, 1500):
            # All that can be read ahead is read, and all that can be asked is asked.
            time.sleep(0.4)
            ahead.append(given["rows"] - number)
            peaks.append(_peak_mb(process.pid))
        if number == 1500:
            break
    # Nobody reads any more: that ends the run, and well, though the input goes on.
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    feeder.join(timeout=20)
    # Two pipes of 64 KB, a block of 1 MB of 10 KB rows in the reader, and 20 workers.
    assert max(ahead) < 700
    assert peaks[1] < peaks[0] + 10
    assert peaks[1] < EMPTY_MB + 20
    with suppress(BrokenPipeError):
        process.stdin.close()


def test_rows_of_1_mb_come_in_and_answers_of_10_mb_go_out_at_the_readers_pace(large: str) -> None:
    command = [sys.executable, "-m", "redline", "run", "-", "--model", "m", "--base-url", large]
    process = subprocess.Popen(
        [*command, "-c", "32", "-q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    row = b'{"prompt":"%s"}\n' % (b"x" * MB)

    def feed(pipe: Any) -> None:
        with suppress(OSError):
            while True:
                pipe.write(row)

    feeder = threading.Thread(target=feed, args=(process.stdin,))
    feeder.start()
    for number in range(4):
        assert len(process.stdout.readline()) > 10 * MB
        if number == 1:
            # All that can be asked is asked.
            time.sleep(2)
    peak_mb = _peak_mb(process.pid)
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    feeder.join(timeout=20)
    # 32 rows with their data and requests; the answers' room; an answer that becomes a line.
    assert peak_mb < EMPTY_MB + 32 * 3 + 384 + ONE_ANSWER_MB < 700
    with suppress(BrokenPipeError):
        process.stdin.close()


@pytest.mark.slow
async def test_a_stream_is_as_far_ahead_of_its_reader_as_is_said(large: str) -> None:
    taken = {"rows": 0}

    def rows() -> Iterator[dict[str, str]]:
        while True:
            taken["rows"] += 1
            yield {"prompt": "x" * MB}

    before_mb = _from_here_on_mb()
    stream = redline.stream(rows(), model="m", endpoint=large, concurrency=32)
    assert (await anext(stream)).is_success
    # The reader does not come back until the run stands still.
    seen = 0
    while seen < taken["rows"] < 200:
        seen = taken["rows"]
        await asyncio.sleep(0.5)
    await stream.aclose()  # type: ignore[attr-defined]
    # 4 outcomes wait here with their texts and rows, and 32 workers have a row each; not 256.
    assert taken["rows"] < 50
    assert _peak_mb() - before_mb < 4 * 22 + 32 * 3 + 384 + ONE_ANSWER_MB < 700


@pytest.mark.parametrize("form", [str, lambda text: {"texts": [text]}])
async def test_a_stream_of_a_functions_outputs_is_as_far_ahead_as_one_of_answers(form: Any) -> None:
    made = 0

    async def call(row: dict[str, Any]) -> Any:
        nonlocal made
        made += 1
        return form("x" * (10 * MB))

    async with redline.stream([{}] * 100, call=call, concurrency=1) as outcomes:
        await anext(outcomes)
        before = 0
        while made > before:
            before = made
            await asyncio.sleep(0.2)
    # Four that fill 32 MiB, and one in each worker's hands.
    assert made <= 10


async def test_a_streamed_answer_waits_for_its_reader() -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "z" * 10_000}}]}
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    chunk = b"%x\r\n%s\r\n" % (len(data), data)
    sent = {"bytes": 0}
    chunks = 3000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(chunks):
            writer.write(chunk)
            sent["bytes"] += len(chunk)
            await writer.drain()
        end = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    before_mb = _from_here_on_mb()
    async with server, redline.Client(f"http://127.0.0.1:{port}/v1") as client:
        read = 0
        async for part in client.stream({"model": "m", "messages": []}):
            read += bool(part.text)
            if read == 100:
                # All that can be sent ahead is sent by then.
                await asyncio.sleep(0.3)
                # 64 chunks are read ahead; the rest is what the system keeps for two sockets.
                assert sent["bytes"] - 100 * len(chunk) < 12 * MB < chunks * len(chunk) / 2
                assert _peak_mb() - before_mb < 20
        assert read == chunks
    # The whole of it is kept for its reply: raw, as pieces of text, and as one text, twice at most.
    assert _peak_mb() - before_mb < 20 + 4 * chunks * len(chunk) / MB


def _peak_mb(pid: int | str = "self") -> float:
    """The most that was ever resident, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _from_here_on_mb() -> float:
    """What is resident now; `_peak_mb` begins again from it (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mb()
