"""A local engine as a program of its own: until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redline.engine.settings import EngineSettings
from redline.serve.local import serving
from redline.signals import end_at_once, on_signals, run_until_told


def serve_engine(
    settings: EngineSettings,
    *,
    host: str,
    port: int,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in flight, within bounds, and returns.

    A signal that comes while it loads, or while it closes, ends the process at once.
    on_url: told the base URL, once connections are accepted. on_note: told what is loaded.
    Raises ConfigError where the model or the address does not work, and EngineFailed where the
    engine ends by itself.
    """

    async def main(stop: asyncio.Event) -> None:
        def close(_: int) -> None:
            on_signals(end_at_once)
            stop.set()

        # Loading may wait for a network, and there is nobody yet to be answered. Ranks end by
        # themselves when this process has.
        on_signals(end_at_once)
        on_note(f"loading {settings.model}")
        async with serving(settings, host=host, port=port, is_named=True) as served:
            on_signals(close)
            on_url(served.front.base_url)
            for note in served.engine.notes:
                on_note(note)
            failed = asyncio.create_task(served.engine.thread.has_failed())
            failed.add_done_callback(lambda _: stop.set())
            await stop.wait()
            failed.cancel()
        if served.engine.thread.failure is not None:
            raise served.engine.thread.failure

    run_until_told(main)
