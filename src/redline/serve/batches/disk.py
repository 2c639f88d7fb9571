"""Reads and writes files in one thread, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from redline.process import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")


class Disk:
    """Runs functions in one thread, so operations on a file happen in the order of the calls."""

    def __init__(self, name: str) -> None:
        self._thread = DaemonThreads(1, name)
        self._unfinished: set[asyncio.Task[Any]] = set()

    async def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function when its turn comes, and returns its result."""
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    def later(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls the function when its turn comes, without waiting for its result."""
        self._thread.submit(function, *args, **kwargs)

    async def whole(self, steps: Coroutine[Any, Any, T]) -> T:
        """Runs the steps to the end, even if the caller is cancelled, and returns their result."""
        task = asyncio.get_running_loop().create_task(steps)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            # If the caller was cancelled, asyncio.shield retrieves no error (CPython 3.11).
            task.exception()

    async def aclose(self) -> None:
        """Waits until all operations are complete, and ends the thread."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)
        self._thread.shutdown(wait=False)
        await asyncio.to_thread(self._thread.join, None)
