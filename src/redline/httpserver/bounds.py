"""Bounds of a server, and how long it waits for its clients."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class HttpBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one server. All above 0.

    most_connections: the most open connections; further ones get 503 and are closed.
    most_head_bytes: of a request line and its headers, of the trailers, or of what surrounds one
    chunk; 32 KiB more may pass. most_body_bytes: of one request, both compressed and decompressed.
    bodies_by_path: a larger or smaller bound for single paths. head_s: from the first byte of a
    head to its end.
    body_s: from the first wait for a body to its end; a path with larger bodies has more time in
    proportion. idle_s: until a request begins. unread_s: the time within which a client must take
    at least 64 KiB of what waits for it; wanted_s: the same while other requests need the memory
    that its response holds, at most unread_s.
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
