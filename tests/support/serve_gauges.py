"""What a running gateway holds: by its status page, and by what Linux says of its process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def cpu_s(pid: int) -> float:
    """User and system time so far, in seconds (proc(5), stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """What of the process is in memory, in MiB (proc(5), statm)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int, *ports: int) -> int:
    """Files and sockets that the process has open, but for connections to these ports."""
    found = 0
    passed = _connected(ports)
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += os.readlink(f"/proc/{pid}/fd/{name}") not in passed
        except FileNotFoundError:
            continue
    return found


def _connected(ports: Collection[int]) -> set[str]:
    """Sockets whose other end is one of these ports (proc(5), net/tcp)."""
    if not ports:
        return set()
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{line[9]}]" for line in lines if int(line[2].rpartition(":")[2], 16) in ports}


def held(status: dict[str, Any]) -> dict[str, int]:
    """What is in flight or waits, by the status page of a gateway; empty at rest."""
    found = {"running": status["running"], "waiting": status["waiting"]}
    for one in status["classes"]:
        found[f"class {one['name']} running"] = one["running"]
        found[f"class {one['name']} waiting"] = one["waiting"]
    for one in status["tenants"]:
        found[f"tenant {one['name']} running"] = one["running"]
    return {name: value for name, value in found.items() if value}


def settle(read: Callable[[], Any], opened: Callable[[], int], most_descriptors: int) -> None:
    """Returns once a gateway is at rest with so many descriptors. read: its status page.

    Raises AssertionError with what is left if that takes too long.
    """
    until_s = time.monotonic() + 30
    while True:
        left, open_now = held(read()), opened()
        if not left and open_now <= most_descriptors:
            return
        assert time.monotonic() < until_s, (left, open_now, most_descriptors)
        time.sleep(0.05)
