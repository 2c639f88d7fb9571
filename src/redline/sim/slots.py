"""The concurrency cap: serves a bounded number of requests; others wait in arrival order."""

from __future__ import annotations

import asyncio

# Long enough for any reasonable client. A longer queue would only hide that a client sends too many
# requests.
MAX_WAITING = 4096


class Slots:
    """At most `cap` holders at once (None: no cap), and `max_waiting` requests that wait."""

    def __init__(self, cap: int | None, max_waiting: int = MAX_WAITING) -> None:
        self._free = None if cap is None else asyncio.Semaphore(cap)
        # The number of requests that wait for a slot.
        self.waiting = 0
        self._max_waiting = max_waiting

    @property
    def is_full(self) -> bool:
        """Whether another request could neither be served nor wait."""
        return self._free is not None and self.waiting >= self._max_waiting and self._free.locked()

    async def acquire(self) -> None:
        """Waits for a slot, first come, first served. Call `release` for every slot acquired."""
        if self._free is None:
            return
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def release(self) -> None:
        """Releases a slot, to the request that has waited longest."""
        if self._free is not None:
            self._free.release()
