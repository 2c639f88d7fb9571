"""Who goes in which slot: the callers in line, and the send times booked for them. Synchronous.

A caller goes through these states:

  waiting -> asking -> booked -> granted    the normal way
  asking -> waiting                         the lease was too short for it
  booked -> waiting                         one before it in line took its slot, or the slot passed
  any -> gone                               cancelled; its slot goes to the next in line

The first in line takes the slot that is due, if it fits; otherwise its owner does. So the order
is kept within a priority, and a slot is lost only if it fits no process in line.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Sequence

import msgspec

# Cancelled callers are swept out when they are more than those who wait, and more than this.
_MOST_GONE = 64


class Caller(msgspec.Struct, eq=False):
    """One in line, by priority and arrival. future: brings its slot. asked_s: when it came."""

    amounts: tuple[int, ...]
    place: tuple[int, int]
    future: asyncio.Future[Slot]
    asked_s: float = 0.0

    def __lt__(self, other: Caller) -> bool:
        return self.place < other.place


class Slot(msgspec.Struct, eq=False):
    """A send time that is booked in the ledger.

    planned_s: the ledger's time. stamp_s, amounts: its state in the ledger. at_s, until_s: when
    a call may leave in it, local. sent_s, late_s, used: its intended state, local; used is None
    as long as that is its amounts.
    """

    owner: Caller | None
    planned_s: float
    stamp_s: float
    at_s: float
    until_s: float
    amounts: tuple[int, ...]
    used: tuple[int, ...] | None = None
    sent_s: float | None = None
    late_s: float | None = None  # how late it reached the server at most, once proved

    @property
    def heir(self) -> Caller | None:
        """The caller it is booked for, if that one still waits."""
        return None if self.owner is None or self.owner.future.done() else self.owner

    def write(self, now_s: float) -> None:
        """Its call was written at `now_s`, local."""
        self.sent_s = now_s

    def prove(self, late_s: float | None) -> None:
        """Records that the call reached the server at most `late_s` late; None if unknown."""
        self.late_s = late_s

    def settle(self, used: tuple[int, ...]) -> None:
        """Records the amounts that the call used."""
        self.used = used

    def restate(self, stamp_s: float) -> None:
        """Reports to the ledger what was used, and that it was sent at `stamp_s`."""
        self.stamp_s = stamp_s
        self.amounts = self.used or self.amounts

    def fits(self, caller: Caller) -> bool:
        return all(map(int.__le__, caller.amounts, self.amounts))


class Timetable:
    """The callers of one process and its slots, the earliest first."""

    def __init__(self) -> None:
        self._waiting: list[Caller] = []  # a heap
        self._asking: deque[Caller] = deque()
        self._slots: deque[Slot] = deque()
        self._last: Caller | None = None  # of those who were booked, the last in line
        self._gone = 0

    def __len__(self) -> int:
        """Callers in line, with a slot or without."""
        lines = (self._waiting, self._asking, (slot.owner for slot in self._slots))
        return sum(
            caller is not None and not caller.future.done() for line in lines for caller in line
        )

    @property
    def due_s(self) -> float:
        """When the next slot begins; inf if there is none."""
        return self._slots[0].at_s if self._slots else math.inf

    def join(self, caller: Caller) -> None:
        """Adds a caller to the line, at its place."""
        heapq.heappush(self._waiting, caller)

    def left(self) -> None:
        """Counts a cancelled caller."""
        self._gone += 1
        if self._gone > max(_MOST_GONE, len(self._waiting) // 2):
            self._waiting = [caller for caller in self._waiting if not caller.future.done()]
            heapq.heapify(self._waiting)
            self._gone = 0

    def head(self) -> Caller | None:
        """The first caller in line without a slot; None if there is none."""
        while self._waiting and self._waiting[0].future.done():
            heapq.heappop(self._waiting)
        while self._asking and self._asking[0].future.done():
            self._asking.popleft()
        heads = [line[0] for line in (self._waiting, self._asking) if line]
        return min(heads, default=None)

    def ask(self, room: Sequence[int], most: int) -> list[Caller]:
        """The first callers in line, which request slots now: together at most `room`, or one."""
        asking: list[Caller] = []
        left = list(room)
        while len(asking) < most and self._waiting:
            caller = self._waiting[0]
            if not caller.future.done():
                left = [have - amount for have, amount in zip(left, caller.amounts, strict=True)]
                if asking and min(left, default=0) < 0:
                    break
                asking.append(caller)
            heapq.heappop(self._waiting)
        self._asking.extend(asking)
        return asking

    def asked(self, without: Sequence[Caller]) -> None:
        """Ends the request; callers in `without` got no slot and keep waiting."""
        self._asking.clear()
        for caller in without:
            if not caller.future.done():
                self.join(caller)

    def book(self, slot: Slot) -> None:
        """Adds a slot of the lease, later than the existing ones."""
        if not self._slots:
            self._last = None
        owner = slot.owner
        if owner is not None and self._last is not None and owner < self._last:
            # It goes before some who are booked already: to the first slot, and they to later ones.
            slot.owner = None
            if not owner.future.done():
                self.join(owner)
        else:
            self._last = owner
        self._slots.append(slot)

    def put_back(self, slot: Slot) -> None:
        """Takes back a slot that was handed out and not used, for the next caller, at once."""
        slot.owner = None
        self._slots.appendleft(slot)

    def clear(self) -> list[Slot]:
        """Removes and returns all slots, the latest first."""
        slots = list(reversed(self._slots))
        self._slots.clear()
        return slots

    def hand_out(self, now_s: float, parked_until_s: float) -> list[Slot]:
        """Wakes all callers whose slot is due; returns the lost slots."""
        lost: list[Slot] = []
        while self._slots and self._slots[0].at_s <= now_s:
            slot = self._slots.popleft()
            owner = slot.heir
            if now_s > slot.until_s or slot.at_s < parked_until_s:
                taker = None
            else:
                taker = self._taker(slot, owner)
            if owner is not None and taker is not owner:
                self.join(owner)
            slot.owner = taker
            if taker is None:
                lost.append(slot)
            else:
                taker.future.set_result(slot)
        return lost

    def _taker(self, slot: Slot, owner: Caller | None) -> Caller | None:
        """The first in line whom the slot fits: its owner, one without a slot, or with a later."""
        head, later = self.head(), None
        if owner is None:
            later = next((later for later in self._slots if later.heir is not None), None)
        heir = owner if later is None else later.heir
        fitting = [one for one in (head, heir) if one is not None and slot.fits(one)]
        taker = min(fitting, default=None)
        if taker is head:
            # One who asks is left out of the line by `head` as soon as its future is done.
            if self._waiting and head is self._waiting[0]:
                heapq.heappop(self._waiting)
        elif taker is not None and later is not None:
            later.owner = None
        return taker

    def waiting(self) -> list[Caller]:
        """The callers in line without a slot."""
        return [c for line in (self._waiting, self._asking) for c in line if not c.future.done()]
