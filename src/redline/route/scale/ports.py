"""Finds free ports on 127.0.0.1, and checks whether a process's descendants listen on a port."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from redline.errors import RedlineError
from redline.route.scale.guardian import descendants

HOST = "127.0.0.1"
# Above the ports of well-known services.
_LOWEST, _END = 10_000, 65_536
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTENING = "0A"
_TRIES = 1_000
_DRAWS = random.SystemRandom()


def free_port(taken: Collection[int] = ()) -> int:
    """Returns a free port that is not in `taken`. Raises RedlineError if none is found.

    The port is 10,000 or above, and outside the range from which the system assigns ports to
    outgoing connections (ip(7), ip_local_port_range), since a connection might take a port in that
    range before the replica does. A range that covers nearly all ports is not avoided.
    """
    first, last = _given_to_connections()
    for _ in range(_TRIES):
        port = _DRAWS.randrange(_LOWEST, _END)
        if port in taken or first <= port <= last:
            continue
        with socket.socket() as probe:
            # Set as servers set it: a port whose last connection has just ended counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RedlineError(f"no port on {HOST} is free for a replica", where=f"{_LOWEST} to {_END - 1}")


def _given_to_connections() -> tuple[int, int]:
    try:
        first, last = map(int, _RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        # Not Linux: the range that IANA reserves for this.
        return 49_152, _END - 1
    # If that range covers nearly all ports, it cannot be avoided.
    return (first, last) if first - _LOWEST + _END - last > 2 * _TRIES else (0, 0)


def is_listening(top: int, port: int) -> bool | None:
    """Returns whether a descendant of the process `top` listens on the port; None if unknown.

    Reads /proc (proc(5)), which takes milliseconds: do not call it in an event loop.
    """
    try:
        sockets = {f"socket:[{inode}]" for inode in _listening_on(port)}
        pids = [pid for pid, _ in descendants(top)] if sockets else []
    except (OSError, ValueError):
        return None
    return any(not sockets.isdisjoint(_files(pid)) for pid in pids) if sockets else None


def _listening_on(port: int) -> Iterator[str]:
    """Yields the inodes of the sockets that listen on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in Path(table).read_text("ascii").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield rest[5]


def _files(pid: int) -> Iterator[str]:
    """Yields the targets of a process's open files; none if it has ended or is another user's."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            yield os.readlink(f"{folder}/{name}")
