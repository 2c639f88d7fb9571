"""Keep-alive connections to one endpoint, made when wanted and kept while they are good."""

from __future__ import annotations

import asyncio
import time

from redline.calls.wire.connection import Connection
from redline.calls.wire.deadlines import Deadlines
from redline.calls.wire.dialer import Dialer
from redline.calls.wire.reply_memory import ReplyMemory
from redline.calls.wire.reuse import Reuse

# Servers close idle connections after 5 s (uvicorn) to 75 s (nginx). One that was closed meanwhile
# costs a reconnect and no attempt, so this only bounds idle sockets.
KEEP_ALIVE_S = 60.0
# By then the event loop has read what a socket held.
_READ_S = 0.1


class Pool:
    """The connections to an endpoint's host.

    dialer: makes them. intake: what bounds their answers. reuse: whether a connection may carry
    more than one request. deadlines: the clocks of their exchanges.
    """

    def __init__(
        self, dialer: Dialer, intake: ReplyMemory, reuse: Reuse, deadlines: Deadlines
    ) -> None:
        self._dialer = dialer
        self._deadlines = deadlines
        self._idle: dict[Connection, float] = {}  # since when; the last one in goes out first
        self._all: set[Connection] = set()
        self._intake = intake
        self._reuse = reuse
        intake.follow(self._all)
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self) -> Connection | None:
        """A connection that is up and not in use; None if there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if self._reuse.is_allowed or not connection.is_used:
                return connection
            connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """The connection's exchange is over, or will not be written on it."""
        is_reusable = connection.release()
        if connection.is_stale:
            # What has come on it is read first, for it tells something of the server.
            asyncio.get_running_loop().call_later(_READ_S, connection.close)
        elif is_reusable and (self._reuse.is_allowed or not connection.is_used):
            self._idle[connection] = time.monotonic()
            if self._sweeper is None:
                self._sweep_later()
        else:
            connection.close()

    async def connect(self) -> Connection:
        """A new connection. Raises as Dialer.connect."""
        connection = await self._dialer.connect(self._new)
        if connection.is_open:
            self._all.add(connection)
        return connection

    def close(self) -> None:
        """Closes every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self._all):
            connection.close()

    def _new(self) -> Connection:
        return Connection(self._lost, self._intake, self._deadlines)

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._idle.pop(connection, None)
        if connection.unasked:
            self._reuse.unasked(connection.unasked)

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(KEEP_ALIVE_S / 2, self._sweep)

    def _sweep(self) -> None:
        """Closes the connections that have been idle for long; the oldest come first."""
        self._sweeper = None
        since_s = time.monotonic() - KEEP_ALIVE_S
        for connection, idle_s in list(self._idle.items()):
            if idle_s > since_s:
                break
            connection.close()
        if self._idle:
            self._sweep_later()
