"""Defines the servers that a run can start in its own process, in place of an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, runtime_checkable

from redline.timeline import ServerUse

# The URL of an embedded server that has not started: its port is not known yet.
UNKNOWN_URL = "http://127.0.0.1/v1"


@runtime_checkable
class Embedded(Protocol):
    """A server that a run starts and stops.

    place: the server's name in files, since its port differs in each run. model: the model to ask
    if the run sets none. notice: shown while the server starts; empty for none.
    """

    @property
    def place(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def notice(self) -> str: ...

    def identity(self) -> str:
        """Returns the part of a cache key that changes whenever the server's answers may change."""
        ...

    def use(self) -> ServerUse | None:
        """Returns the server's use since it started; None if it does not report its use."""
        ...

    def open(self) -> AbstractAsyncContextManager[str]:
        """Runs the server until the context is left, and yields its base URL.

        Raises ConfigError if the server cannot start.
        """
        ...


class EmbeddedSim:
    """The simulated provider with its default settings."""

    place = model = "sim"
    notice = ""

    def identity(self) -> str:
        """Returns `place`, since the simulated answers never change."""
        return self.place

    def use(self) -> ServerUse | None:
        """Returns None: a simulated provider has neither batches nor a GPU."""
        return None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Runs the server until the context is left, and yields its base URL."""
        # Imported here: a run against a real endpoint does not pay for a server's start-up.
        from redline.sim import SimSettings
        from redline.sim.server import Sim

        async with Sim(SimSettings()) as sim:
            yield sim.base_url
