"""Defines a server's bounds on sizes, connections and waiting times."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class HttpBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one server, all above 0; those that end in `_s` are in seconds.

    most_connections: the most open connections; any further connection gets 503 and is closed.
    most_head_bytes: the size of a request line with its headers, of the trailers, or of the framing
    around one chunk; up to 32 KiB more may be accepted. most_body_bytes: the size of one request's
    body, both compressed and decompressed. bodies_by_path: most_body_bytes for individual paths.

    head_s: the time from the first byte of a head, or from the end of the previous response if that
    is later, to the end of the head. body_s: the time for a body, counted from when the handler
    first waits for it; proportionally longer on a path with larger bodies.
    idle_s: the time until a request begins. unread_s: the time within which a client must read at
    least 64 KiB of the data buffered for it. wanted_s: the same while other requests wait for what
    the response holds (see `Exchange.holds`); unread_s if that is shorter.
    """

    most_connections: int = 32_768
    most_head_bytes: int = 64 * 1024
    most_body_bytes: int = 32 * 2**20
    bodies_by_path: Mapping[str, int] = {}
    head_s: float = 30.0
    body_s: float = 120.0
    idle_s: float = 300.0
    unread_s: float = 120.0
    wanted_s: float = 10.0
