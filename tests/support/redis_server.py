"""A redis-server of the tests' own: on a free port, in a folder of its own, keeping nothing."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import starting


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
        self.port = starting.free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Runs and answers on return."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        self.process = starting.start(command, self._answers)

    def stop(self) -> None:
        if self.process is not None:
            starting.end(self.process, signal.SIGTERM)
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
