"""Shares slots between several processes, which together never use more than exist.

Each process counts the slots that it uses in a word of its own. To take a slot, a process locks the
table, adds up the words and compares the sum with the number of slots. Nothing is leased ahead, so
one process may use all slots, idle processes hold none, and a lost process holds none once its
words are cleared.

A process that finds no free slot records its demand, and checks again every LOOK_S seconds, because
another process that releases a slot cannot wake it. If several processes want a slot, it goes to
the process whose first call has the lowest rank; among processes of one rank, to the one with the
lowest (slots in use + 1) / share. Therefore it matters little how clients are spread over the
processes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from redline.clock import SYSTEM, Clock
from redline.limits.shared.flights import row
from redline.limits.wait import Slots
from redline.process import SharedTable

LOOK_S = 0.005
# A process that has not checked for this long is busy with other work: its demand is ignored.
_FRESH_S = 0.05


class Demand(NamedTuple):
    """The demand of a process for slots of an endpoint.

    rank: the rank of its first waiting call; lower goes first. share: its share of the slots,
    relative to other processes of its rank; at least 0.
    """

    rank: int = 0
    share: float = 1.0


class Sharer(msgspec.Struct, frozen=True, eq=False):
    """One of the processes that share a table.

    number: the index of the process, from 0. demand: returns the demand of this process for slots
    of the given endpoint. clock: the same for all processes.
    """

    table: SharedTable
    number: int
    demand: Callable[[str], Demand] = lambda _: Demand()
    clock: Clock = SYSTEM


class SharedCount:
    """Counts how many of `most` slots each process uses.

    name: the same in all processes. endpoint: the argument of `Sharer.demand`.
    """

    def __init__(self, sharer: Sharer, name: str, most: int, endpoint: str = "") -> None:
        table = sharer.table
        self.most = most
        self._demand = sharer.demand
        self._endpoint = endpoint
        self._own = sharer.number
        # Each of these has one element for each process.
        self._used = table.words[row(table, f"{name}/used")]
        self._wants = table.reals[row(table, f"{name}/wants")]  # when it last checked
        self._taken = table.reals[row(table, f"{name}/taken")]  # when it last took one
        self._ranks = table.words[row(table, f"{name}/rank")]
        self._shares = table.reals[row(table, f"{name}/share")]

    @property
    def used(self) -> int:
        """The number of slots that all processes use."""
        return sum(self._used)

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        """Returns whether this process may take a slot after taking `coming` others."""
        return self.is_free(coming) and self._is_next(now_s, coming)

    def is_free(self, coming: int = 0) -> bool:
        """Returns whether a slot is free, for any process, after `coming` others are taken."""
        return self.used + coming < self.most

    def _is_next(self, now_s: float, coming: int) -> bool:
        """Returns whether no other process has precedence over this one."""
        own, since_s = self._own, now_s - _FRESH_S
        others = [
            number
            for number, looked_s in enumerate(self._wants)
            if looked_s > since_s and number != own
        ]
        if not others:
            return True
        self._state_demand()
        turn = self._turn(own, coming)
        return all(turn <= self._turn(number) for number in others)

    def take(self, now_s: float) -> None:
        """Counts a slot taken by this process. Needs the table's lock."""
        self._used[self._own] += 1
        self._taken[self._own] = now_s

    def release(self) -> None:
        """Counts a slot released by this process."""
        self._used[self._own] -= 1

    def want(self, now_s: float) -> None:
        """Records that this process waits for a slot."""
        self._state_demand()
        self._wants[self._own] = now_s

    def want_none(self) -> None:
        """Records that this process no longer waits."""
        self._wants[self._own] = 0.0

    def resize(self, most: int) -> None:
        """Sets the number of slots."""
        self.most = most

    def _state_demand(self) -> None:
        demand = self._demand(self._endpoint)
        self._ranks[self._own], self._shares[self._own] = demand.rank, demand.share

    def _turn(self, number: int, coming: int = 0) -> tuple[int, float, float]:
        """Returns the sort key of a process: rank, use relative to share, time of its last slot."""
        share, used = self._shares[number], self._used[number] + coming
        turn = (used + 1) / share if share > 0 else math.inf
        return self._ranks[number], turn, self._taken[number]


class SharedSlots(Slots):
    """Hands out the slots of one endpoint. For one event loop.

    counts: a call takes a slot in each of them; the endpoint's own count comes first.
    """

    def __init__(self, sharer: Sharer, counts: Sequence[SharedCount]) -> None:
        super().__init__(counts[0].most)
        self._table = sharer.table
        self._clock = sharer.clock
        self._counts = counts
        self._on_room: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # When `has_room` last returned True.
        self._told_s = -math.inf

    @property
    def steady(self) -> int:
        """Always 0, because other processes may take all slots at any time."""
        return 0

    @property
    def is_free(self) -> bool:
        return self._is_first() and self._may_take(self._clock.now_s())

    def has_room(self, coming: int = 0) -> bool:
        now_s = self._clock.now_s()
        if self._may_take(now_s, coming):
            self._told_s = now_s
            return True
        self._want(now_s)
        return False

    def want(self) -> None:
        self._want(self._clock.now_s())

    def tell(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._want_none()

    def take_free(self) -> bool:
        if self._is_first() and self._take():
            return True
        self._want(self._clock.now_s())
        return False

    def release(self) -> None:
        self.in_use -= 1
        for count in self._counts:
            count.release()
        self._hand_out()

    def resize(self, count: int) -> None:
        self.count = count
        self._counts[0].resize(count)
        self._hand_out()

    def _is_first(self) -> bool:
        """Returns whether no call waits in the queue."""
        return not self._queue.waiting or self._queue.head() is None

    def _may_take(self, now_s: float, coming: int = 0) -> bool:
        return all(count.has_room(now_s, coming) for count in self._counts)

    def _take(self) -> bool:
        with self._table:
            now_s = self._clock.now_s()
            if not all(count.is_free() for count in self._counts):
                return False
            # If `has_room` has just returned True, only free slots are checked: the call may have
            # been the last of its rank, so that another process has precedence now.
            if now_s - self._told_s >= _FRESH_S and not self._may_take(now_s):
                return False
            for count in self._counts:
                count.take(now_s)
        self.in_use += 1
        return True

    def _hand_out(self) -> None:
        """Gives free slots to the waiters in the queue."""
        queue = self._queue
        while queue.waiting and queue.head() is not None and self._take():
            queue.wake_head(None)

    def _want(self, now_s: float) -> None:
        for count in self._counts:
            count.want(now_s)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _want_none(self) -> None:
        self._timer = None
        for count in self._counts:
            count.want_none()

    def _look(self) -> None:
        """Takes slots that other processes have released, or checks again later."""
        self._timer = None
        now_s = self._clock.now_s()
        if not self._may_take(now_s):
            self._want(now_s)
            return
        self._want_none()
        self._hand_out()
        if not self._is_first():
            self._want(now_s)
        if self._on_room is not None:
            self._on_room()
