"""Decides when a batch is closed and which requests it contains; never waits.

A batch here is one call with a list of items. Requests that may share a call form a group.

  the reason to send a group   applies when
  full                         the group has the items or bytes of a full batch
  waited                       one of its requests has waited for `wait_s`, or for a tenth of the
                               time from the request's arrival to its deadline
  idle                         no batch is in flight, and of the last requests that found an idle
                               backend, most were not followed by another one within `wait_s`

Of the groups that are due, the one with the most urgent request is sent first; within a group,
requests are ordered by priority and arrival. A request whose items no longer fit waits for the next
batch; a request with more items than a batch may have is sent alone, unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Literal

import msgspec

from redline.calls.batching.parts import Member
from redline.errors import ConfigError
from redline.structs import check_type, check_types

Why = Literal["full", "waited", "idle"]

# A request waits for others for at most this share of the time until its deadline.
_PATIENCE = 0.1
# The weight of the newest observation in _Company: about the last four determine the estimate.
_NEWS = 0.25
# Because of rounding, a timer may fire slightly early; set again, it would fire just as early.
_SLACK_S = 1e-6
_MOST_SIZE = 65_536
_MOST_WAIT_S = 60.0


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a batcher, all above 0 and finite.

    max_batch_bytes: the bytes of the bodies in one batch. max_waiting, max_waiting_bytes: queued
    items, and the bytes of their requests; a request that would exceed one of these bounds fails
    with RateLimited, unless the queue is empty. call_s: the timeout of one function call, in
    seconds. Raises ConfigError for a value out of range.
    """

    max_batch_bytes: int = 8 * 2**20
    max_waiting: int = 4096
    max_waiting_bytes: int = 64 * 2**20
    call_s: float = 600.0

    def __post_init__(self) -> None:
        check_types(self)
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, not {getattr(self, name):g}")


class Rule(msgspec.Struct, frozen=True):
    """The bounds at which a batch is closed and sent.

    size: the most items, 1 to 65,536. wait_s: the longest wait for other requests, 0 to 60 s.
    most_bytes: the most bytes of a batch. Raises ConfigError for a size or a wait out of range.
    """

    size: int
    wait_s: float
    most_bytes: int

    def __post_init__(self) -> None:
        check_type("max_batch_size", self.size, (int,))
        check_type("max_wait_s", self.wait_s, (int, float))
        if not 1 <= self.size <= _MOST_SIZE:
            raise ConfigError(f"max_batch_size must be 1 to {_MOST_SIZE:,}, not {self.size}")
        if not 0 <= self.wait_s <= _MOST_WAIT_S:
            raise ConfigError(f"max_wait_s must be 0 to {_MOST_WAIT_S:g}, not {self.wait_s:g}")


class _Group:
    """The queued requests with one key. due_s: the time at which the first of them is due."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.count = 0
        self.size = 0
        self.due_s = math.inf

    def add(self, member: Member, due_s: float) -> None:
        self.members[member.number] = member
        self.count += member.part.count
        self.size += member.part.size
        self.due_s = min(self.due_s, due_s)

    def remove(self, member: Member) -> None:
        del self.members[member.number]
        self.count -= member.part.count
        self.size -= member.part.size

    def is_full(self, rule: Rule) -> bool:
        return self.count >= rule.size or self.size >= rule.most_bytes

    def head(self) -> Member:
        return min(self.members.values(), key=_rank)

    def first(self, rule: Rule) -> list[Member]:
        """Returns the requests of the next batch: as many as fit, at least one."""
        chosen: list[Member] = []
        count = size = 0
        for member in sorted(self.members.values(), key=_rank):
            count += member.part.count
            size += member.part.size
            if chosen and (count > rule.size or size > rule.most_bytes):
                break
            chosen.append(member)
        return chosen


class _Company:
    """Estimates whether a request that finds the backend idle is soon followed by another one.

    It observes requests that were sent at once as well as requests that waited. So if several users
    each send a request after every answer, their requests wait for each other, but the requests of
    a single user do not wait.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._share = 1.0
        self._alone_s: float | None = None
        self._is_seen = False

    def is_expected(self, now_s: float) -> bool:
        """Whether a request that finds the backend idle should wait for another one."""
        if not self._is_seen:
            self._is_seen, self._alone_s = True, now_s
        return self._share >= 0.5

    def came(self, now_s: float) -> None:
        """Records the arrival of a request."""
        if self._alone_s is not None:
            is_company = now_s - self._alone_s <= self._wait_s
            self._share += _NEWS * (is_company - self._share)
            self._alone_s = None

    def left(self) -> None:
        """Records that a batch was sent."""
        self._is_seen = False


class Queue:
    """The requests that wait to be sent together. items, size: their items and bytes in total.

    The queue itself never waits: `take` returns the batches to send now, and `next_s` returns when
    to call `take` again.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._groups: dict[Hashable, _Group] = {}
        self._company = _Company(rule.wait_s)
        self.items = 0
        self.size = 0
        self.waiting = 0

    def add(self, member: Member) -> None:
        """Queues a request. member: with the current time as its `at_s`."""
        self._company.came(member.at_s)
        group = self._groups.get(member.part.key)
        if group is None:
            group = self._groups[member.part.key] = _Group()
        group.add(member, _due_s(member, self._rule))
        self.items += member.part.count
        self.size += member.part.size
        self.waiting += 1

    def remove(self, member: Member) -> bool:
        """Removes a request; False if it is no longer queued, because its batch has been sent."""
        group = self._groups.get(member.part.key)
        if group is None or member.number not in group.members:
            return False
        self._drop(group, member)
        return True

    def all(self) -> list[Member]:
        """Returns the queued requests, in order of arrival."""
        members = [one for group in self._groups.values() for one in group.members.values()]
        return sorted(members, key=lambda member: member.number)

    def take(self, now_s: float, in_flight: int, free: int) -> list[tuple[list[Member], Why]]:
        """Takes the batches to send now: at most `free`, in addition to the `in_flight` ones.

        Returns the requests of each batch, and why it is sent.
        """
        taken: list[tuple[list[Member], Why]] = []
        if not free or not self._groups:
            return taken
        while len(taken) < free:
            due = min(self._due(now_s), default=None)
            if due is None:
                break
            _, why, group = due
            taken.append((self._close(group), why))
        if not (taken or in_flight) and not self._company.is_expected(now_s):
            group = min(self._groups.values(), key=lambda group: _rank(group.head()))
            taken.append((self._close(group), "idle"))
        if taken:
            self._company.left()
        return taken

    def next_s(self) -> float:
        """Returns when the next group will have waited long enough; inf if none waits."""
        return min((group.due_s for group in self._groups.values()), default=math.inf)

    def _due(self, now_s: float) -> Iterator[tuple[tuple[int, int], Why, _Group]]:
        for group in self._groups.values():
            why = self._why(group, now_s)
            if why is not None:
                yield _rank(group.head()), why, group

    def _why(self, group: _Group, now_s: float) -> Why | None:
        if group.is_full(self._rule):
            return "full"
        return "waited" if group.due_s <= now_s + _SLACK_S else None

    def _close(self, group: _Group) -> list[Member]:
        """Removes and returns the requests of the group's next batch."""
        members = group.first(self._rule)
        for member in members:
            self._drop(group, member)
        # The earliest due time of the remaining requests.
        due_s = (_due_s(member, self._rule) for member in group.members.values())
        group.due_s = min(due_s, default=math.inf)
        return members

    def _drop(self, group: _Group, member: Member) -> None:
        group.remove(member)
        self.items -= member.part.count
        self.size -= member.part.size
        self.waiting -= 1
        if not group.members:
            del self._groups[member.part.key]


def _rank(member: Member) -> tuple[int, int]:
    """Returns the sort key of requests in a group, and of groups by their first requests."""
    return member.call.priority, member.number


def _due_s(member: Member, rule: Rule) -> float:
    patience_s = _PATIENCE * (member.call.deadline_s - member.at_s)
    return member.at_s + max(0.0, min(rule.wait_s, patience_s))
