"""What the tests of exchanges over real sockets share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from redline.calls.direct import DirectTransport

WAYS = ("direct-asyncio", "direct-uvloop", "aiohttp-uvloop")
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a coroutine over either transport and loop, and fails it after ten seconds."""
    if request.param.startswith("aiohttp"):
        monkeypatch.setattr(DirectTransport, "takes", lambda *_: False)

    def run(main: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(10):
                await main

        is_uvloop = request.param.endswith("uvloop")
        factory = uvloop.new_event_loop if is_uvloop else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
