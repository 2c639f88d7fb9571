"""A process that is stopped for longer than its clocks: answers that are there are read first."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from support.raw_server import RawServer, Seen, answer, chat

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

ROWS = 20
LONG = "x" * 300_000


FUNCTION = """
import asyncio, sys, redline

async def ask(row):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    writer.write(b"GET / HTTP/1.1\\r\\n\\r\\n")
    await reader.readuntil(b"there")
    writer.close()
    return "heard"

report = redline.run([{"n": 1}], call=ask, timeout_s=0.5, max_retries=0, progress=False)
print(report.succeeded)
"""


async def stop(process: subprocess.Popen[bytes]) -> None:
    """Returns once the process is stopped."""
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110
        await asyncio.sleep(0.002)


class Stopped:
    """`redline run` in a process that a handler of its server stops."""

    def __init__(self, folder: Path, base_url: str, *flags: str, **environ: str) -> None:
        lines = [json.dumps({"prompt": str(number)}) for number in range(ROWS)]
        (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
        words = ["run", "rows.jsonl", "--model", "m", "--base-url", base_url, "-o", "out.jsonl"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redline", *words, "-c", str(ROWS), *flags],
            cwd=folder,
            stderr=subprocess.PIPE,
            env={**os.environ, "NO_PROXY": "*", **environ},
        )

    async def stop(self) -> None:
        """Returns once the process is stopped."""
        await stop(self.process)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (LONG, ("--timeout", "500ms")),
        ("short", ("--first-byte-timeout", "500ms")),
        (LONG, ("--row-deadline", "700ms")),
    ],
    ids=["attempt", "first byte", "row"],
)
def test_answers_that_came_meanwhile_are_not_thrown_away(
    tmp_path: Path, flags: tuple[str, ...], text: str
) -> None:
    async def main() -> None:
        writers: list[asyncio.StreamWriter] = []
        is_full, may_end = asyncio.Event(), asyncio.Event()

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if len(server.seen) > ROWS:
                writer.write(answer(chat("again")))
                return
            writers.append(writer)
            if len(writers) == ROWS:
                is_full.set()
            await may_end.wait()

        async with RawServer(handle) as server:
            stopped = Stopped(tmp_path, server.base_url, *flags)
            try:
                await is_full.wait()
                await stopped.stop()
                for writer in writers:
                    writer.write(answer(chat(text)))
                # Longer than any clock of the process.
                await asyncio.sleep(0.8)
                stopped.go_on()
                may_end.set()
                _, err = await asyncio.to_thread(stopped.process.communicate)
            finally:
                stopped.process.kill()
            assert stopped.process.returncode == 0, err.decode()
            assert len(server.seen) == ROWS
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [(line["output"], line["attempts"]) for line in lines] == [(text, 1)] * ROWS

    asyncio.run(main())


def test_an_answer_that_begins_right_after_a_stop_is_read_to_its_end(tmp_path: Path) -> None:
    """The clock of the whole answer ran out in the stop too, and is set only by its first byte."""

    async def main() -> None:
        is_full, may_begin = asyncio.Event(), asyncio.Event()

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if len(server.seen) > ROWS:
                writer.write(answer(chat("again")))
                return
            if len(server.seen) == ROWS:
                is_full.set()
            await may_begin.wait()
            whole = answer(chat(LONG))
            writer.write(whole[:1000])
            await asyncio.sleep(0.1)
            writer.write(whole[1000:])

        async with RawServer(handle) as server:
            flags = ("--first-byte-timeout", "500ms", "--timeout", "700ms")
            stopped = Stopped(tmp_path, server.base_url, *flags)
            try:
                await is_full.wait()
                await stopped.stop()
                await asyncio.sleep(1.5)
                stopped.go_on()
                await asyncio.sleep(0.1)
                may_begin.set()
                _, err = await asyncio.to_thread(stopped.process.communicate)
            finally:
                stopped.process.kill()
            assert stopped.process.returncode == 0, err.decode()
            assert len(server.seen) == ROWS

    asyncio.run(main())


def test_a_connection_that_came_about_meanwhile_is_used(tmp_path: Path, authority: Path) -> None:
    """The handshake's last step is the stopped process's, after its clock has run out."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "right.pem", authority / "right.key")

    def answer_one(connected: socket.socket) -> None:
        with connected, context.wrap_socket(connected, server_side=True) as secure:
            secure.recv(65_536)
            secure.sendall(answer(chat("a")))

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            url = f"https://127.0.0.1:{listener.getsockname()[1]}/v1"
            roots = {"SSL_CERT_FILE": str(authority / "ca.pem")}
            flags = ("--connect-timeout", "500ms", "--limit", "1")
            stopped = Stopped(tmp_path, url, *flags, **roots)
            loop = asyncio.get_running_loop()
            try:
                connected, _ = await loop.sock_accept(listener)
                await stopped.stop()
                connected.setblocking(True)
                answering = asyncio.ensure_future(asyncio.to_thread(answer_one, connected))
                await asyncio.sleep(0.8)
                stopped.go_on()
                _, err = await asyncio.to_thread(stopped.process.communicate)
                await answering
            finally:
                stopped.process.kill()
            assert stopped.process.returncode == 0, err.decode()
            with pytest.raises(BlockingIOError):
                listener.accept()

    asyncio.run(main())


def test_a_function_whose_answer_came_meanwhile_is_heard(tmp_path: Path) -> None:
    script = tmp_path / "calls.py"
    script.write_text(FUNCTION, "utf-8")

    async def main() -> None:
        may_end = asyncio.Event()

        async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
            may_end.set()
            await asyncio.Event().wait()

        async with RawServer(handle) as server:
            process = subprocess.Popen(
                [sys.executable, str(script), str(server.port)], stdout=subprocess.PIPE
            )
            try:
                await may_end.wait()
                await stop(process)
                for writer in server.writers:
                    writer.write(answer("there"))
                await asyncio.sleep(0.8)
                process.send_signal(signal.SIGCONT)
                out, _ = await asyncio.to_thread(process.communicate)
            finally:
                process.kill()
            assert (out, len(server.seen)) == (b"1\n", 1)

    asyncio.run(main())
