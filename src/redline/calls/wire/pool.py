"""Makes keep-alive connections to one endpoint on demand, and keeps them while they are usable."""

from __future__ import annotations

import asyncio

from redline.calls.wire.connection import Connection
from redline.calls.wire.deadlines import Stops
from redline.calls.wire.dialer import Dialer
from redline.calls.wire.exchange import Exchange
from redline.calls.wire.proxy import no_connection
from redline.calls.wire.reply_memory import ReplyMemory
from redline.calls.wire.reuse import Reuse

# Servers close idle connections after 5 s (uvicorn) to 75 s (nginx). A closed connection costs a
# reconnect but no attempt, so this only bounds the number of idle sockets.
KEEP_ALIVE_S = 60.0
# The pool is swept this number of times in KEEP_ALIVE_S.
_PARTS = 2
# Within this time, the event loop has read everything in a socket.
_READ_S = 0.1


class Pool:
    """The connections to an endpoint's host.

    dialer: makes the connections. intake: bounds the memory of their answers. reuse: decides
    whether a connection may carry more than one request. stops: shared by the clocks of their
    exchanges. most_bytes: the largest body of a response. sweeps: the number of sweeps for old idle
    connections; idle time is counted in sweeps.
    """

    def __init__(
        self,
        dialer: Dialer,
        intake: ReplyMemory,
        reuse: Reuse,
        stops: Stops,
        most_bytes: int,
    ) -> None:
        self._most_bytes = most_bytes
        self._dialer = dialer
        self._stops = stops
        # The sweep since which each connection has been idle; the most recent one is taken first.
        self._idle: dict[Connection, int] = {}
        self._all: set[Connection] = set()
        self._intake = intake
        self._reuse = reuse
        intake.follow(self._all)
        self._sweeper: asyncio.TimerHandle | None = None
        # The event loop in which the connections are made.
        self._loop: asyncio.AbstractEventLoop | None = None
        self.sweeps = 0
        self._is_closed = False

    def take_now(self, exchange: Exchange) -> Connection | None:
        """Takes an idle connection for an exchange that has its grant or gets it at once.

        Returns None if no connection is idle, or if the exchange has to wait for anything.
        """
        if not self._idle or not self._reuse.is_allowed or self._intake.is_full:
            return None
        # The grant is taken first, so that no connection is taken and returned in vain.
        if exchange.failed is None and exchange.may_leave():
            return self._idle.popitem()[0]
        return None

    def take(self) -> tuple[Connection, int] | None:
        """Takes an idle connection; returns it and the sweep since which it has been idle.

        Returns None if no connection is idle.
        """
        while self._idle:
            connection, since = self._idle.popitem()
            if self._reuse.is_allowed or not connection.is_used:
                return connection, since
            connection.close()
        return None

    def give_back(self, connection: Connection, since: int | None = None) -> None:
        """Takes back a connection whose exchange is over, and keeps or closes it.

        since: the sweep since which it has been idle, if nothing was written on it; otherwise None.
        """
        if since is None:
            since = self.sweeps
        elif self._is_old(since):
            connection.close()
        if connection.release() and (self._reuse.is_allowed or not connection.is_used):
            self._idle[connection] = since
            if self._sweeper is None:
                self._sweep_later()
        elif connection.is_stale:
            # First, let the event loop read the bytes that have arrived: they show whether this
            # server may send responses without a request.
            asyncio.get_running_loop().call_later(_READ_S, connection.close)
        else:
            connection.close()

    async def connect(self) -> Connection:
        """Opens a connection. Raises as Dialer.connect does, and Disconnected after `close`."""
        if not self._is_closed:
            self.enter(asyncio.get_running_loop())
            connection = await self._dialer.connect(self._new)
            if not self._is_closed:
                if connection.is_open:
                    self._all.add(connection)
                return connection
            connection.close()
        raise no_connection(
            "the client was closed",
            hint="closing a Client closes its Pool or backend as well: make a new one per Client",
        )

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes the connections without an open request if they belong to another loop.

        If their loop has ended, no response on them would be read, and no clock would ring.
        """
        if loop is self._loop:
            return
        self._loop = loop
        self._stop_sweeper()
        for connection in list(self._all):
            if connection.is_done:
                connection.close()

    def close_latest(self) -> None:
        """Closes the connection that became idle last."""
        if self._idle:
            next(reversed(self._idle)).close()

    def close(self) -> None:
        """Closes every connection for good; `connect` then raises Disconnected."""
        self._is_closed = True
        self._stop_sweeper()
        self._idle.clear()
        for connection in list(self._all):
            connection.close()
        self._intake.forget(self._all)

    def _new(self) -> Connection:
        return Connection(self._lost, self._intake, self._stops, self._most_bytes)

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._idle.pop(connection, None)
        if connection.unasked:
            self._reuse.unasked(connection.unasked)

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(KEEP_ALIVE_S / _PARTS, self._sweep)

    def _stop_sweeper(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _is_old(self, since: int) -> bool:
        # The first sweep may have happened right after the connection became idle.
        return self.sweeps - since > _PARTS

    def _sweep(self) -> None:
        """Closes the connections that have been idle for at least KEEP_ALIVE_S."""
        self._sweeper = None
        self.sweeps += 1
        for connection, since in list(self._idle.items()):
            if self._is_old(since):
                connection.close()
        if self._idle:
            self._sweep_later()
