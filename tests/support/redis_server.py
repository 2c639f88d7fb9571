"""A redis-server of the tests' own: on a free port, in a folder of its own, keeping nothing."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_START_S = 20.0


def why_not() -> str:
    """Why there can be no Redis here; empty where there can."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed: apt-get install redis-server"
    return "" if find_spec("redis") else "redis-py is not installed: pip install 'redline[redis]'"


needs_redis = pytest.mark.skipif(bool(why_not()), reason=why_not())


class RedisServer:
    """A running redis-server; `stop` and `start` again lose its data, as a restart does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Runs and answers on return."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until_s = time.monotonic() + _START_S
        while not self._answers():
            assert self.process.poll() is None, "redis-server ended at once"
            assert time.monotonic() < until_s, "redis-server does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A started server, stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
