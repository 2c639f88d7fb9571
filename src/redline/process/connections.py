"""Sets up TCP keep-alive, for connections that are silent for a long time."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

# The options that this system has: idle seconds before the first probe (two names: Linux's and
# macOS's), seconds between probes, and the number of lost probes that end the connection. By
# default, the idle time is two hours.
_OPTIONS = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPALIVE", 60),
        ("TCP_KEEPINTVL", 60),
        ("TCP_KEEPCNT", 5),
    )
    if hasattr(socket, name)
]


def keep_alive(connected: socket.socket | TransportSocket | None) -> None:
    """Makes the system probe a TCP connection every minute while the connection is idle.

    An answer may take many minutes, but NATs and firewalls forget a silent connection, some after
    four minutes: the answer would be billed and never arrive. connected: the connection's socket;
    None, for a transport without a socket, is ignored.
    """
    if connected is None:
        return
    # macOS refuses to set options of a connection that the other side has closed.
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
