"""A `redline sim` in a process of its own, for tests that must not share its event loop."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redline.cli import main
from support import forked


class Simulated:
    """A running simulated provider."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def stats(self) -> dict[str, Any]:
        """Its own counts, from GET /sim/stats."""
        return self.get("/sim/stats")

    def requests(self) -> list[dict[str, Any]]:
        """Its records of the last requests, from GET /sim/requests."""
        found: list[dict[str, Any]] = self.get("/sim/requests?limit=100000")["requests"]
        return found

    def get(self, path: str) -> dict[str, Any]:
        url = self.base_url.removesuffix("/v1") + path
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as reply:
            found: dict[str, Any] = json.load(reply)
        return found


@contextmanager
def simulated(*flags: str) -> Iterator[Simulated]:
    """Starts `redline sim` with these flags on a free port; ends it at the end."""
    process, base_url = forked.started(main, ["sim", *flags])
    try:
        assert base_url.startswith("http://127.0.0.1:"), f"no URL from sim {flags}"
        yield Simulated(base_url)
    finally:
        process.terminate()
        forked.ended(process)
