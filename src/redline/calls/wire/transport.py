"""How one endpoint's exchanges travel: over redline's own connections, else over aiohttp."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from string import punctuation
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from redline.calls.wire.direct import DirectTransport
from redline.calls.wire.endpoint import Endpoint, proxy_of
from redline.calls.wire.exchange import EVENTS, Answer, Exchange, Wire
from redline.calls.wire.reply_memory import ReplyMemory
from redline.calls.wire.reuse import Reuse
from redline.clock import Clock

if TYPE_CHECKING:
    from redline.calls.wire.aiohttp_transport import AiohttpTransport


class Transport:
    """The exchanges of one endpoint. Raises ConfigError for a proxy that cannot be used.

    on_handshake: told the seconds that a connection took, of some of them.
    """

    def __init__(
        self, endpoint: Endpoint, clock: Clock, on_handshake: Callable[[float], None]
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._on_handshake = on_handshake
        self.proxy = proxy_of(endpoint)
        self.intake = ReplyMemory(endpoint.max_reply_bytes)
        self._reuse = Reuse()
        self._direct = DirectTransport(endpoint, clock, on_handshake, self.intake, self._reuse)
        self._other: AiohttpTransport | None = None
        # The last method and headers that went over `direct`: most rows of a run have the same.
        self._taken: tuple[str, Mapping[str, str]] = ("", {})
        self.target = lru_cache(maxsize=1024)(self._target)

    def exchange(
        self,
        wire: Wire,
        exchange: Exchange,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        kind: str = EVENTS,
    ) -> Awaitable[Answer]:
        """The whole answer to `wire`. Raises CallError, and Repeat if the exchange may.

        take: gets what is of this kind as it comes, awaited. The answer's body is then empty; an
        answer of another type or status is read whole.
        """
        # A function that hands a coroutine on: awaiting it here would cost each call one more.
        method, headers = self._taken
        if headers is wire.headers and method == wire.method:
            return self._direct.exchange(wire, exchange, take, kind)
        return self._for(wire).exchange(wire, exchange, take, kind)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._direct.aclose()
        if self._other is not None:
            await self._other.aclose()

    def _for(self, wire: Wire) -> DirectTransport | AiohttpTransport:
        if self.proxy is None and self._direct.takes(wire):
            self._taken = (wire.method, wire.headers)
            return self._direct
        if self._other is None:
            # 0.2 s of imports that few runs need.
            from redline.calls.wire.aiohttp_transport import AiohttpTransport

            self._other = AiohttpTransport(
                self._endpoint,
                self._clock,
                self._on_handshake,
                self.intake,
                self._reuse,
                self.proxy,
            )
        return self._other

    def _target(self, path: str) -> str:
        """The path and query that a request's path stands for. Raises ConfigError for no path."""
        url = self._endpoint.url_of(path).partition("#")[0]
        parts = urlsplit(url)
        target = url[len(parts.scheme) + 3 + len(parts.netloc) :] or "/"
        # Percent signs stay as they are; characters that need quoting were refused by the server
        # anyway, so quote only where they occur.
        is_plain = target.isascii() and " " not in target
        return target if is_plain else quote(target, safe=punctuation)
