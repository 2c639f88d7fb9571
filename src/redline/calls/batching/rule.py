"""When a batch is closed, and which requests are in it: plain functions of what waits.

A batch here is one call with a list of items. Requests that may share a call form a group.

  a group is sent because it is   when
  full                            it has a batch's items or bytes
  waited                          its first request has waited for `wait_s`, or for a tenth of the
                                  time that its deadline leaves
  idle                            no batch is in flight, and lately most requests that came to an
                                  idle backend were not followed by another one within `wait_s`

Among groups that are due, the one with the most urgent request goes first; within a group, requests
go by priority and arrival. A request whose items do not fit any more waits for the next batch; one
that has more items than a batch is sent alone, as it came.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from redline.errors import ConfigError

Why = Literal["full", "waited", "idle"]

# A request with a deadline spends this share of the time that is left on waiting for others.
_PATIENCE = 0.1
# What is known of company follows the last four requests or so that came to an idle backend.
_NEWS = 0.25
# A timer may come early by the rounding of its time; the next one would come no later.
_SLACK_S = 1e-6
_MOST_SIZE = 65_536
_MOST_WAIT_S = 60.0


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a batcher holds at most. All above 0.

    max_batch_bytes: of the bodies that are sent as one list. max_waiting, max_waiting_bytes: items
    that wait, and the bytes of their requests; a request beyond that is answered with RateLimited.
    call_s: of one call of a function.
    """

    max_batch_bytes: int = 8 * 2**20
    max_waiting: int = 4096
    max_waiting_bytes: int = 64 * 2**20
    call_s: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name):g}")


class Rule(msgspec.Struct, frozen=True):
    """When a batch is closed and sent.

    size: items of a batch, at most. wait_s: longest wait for others. most_bytes: of a batch.
    """

    size: int
    wait_s: float
    most_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= _MOST_SIZE:
            raise ConfigError(f"max_batch_size must be 1 to {_MOST_SIZE:,}, not {self.size}")
        if not 0 <= self.wait_s <= _MOST_WAIT_S:
            raise ConfigError(f"max_wait_s must be 0 to {_MOST_WAIT_S:g}, not {self.wait_s:g}")


class Waiter(msgspec.Struct, eq=False, kw_only=True):
    """A request that waits. key: of its group. count: its items. size: its bytes.

    number: of its arrival. at_s: when it came. deadline_s: as in Call.
    """

    key: Hashable
    count: int
    size: int
    number: int
    at_s: float
    priority: int = 0
    deadline_s: float = math.inf

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.number


W = TypeVar("W", bound=Waiter)


class Closed(NamedTuple, Generic[W]):
    """The requests of one batch, and why it is sent."""

    waiters: list[W]
    why: Why


class _Group(Generic[W]):
    """What waits under one key. due_s: when the first of them has waited long enough."""

    def __init__(self) -> None:
        self.waiters: dict[int, W] = {}
        self.count = 0
        self.size = 0
        self.due_s = math.inf

    def add(self, waiter: W, due_s: float) -> None:
        self.waiters[waiter.number] = waiter
        self.count += waiter.count
        self.size += waiter.size
        self.due_s = min(self.due_s, due_s)

    def remove(self, waiter: W) -> None:
        del self.waiters[waiter.number]
        self.count -= waiter.count
        self.size -= waiter.size

    def is_full(self, rule: Rule) -> bool:
        return self.count >= rule.size or self.size >= rule.most_bytes

    def head(self) -> W:
        return min(self.waiters.values(), key=lambda waiter: waiter.rank)

    def first(self, rule: Rule) -> list[W]:
        """The requests of the next batch: as many as fit, and at least one."""
        chosen: list[W] = []
        count = size = 0
        for waiter in sorted(self.waiters.values(), key=lambda waiter: waiter.rank):
            count += waiter.count
            size += waiter.size
            if chosen and (count > rule.size or size > rule.most_bytes):
                break
            chosen.append(waiter)
        return chosen


class _Company:
    """Whether a request that comes to an idle backend is soon followed by another one.

    Sent at once or not, the request shows it. So users who ask again as soon as they have their
    answers, one after another, are waited for, and a single one is not.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._share = 1.0
        self._alone_s: float | None = None
        self._is_seen = False

    def is_expected(self, now_s: float) -> bool:
        """Asked of requests that have the backend for themselves."""
        if not self._is_seen:
            self._is_seen, self._alone_s = True, now_s
        return self._share >= 0.5

    def came(self, now_s: float) -> None:
        """Another request is here."""
        if self._alone_s is not None:
            is_company = now_s - self._alone_s <= self._wait_s
            self._share += _NEWS * (is_company - self._share)
            self._alone_s = None

    def left(self) -> None:
        """A batch was sent."""
        self._is_seen = False


class Queue(Generic[W]):
    """Requests that wait to be sent together. items, size: of all of them.

    Never waits itself: `take` says what is to be sent now, `next_s` when to ask again.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._groups: dict[Hashable, _Group[W]] = {}
        self._company = _Company(rule.wait_s)
        self.items = 0
        self.size = 0
        self.waiting = 0

    def add(self, waiter: W) -> None:
        """It waits from now on, its `at_s`."""
        self._company.came(waiter.at_s)
        group = self._groups.get(waiter.key)
        if group is None:
            group = self._groups[waiter.key] = _Group()
        group.add(waiter, _due_s(waiter, self._rule))
        self.items += waiter.count
        self.size += waiter.size
        self.waiting += 1

    def remove(self, waiter: W) -> bool:
        """Takes it out; False if it is not here, because its batch has been sent."""
        group = self._groups.get(waiter.key)
        if group is None or waiter.number not in group.waiters:
            return False
        self._drop(group, waiter)
        return True

    def all(self) -> list[W]:
        """The waiting entries, in order of arrival."""
        waiters = [one for group in self._groups.values() for one in group.waiters.values()]
        return sorted(waiters, key=lambda waiter: waiter.number)

    def take(self, now_s: float, in_flight: int, free: int) -> list[Closed[W]]:
        """The batches that are to be sent now: at most `free`, beside those in flight."""
        taken: list[Closed[W]] = []
        if not free or not self._groups:
            return taken
        due = list(self._due(now_s))
        heapq.heapify(due)
        while due and len(taken) < free:
            _, why, group = heapq.heappop(due)
            taken.append(self._close(group, why))
            if group.waiters and (again := self._why(group, now_s)) is not None:
                heapq.heappush(due, (group.head().rank, again, group))
        if not (taken or in_flight) and not self._company.is_expected(now_s):
            group = min(self._groups.values(), key=lambda group: group.head().rank)
            taken.append(self._close(group, "idle"))
        if taken:
            self._company.left()
        return taken

    def next_s(self) -> float:
        """When a group will have waited long enough; inf if none waits."""
        return min((group.due_s for group in self._groups.values()), default=math.inf)

    def _due(self, now_s: float) -> Iterator[tuple[tuple[int, int], Why, _Group[W]]]:
        for group in self._groups.values():
            why = self._why(group, now_s)
            if why is not None:
                yield group.head().rank, why, group

    def _why(self, group: _Group[W], now_s: float) -> Why | None:
        if group.is_full(self._rule):
            return "full"
        return "waited" if group.due_s <= now_s + _SLACK_S else None

    def _close(self, group: _Group[W], why: Why) -> Closed[W]:
        waiters = group.first(self._rule)
        for waiter in waiters:
            self._drop(group, waiter)
        # Of those that stay, the first to have waited long enough.
        due_s = (_due_s(waiter, self._rule) for waiter in group.waiters.values())
        group.due_s = min(due_s, default=math.inf)
        return Closed(waiters, why)

    def _drop(self, group: _Group[W], waiter: W) -> None:
        group.remove(waiter)
        self.items -= waiter.count
        self.size -= waiter.size
        self.waiting -= 1
        if not group.waiters:
            del self._groups[waiter.key]


def _due_s(waiter: Waiter, rule: Rule) -> float:
    patience_s = _PATIENCE * (waiter.deadline_s - waiter.at_s)
    return waiter.at_s + max(0.0, min(rule.wait_s, patience_s))
