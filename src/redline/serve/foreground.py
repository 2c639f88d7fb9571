"""A local engine as a program of its own: until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from redline.engine.settings import EngineSettings
from redline.serve.local import serving

if sys.platform != "win32":
    import uvloop


def serve_engine(
    settings: EngineSettings,
    *,
    host: str,
    port: int,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM, then returns.

    on_url: told the base URL, once connections are accepted. on_note: told what is loaded.
    Raises ConfigError where the model or the address does not work, and EngineFailed where the
    engine ends by itself.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            if sys.platform == "win32":
                signal.signal(name, lambda *_: loop.call_soon_threadsafe(stop.set))
            else:
                loop.add_signal_handler(name, stop.set)
        on_note(f"loading {settings.model}")
        async with serving(settings, host=host, port=port, is_named=True) as served:
            on_url(served.front.base_url)
            for note in served.engine.notes:
                on_note(note)
            failed = asyncio.create_task(served.engine.thread.has_failed())
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait((failed, ended), return_when=asyncio.FIRST_COMPLETED)
            failure = served.engine.thread.failure
            for task in (failed, ended):
                task.cancel()
        if failure is not None:
            raise failure

    if sys.platform == "win32":
        asyncio.run(main())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
