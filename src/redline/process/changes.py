"""Waits for other tasks of the event loop: for a condition that they change, and for their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancels the tasks, and returns when all of them have ended. None is ignored."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    if given:
        await asyncio.wait(given)


class Changes:
    """Wakes waiters when their condition holds.

    Like asyncio.Condition, but without a lock: nothing else runs on the event loop between a check
    and the beginning of the wait.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def notify(self) -> None:
        """Wakes the waiters whose condition now holds. Call it on the event loop's thread."""
        for is_so, waiter in self._waiting:
            if is_so() and not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Returns when `is_so` holds, immediately if it already does."""
        while not is_so():
            waiter = asyncio.Future[None]()
            entry = (is_so, waiter)
            self._waiting.append(entry)
            try:
                await waiter
            finally:
                self._waiting.remove(entry)
