"""Serves a local engine with the OpenAI API: in a block, or until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from redline.engine import EngineSettings
from redline.process import (
    end_at_once,
    end_at_second,
    on_signals,
    raise_limit_fully,
    run_until_told,
)
from redline.sources import extra
from redline.timeline import ServerUse

if TYPE_CHECKING:
    from redline.engine.api import Engine
    from redline.serve.http import Front

# The files in a model's folder that determine its answers: weights, tokenizer, template and
# settings.
_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*.txt")


class Serving(NamedTuple):
    """A front, and the engine behind it."""

    front: Front
    engine: Engine


# Seconds between readings of the GPU's use; a reading covers at most the last second.
_GPU_S = 1.0


class LocalEngine:
    """A model in this process, for `redline.run(rows, endpoint=LocalEngine(settings))`.

    It answers requests under any model name. The model is loaded when the run begins, and is closed
    when the run ends. The run raises ConfigError if the model cannot be loaded, and EngineFailed if
    one of its processes ends before it is ready.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.place = f"engine:{settings.model}"
        self.model = Path(settings.name).name
        self.notice = f"loading {settings.model}"
        self._engine: Engine | None = None
        self._used = ServerUse()
        self._gpu_busy, self._gpu_reads = 0.0, 0

    def identity(self) -> str:
        """Returns the model's location, dtype and, for a folder, its files' names, sizes and times.

        A model from the Hugging Face Hub is identified only by its name and the dtype.
        """
        folder = Path(self.settings.model)
        if not folder.is_dir():
            return f"{self.place} {self.settings.dtype}"
        found = sorted(path for kind in _FILES for path in folder.glob(kind) if path.is_file())
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]
        return f"engine:{folder.resolve()} {self.settings.dtype} {files}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yields the base URL of a server for the model, which is closed at the end of the block.

        Raises as `serving` does.
        """
        async with serving(self.settings) as served:
            self._engine = served.engine
            self._gpu_busy, self._gpu_reads = 0.0, 0
            await self._read_gpu()
            reading = asyncio.create_task(self._read_gpu_on())
            try:
                yield served.front.base_url
            finally:
                reading.cancel()
                # Without this reference, the engine's memory is freed; the figures stay.
                self._used, self._engine = self.use(), None

    def use(self) -> ServerUse:
        """Returns how full the batches and how busy the GPU have been since `open` was entered."""
        if self._engine is None:
            return self._used
        metrics = self._engine.metrics
        return ServerUse(
            batch_rows=metrics.batch_rows,
            batch_places=metrics.batch_places,
            gpu_busy=self._gpu_busy,
            gpu_reads=self._gpu_reads,
        )

    async def _read_gpu_on(self) -> None:
        while self._gpu_reads:
            await asyncio.sleep(_GPU_S)
            await self._read_gpu()

    async def _read_gpu(self) -> None:
        """Adds a reading, unless there is no GPU or its driver's library is missing."""
        from redline.engine.api import gpu_use

        # In a thread, because the driver may take a long time to answer.
        if (used := await asyncio.to_thread(gpu_use)) is not None:
            self._gpu_busy += used
            self._gpu_reads += 1


@asynccontextmanager
async def serving(
    settings: EngineSettings, *, host: str = "127.0.0.1", port: int = 0, is_named: bool = False
) -> AsyncIterator[Serving]:
    """Loads the model, which may take minutes, and serves it in the `async with` block.

    The front and the engine are closed at the end of the block. port: 0 for a free one. is_named:
    whether requests that name another model are refused. Raises ConfigError if the model or the
    address cannot be used, and EngineFailed if a rank ends before it is ready.
    """
    # Imported here, like PyTorch, so that other commands do not wait for these imports.
    from redline.httpserver import check_address
    from redline.serve.http import Front

    await check_address("the server", (host, port))
    engine = await _loaded(settings)
    front = Front(
        engine.backend,
        models=tuple(dict.fromkeys((engine.name, settings.model))),
        takes_any=not is_named,
        host=host,
        port=port,
        metrics=engine.metrics.__str__,
    )
    engine.thread.start()
    try:
        async with front:
            yield Serving(front, engine)
    finally:
        await engine.backend.aclose()


async def _loaded(settings: EngineSettings) -> Engine:
    """Loads the engine in a thread. If this is cancelled, the engine is closed once loaded."""
    loader = ThreadPoolExecutor(1, "redline loading")
    loading = loader.submit(_load, settings)
    loader.shutdown(wait=False)
    try:
        return await asyncio.wrap_future(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_discard)
        raise


def _discard(loading: Future[Engine]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().thread.discard()


def _load(settings: EngineSettings) -> Engine:
    for module in ("torch", "transformers"):
        extra(module, "engine", "a local engine")
    from redline.engine.api import open_engine

    return open_engine(settings)


def serve_engine(
    settings: EngineSettings,
    *,
    host: str,
    port: int,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM; requests in flight then get 10 s to finish.

    A signal that arrives while the model is loading, or a second one, ends the process at once.
    on_url: called with the base URL once connections are accepted. on_note: called with each notice
    about the model. Raises ConfigError if the model or the address cannot be used, and EngineFailed
    if the engine fails.
    """

    async def main(stop: asyncio.Event) -> None:
        # Loading may wait for the network, and there are no requests to finish yet. Ranks end by
        # themselves once this process has ended.
        on_signals(end_at_once)
        raise_limit_fully()
        on_note(f"loading {settings.model}")
        async with serving(settings, host=host, port=port, is_named=True) as served:
            end_at_second(stop)
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
