"""Waiting for a state that others change, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes those who wait for a state once it has come about.

    As asyncio.Condition, without its lock: nothing else runs on the event loop between a check and
    the beginning of the wait.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def notify(self) -> None:
        """Wakes the waiters for this state, because it has changed. On the event loop's thread."""
        for is_so, waiter in self._waiting:
            if is_so() and not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Returns once `is_so` holds, at once if it does already."""
        while not is_so():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (is_so, waiter)
            self._waiting.append(entry)
            try:
                await waiter
            finally:
                self._waiting.remove(entry)
