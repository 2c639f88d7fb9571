"""The simulated provider as a program of its own: until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from redline.signals import run_until_told
from redline.sim.server import Sim
from redline.sim.settings import SimSettings

if sys.platform != "win32":
    import resource


def serve_forever(
    settings: SimSettings, *, on_url: Callable[[str], None], on_note: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM, then returns.

    on_url: told the base URL, once connections are accepted. on_note: told what is simulated,
    and at the end what was seen; one line each.
    Raises ConfigError where the settings or the address do not work.
    """

    async def main(stop: asyncio.Event) -> None:
        sim = Sim(settings)
        async with sim:
            on_url(sim.base_url)
            on_note(f"simulating {settings}; Ctrl-C ends it")
            await stop.wait()
        on_note(sim.summary())

    if sys.platform != "win32":
        _allow_connections()
    run_until_told(main)


def _allow_connections() -> None:
    """Raises the limit on open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
