"""Programs that listen on a port which the tests choose, and ports that stay free meanwhile."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_END = 65_536
_START_S = 60.0
_END_S = 20.0
# Of its own: tests seed the one that all share, in every process alike.
_DRAWS = random.SystemRandom()


def free_port() -> int:
    """A port of 127.0.0.1 that stays free until somebody asks for this very number.

    One that the system chose, for port 0, may be chosen again for any connection as soon as it is
    given back. So this is none of those that the system chooses.
    """
    while True:
        port = _DRAWS.choice(_CHOSEN_BY_NAME)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def answers(port: int) -> bool:
    """Somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def start(command: list[str], is_up: Callable[[], bool]) -> subprocess.Popen[bytes]:
    """The running program, once it is up; `end` ends it.

    Raises AssertionError, with what the program said, if it ends before or takes too long.
    """
    with tempfile.TemporaryFile() as said:
        # A session of its own, so that the programs that it starts end with it.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
        try:
            until_s = time.monotonic() + _START_S
            while not is_up():
                why = "" if process.poll() is None else f"ended with status {process.returncode}"
                if not why and time.monotonic() > until_s:
                    why = "does not answer"
                if why:
                    said.seek(0)
                    raise AssertionError(f"`{command[0]}` {why}: {said.read().decode()}")
                time.sleep(0.02)
        except BaseException:
            end(process, signal.SIGKILL)
            raise
    return process


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ends a program of `start`, with all that it has started; it may have ended by itself."""
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        pass
    process.wait(timeout=_END_S)


def _chosen_by_name() -> list[int]:
    """The ports that the system gives to nobody who does not ask for them."""
    try:
        first, last = map(int, _RANGE.read_text("utf-8").split())
    except OSError:
        # Not Linux: what IANA has set aside for the system's choice.
        first, last = 49_152, _END - 1
    ports = [port for port in range(_LOWEST, _END) if not first <= port <= last]
    return ports or list(range(_LOWEST, _END))


_CHOSEN_BY_NAME = _chosen_by_name()
