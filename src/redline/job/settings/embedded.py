"""Servers inside the process of a run, in place of an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, runtime_checkable

# An endpoint is made before its server has started, and with it the port is known.
UNKNOWN_URL = "http://127.0.0.1/v1"


@runtime_checkable
class Embedded(Protocol):
    """A server that a run starts and ends.

    place: what it is called in files, since its port is another one each time.
    model: asked if the run names none. notice: to be shown while it starts; empty for nothing.
    """

    @property
    def place(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def notice(self) -> str: ...

    def identity(self) -> str:
        """The part of a cache key that changes whenever its answers may change."""
        ...

    def open(self) -> AbstractAsyncContextManager[str]:
        """The server's base URL, while entered. Raises ConfigError if it cannot start."""
        ...


class EmbeddedSim:
    """The simulated provider with its usual settings."""

    place = model = "sim"
    notice = ""

    def identity(self) -> str:
        """Its place, since it always answers alike."""
        return self.place

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """The server's base URL, while entered."""
        # Imported here: a run against a real endpoint does not pay for a server's start-up.
        from redline.sim import SimSettings
        from redline.sim.server import Sim

        async with Sim(SimSettings()) as sim:
            yield sim.base_url
