"""Caps the concurrency: serves a bounded number of requests; others wait in order of arrival."""

from __future__ import annotations

import asyncio

# More than any reasonable client needs. A longer queue would only hide that a client sends too many
# requests.
MAX_WAITING = 4096


class Slots:
    """Grants at most `cap` slots at once (None: no cap); `max_waiting` requests may wait."""

    def __init__(self, cap: int | None, max_waiting: int = MAX_WAITING) -> None:
        self._free = None if cap is None else asyncio.Semaphore(cap)
        # The number of requests that wait for a slot.
        self.waiting = 0
        self._max_waiting = max_waiting

    @property
    def is_full(self) -> bool:
        """Whether another request could be neither served nor queued."""
        return self._free is not None and self.waiting >= self._max_waiting and self._free.locked()

    async def acquire(self) -> None:
        """Waits for a slot, in order of arrival. Call `release` for every acquired slot."""
        if self._free is None:
            return
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def release(self) -> None:
        """Releases a slot, which passes to the request that has waited longest."""
        if self._free is not None:
            self._free.release()
