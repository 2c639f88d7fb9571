"""Runs of real jobs, a delay planted in one phase of their calls, and what their timelines say.

What was planted is read from the log of the simulated provider, or from the clock of the shim that
made the delay; so a machine that is late is late in both.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import redline
from redline import Endpoint
from redline.limits import Limits
from redline.observe import time_by_phase
from redline.timeline import NAME, Window, read_timeline
from support.sim_process import SimProcess

Options = Mapping[str, Any]


class Ran(NamedTuple):
    """What the timeline of a run says, and the requests that the provider has seen."""

    windows: list[Window]
    phases: dict[str, float]
    seen: list[dict[str, Any]]

    @property
    def attributed_s(self) -> float:
        """Of the time in which rows were in hand."""
        outside = ("durable", "unattributed")
        return sum(s for name, s in self.phases.items() if name not in outside)

    @property
    def unattributed(self) -> float:
        """The share of the time in hand that no phase accounts for."""
        rest_s = self.phases.get("unattributed", 0.0)
        return rest_s / (self.attributed_s + rest_s)

    @property
    def sampled_s(self) -> float:
        """The same time, by the rows that were in hand at each sample (Little's law)."""
        return sum(one.in_hand * one.span_s for one in self.windows)


class Planted(NamedTuple):
    """phase: where it was planted. seconds: how long it was, all calls together."""

    phase: str
    seconds: float
    ran: Ran

    @property
    def found_s(self) -> float:
        return self.ran.phases.get(self.phase, 0.0)

    @property
    def error(self) -> float:
        """By how much it is off, in proportion."""
        return self.found_s / self.seconds - 1


def run(folder: Path, sim: SimProcess, rows: int = 40, **options: Any) -> Ran:
    """A job of so many rows, to its end."""
    texts = [{"id": n, "text": f"row {n}"} for n in range(rows)]
    if "call" not in options:
        options = {"endpoint": sim.base_url, "model": "m", "prompt": "{{ text }}", **options}
    report = redline.run(texts, output=folder / "out.jsonl", progress=False, **options)
    assert report.succeeded == rows, report
    windows = read_timeline(folder / "out.redline" / NAME).runs[-1].windows
    seen = sim.get("/sim/requests?limit=100000")["requests"]
    return Ran(list(windows), time_by_phase(windows), seen)


def first_byte(folder: Path) -> Planted:
    """A provider that takes its time."""
    with SimProcess("--latency", "0.2-0.4") as sim:
        ran = run(folder, sim, concurrency=8)
    return Planted("first_byte", sum(map(_served_s, ran.seen)), ran)


def grant(folder: Path) -> Planted:
    """A limit of 20 a second for 8 calls at once that take no time."""
    workers = 8
    with SimProcess() as sim:
        ran = run(folder, sim, concurrency=workers, rps=20)
    # Each of the first calls has waited since the first of all, which was sent at once; each later
    # one since the end of that by which its worker became free.
    arrived = sorted(one["arrival_s"] for one in ran.seen)
    begun = [arrived[0]] * workers + sorted(one["ended_s"] for one in ran.seen)
    return Planted("grant", sum(a - b for a, b in zip(arrived, begun, strict=False)), ran)


def slot(folder: Path) -> Planted:
    """One slot, and more workers: there are more if a function of the user's takes answers."""
    with SimProcess("--latency", "0.15") as sim:
        ran = run(folder, sim, rows=12, concurrency=1, after=lambda output: output)
    # All rows are in hand from the beginning; each waits until those before it are served.
    arrived = sorted(one["arrival_s"] for one in ran.seen)
    return Planted("slot", sum(at_s - arrived[0] for at_s in arrived), ran)


def queue(folder: Path) -> Planted:
    """Two endpoints that take one call each, and more workers."""
    with SimProcess("--latency", "0.2") as one, SimProcess("--latency", "0.2") as other:
        endpoints = [
            Endpoint(base_url=sim.base_url, name=name, limits=Limits(concurrency=1))
            for sim, name in ((one, "one"), (other, "other"))
        ]
        ran = run(folder, one, rows=16, endpoint=endpoints, after=lambda output: output)
        seen = [*ran.seen, *other.get("/sim/requests?limit=100000")["requests"]]
    arrived = sorted(each["arrival_s"] for each in seen)
    waited_s = sum(at_s - arrived[0] for at_s in arrived)
    return Planted("queue", waited_s, ran._replace(seen=seen))


def backoff(folder: Path) -> Planted:
    """One row that fails until the provider works again."""
    with SimProcess("--faults", "500=1") as sim:
        works = threading.Timer(1.5, sim.disturb)
        works.start()
        ran = run(folder, sim, rows=1)
        works.join()
    pauses = zip(ran.seen, ran.seen[1:], strict=False)
    waited_s = sum(later["arrival_s"] - one["ended_s"] for one, later in pauses)
    return Planted("backoff", waited_s, ran)


def client(folder: Path) -> Planted:
    """A function of the user's that works on each row before it is sent."""
    worked: list[float] = []

    def before(row: dict[str, Any]) -> dict[str, Any]:
        begun_s = time.monotonic()
        time.sleep(0.3)
        worked.append(time.monotonic() - begun_s)
        return row

    # As many threads as rows: none of them waits for its turn.
    with SimProcess() as sim, ThreadPoolExecutor(20) as threads:
        ran = run(folder, sim, rows=20, before=before, executor=threads)
    return Planted("client", sum(worked), ran)


def connect(folder: Path) -> Planted:
    """A door that takes its time for each handshake of TLS."""
    with SimProcess("--latency", "0.1") as sim, _late_door(folder, sim.port, 0.3) as (url, took):
        ran = run(folder, sim, rows=16, concurrency=8, endpoint=url)
    return Planted("connect", sum(took), ran)


def send(folder: Path) -> Planted:
    """A disk that takes its time for each write, and results are written before the next send."""
    # The first answer comes when all rows have been read: none of them waits for its row.
    with _slowed("write", folder, 0.1) as took, SimProcess("--latency", "0.05") as sim:
        ran = run(folder, sim, rows=20, concurrency=1)
    # The last row's line is followed by no request.
    return Planted("send", sum(end_s - begin_s for begin_s, end_s in took[:-1]), ran)


def durable(folder: Path) -> Planted:
    """A disk that takes its time for each fsync."""
    with _slowed("fsync", folder, 0.3) as took, SimProcess("--latency", "0.1") as sim:
        ran = run(folder, sim, rows=60, concurrency=2)
    waited_s = 0.0
    for one in ran.seen:
        # The first fsync that began after its line was there.
        end_s = next(end_s for begin_s, end_s in took if begin_s >= one["ended_s"])
        waited_s += end_s - one["ended_s"]
    return Planted("durable", waited_s, ran)


PLANTED: dict[str, Callable[[Path], Planted]] = {
    made.__name__: made
    for made in (first_byte, grant, slot, queue, backoff, client, connect, send, durable)
}


def _served_s(request: Mapping[str, Any]) -> float:
    return float(request["ended_s"] - request["arrival_s"])


@contextmanager
def _slowed(name: str, folder: Path, by_s: float) -> Iterator[list[tuple[float, float]]]:
    """A function of `os` that takes longer for the results; when each call of it began and ended.

    fsync and fdatasync are one.
    """
    names = ("fsync", "fdatasync") if name == "fsync" else (name,)
    took: list[tuple[float, float]] = []
    results = str(folder / "out.jsonl")

    def slow(real: Callable[..., Any]) -> Callable[..., Any]:
        def function(fd: int, *args: Any) -> Any:
            if os.readlink(f"/proc/self/fd/{fd}") != results:
                return real(fd, *args)
            begun_s = time.monotonic()
            time.sleep(by_s)
            try:
                return real(fd, *args)
            finally:
                took.append((begun_s, time.monotonic()))

        return function

    before = {each: getattr(os, each) for each in names}
    try:
        for each, real in before.items():
            setattr(os, each, slow(real))
        yield took
    finally:
        for each, real in before.items():
            setattr(os, each, real)


@contextmanager
def _late_door(folder: Path, port: int, by_s: float) -> Iterator[tuple[str, list[float]]]:
    """Its URL, and how long the handshakes took; in TLS, before a server on this port."""
    trusted = folder / "door.pem"
    words = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    names = ("-subj", "/CN=door", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    files = ("-keyout", "door.key", "-out", trusted.name)
    subprocess.run(["openssl", *words, *names, *files], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, folder / "door.key")
    took: list[float] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async def serve(accepted: socket.socket) -> None:
        begun_s, loop = time.monotonic(), asyncio.get_running_loop()
        await asyncio.sleep(by_s)
        reader = asyncio.StreamReader()
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader), accepted, ssl=context
        )
        took.append(time.monotonic() - begun_s)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        async with asyncio.TaskGroup() as group:

            async def accept() -> None:
                while True:
                    accepted, _ = await loop.sock_accept(listener)
                    group.create_task(serve(accepted))

            accepting = group.create_task(accept())
            await asyncio.wrap_future(over)
            accepting.cancel()

    over = Future[None]()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(trusted)
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/v1", took
    finally:
        if before is None:
            del os.environ["SSL_CERT_FILE"]
        else:
            os.environ["SSL_CERT_FILE"] = before
        over.set_result(None)
        thread.join()
        listener.close()
