"""Exchanges without a backend: what one transport makes of what a server sends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from redline.calls import Endpoint, Timeouts
from redline.calls.wire import Answer, Exchange, Timing, Transport
from redline.clock import SYSTEM

_NO_HEADERS: Mapping[str, str] = {}


class FreeGrant:
    """A grant that nobody waits for."""

    waited_s = 0.0

    def sent(self, sent_s: float) -> None:
        pass


class Asked(Exchange, eq=False):
    """An exchange whose grant comes once `gate` is set, at once where there is none."""

    gate: asyncio.Event | None = None

    def may_leave(self) -> bool:
        if self.grant is None and self.gate is None:
            self.grant = cast(Any, FreeGrant())
        return self.grant is not None

    async def acquire(self) -> Any:
        assert self.gate is not None
        await self.gate.wait()
        return FreeGrant()


class Asking(NamedTuple):
    """A request as it is sent. deadline_s: monotonic time at which it is given up."""

    path: str
    body: bytes | None
    method: str
    headers: Mapping[str, str]
    deadline_s: float


def wire(
    path: str = "/x",
    body: bytes | None = b"{}",
    *,
    method: str = "POST",
    headers: Mapping[str, str] = _NO_HEADERS,
    deadline_s: float = math.inf,
) -> Asking:
    """A request as it is sent."""
    return Asking(path, body, method, headers, deadline_s)


class Asker:
    """Asks one endpoint over one Transport; `async with` closes it."""

    def __init__(
        self,
        base_url: str,
        *,
        timeouts: Timeouts | None = None,
        gate: asyncio.Event | None = None,
        **settings: Any,
    ) -> None:
        self.timeouts = timeouts or Timeouts(attempt_s=8, first_byte_s=8, connect_s=8)
        endpoint = Endpoint(base_url=base_url, timeouts=self.timeouts, **settings)
        self._gate = gate
        self.transport = Transport(endpoint, SYSTEM, lambda _: None)

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.aclose()

    async def ask(self, sent: Asking | None = None) -> Answer:
        """The whole answer. Raises CallError."""
        return await self.transport.exchange(self._exchange(sent or wire()))

    async def stream(
        self, take: Callable[[bytes], Awaitable[None]], sent: Asking | None = None
    ) -> Answer:
        """The answer whose event stream went to `take`. Raises CallError."""
        return await self.transport.exchange(self._exchange(sent or wire()), take)

    def _exchange(self, sent: Asking) -> Exchange:
        return Asked(
            Timing(self.timeouts, SYSTEM),
            head=self.transport.head(sent.method, sent.path, sent.headers, sent.body),
            body=sent.body or b"",
            deadline_s=sent.deadline_s,
            gate=self._gate,
        )
