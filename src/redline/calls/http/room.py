"""Room for another call: reports when an endpoint that could take none can take one again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redline.calls.http.outage import Outage
from redline.clock import Clock
from redline.limits import RateLimiter, Slots


class Room:
    """Calls `on_room` when there is room after there was none.

    There is room while a slot and a place ahead are free and the endpoint is not parked.
    """

    def __init__(
        self,
        slots: Slots,
        ahead: Slots,
        limiter: RateLimiter,
        outage: Outage,
        clock: Clock,
        on_room: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._ahead = ahead
        self._limiter = limiter
        self._outage = outage
        self._clock = clock
        self._on_room = on_room
        self._timer: asyncio.TimerHandle | None = None
        self._seen_slots = slots.count  # when a slot was last freed

    @property
    def is_free(self) -> bool:
        """A call could be taken."""
        if not (self._slots.is_free and self._ahead.is_free):
            return False
        return self._parked_until_s() <= self._clock.now_s()

    def slot_was_freed(self) -> None:
        """An attempt is over, and the endpoint is parked if it asked for that."""
        slots = self._slots
        had_room = slots.in_use < slots.count - 1 and slots.count == self._seen_slots
        self._seen_slots = slots.count
        self.report(had_room=had_room)

    def report(self, *, had_room: bool = False) -> None:
        """Calls `on_room` if there is room now and was none before, or once it is not parked."""
        if self.is_free:
            if not had_room:
                self._on_room()
            return
        parked_s = self._parked_until_s() - self._clock.now_s()
        if parked_s > 0 and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(parked_s, self._is_parked_no_more)

    def close(self) -> None:
        """Reports nothing that is still to come."""
        if self._timer is not None:
            self._timer.cancel()

    def _parked_until_s(self) -> float:
        return max(self._limiter.parked_until_s, self._outage.again_s)

    def _is_parked_no_more(self) -> None:
        # It may have been parked for longer meanwhile.
        self._timer = None
        self.report()
