"""Servers inside the process of a run, in place of an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, runtime_checkable

from redline.timeline import ServerUse

# An endpoint is made before its server starts; the port is known only after that.
UNKNOWN_URL = "http://127.0.0.1/v1"


@runtime_checkable
class Embedded(Protocol):
    """A server that a run starts and ends.

    place: its name in files, because its port changes each time. model: the model to ask if the run
    sets none. notice: shown while it starts; empty for none.
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
        """Returns how it was used since it began; None for a server that does not report it."""
        ...

    def open(self) -> AbstractAsyncContextManager[str]:
        """Runs the server while entered, and yields its base URL.

        Raises ConfigError if it cannot start.
        """
        ...


class EmbeddedSim:
    """The simulated provider with its usual settings."""

    place = model = "sim"
    notice = ""

    def identity(self) -> str:
        """Returns its place, since its answers never change."""
        return self.place

    def use(self) -> ServerUse | None:
        """Returns None: a simulated provider has neither batches nor a GPU."""
        return None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Runs the server while entered, and yields its base URL."""
        # Imported here: a run against a real endpoint does not pay for a server's start-up.
        from redline.sim import SimSettings
        from redline.sim.server import Sim

        async with Sim(SimSettings()) as sim:
            yield sim.base_url
