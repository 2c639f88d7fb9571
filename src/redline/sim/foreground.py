"""The simulated provider as a program of its own: until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from redline.sim.server import Sim
from redline.sim.settings import SimSettings

if sys.platform != "win32":
    import resource

    import uvloop


def serve_forever(
    settings: SimSettings, *, on_url: Callable[[str], None], on_note: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM, then returns.

    on_url: told the base URL, once connections are accepted. on_note: told what is simulated,
    and at the end what was seen; one line each.
    Raises ConfigError where the settings or the address do not work.
    """
    serving = _serve(settings, on_url, on_note)
    if sys.platform == "win32":
        asyncio.run(serving)
        return
    _allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


async def _serve(
    settings: SimSettings, on_url: Callable[[str], None], on_note: Callable[[str], None]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        if sys.platform == "win32":
            signal.signal(name, lambda *_: loop.call_soon_threadsafe(stop.set))
        else:
            loop.add_signal_handler(name, stop.set)
    sim = Sim(settings)
    async with sim:
        on_url(sim.base_url)
        on_note(f"simulating {settings}; Ctrl-C ends it")
        await stop.wait()
    on_note(sim.summary())


def _allow_connections() -> None:
    """Raises the limit on open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
