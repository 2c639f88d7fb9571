"""Reserves an address on which several processes listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from redline.httpserver import cannot_listen


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Reserves a port for this user's processes, which share it by SO_REUSEPORT; yields the port.

    port: 0 for a free one. Does not listen on the port. Raises ConfigError if the address cannot be
    used, for example because another process listens on it.
    """
    with ExitStack() as stack:
        try:
            for family, place in _places(host):
                # First bound unshared: sharing would hide that another process listens there.
                _bound(family, place, port).close()
                held = stack.enter_context(closing(_bound(family, place, port, is_shared=True)))
                port = held.getsockname()[1]
        except OSError as error:
            raise cannot_listen("the server", (host, port), error) from error
        yield port


def _places(host: str) -> list[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(place[0])) for family, _, _, _, place in found))


def _bound(
    family: socket.AddressFamily, place: str, port: int, *, is_shared: bool = False
) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((place, port))
    except BaseException:
        made.close()
        raise
    return made
