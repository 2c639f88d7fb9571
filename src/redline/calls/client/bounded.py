"""Bounds a backend's concurrent calls."""

from __future__ import annotations

import math

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import TimedOut
from redline.limits import Slots
from redline.process import counted
from redline.waist import Around, Backend, Call, Load, Outcome, Request, Sink, failed


class Bounded(Around):
    """A backend with at most `most` calls at once; others wait, by priority, then by arrival."""

    def __init__(self, backend: Backend, most: int, clock: Clock = SYSTEM) -> None:
        super().__init__(backend)
        self._slots = Slots(most)
        self._clock = clock

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load, slots = super().load(now_s, request), self._slots
        if slots.is_free:
            return msgspec.structs.replace(load, slots=slots.count)
        return msgspec.structs.replace(
            load,
            waiting=load.waiting + slots.waiting,
            queued=load.queued + slots.waiting,
            slots=slots.count,
            room_s=max(load.room_s, math.ulp(0.0)),
            binds=f"{counted(slots.count, 'call')} in flight",
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        if not self._slots.take_free():
            try:
                await call.in_time(self._slots.acquire(call.priority), self._clock)
            except TimedOut as late:
                return failed(late)
        try:
            return await self._inner.send(request, call, sink)
        finally:
            self._slots.release()
