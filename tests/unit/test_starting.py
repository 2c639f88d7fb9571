"""Programs that tests start: on a port that stays free, and heard if they end at once."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from support import starting

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not RANGE.exists(), reason="this system does not say what it chooses")
def test_a_free_port_is_none_that_the_system_chooses() -> None:
    first, last = map(int, RANGE.read_text("utf-8").split())
    if last - first > 50_000:
        pytest.skip("here the system chooses of nearly all ports")
    ports = {starting.free_port() for _ in range(50)}
    assert len(ports) > 40
    assert not [port for port in ports if first <= port <= last]


def test_a_program_that_is_not_up_is_asked_again_and_ends_once_only() -> None:
    port = starting.free_port()
    process = starting.start(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)],
        lambda: starting.answers(port),
    )
    for _ in range(2):
        starting.end(process, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    assert not starting.answers(port)


def test_what_a_program_says_that_ends_at_once_is_told() -> None:
    with pytest.raises(AssertionError, match="ended with status 3: no such disk"):
        starting.start(
            [sys.executable, "-c", "import sys; sys.stderr.write('no such disk'); sys.exit(3)"],
            lambda: False,
        )
