"""The calls that wait in a pool, by priority and arrival."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count, islice

from redline.route.balance import Asked
from redline.route.member import PoolMember
from redline.waist import Call

# If the first calls may not use the free endpoint, up to this many of them are passed over.
LOOKED_AT = 64
# Later calls that may overtake a call because they suit the endpoints with room better.
MOST_PASSED = 64


class Ticket:
    """A call's place in the queue, to which it returns when an endpoint gives it back.

    since_s: when the call began to wait. asked: its facts. passed: number of calls that have
    overtaken it. turn: the future that it awaits until its turn.
    """

    __slots__ = ("asked", "call", "number", "passed", "since_s", "turn")

    def __init__(self, call: Call, number: int, since_s: float, asked: Asked) -> None:
        self.call = call
        self.number = number
        self.since_s = since_s
        self.asked = asked
        self.passed = 0
        self.turn: asyncio.Future[PoolMember] | None = None

    def is_passed(self) -> None:
        """Counts a later call that overtakes this one."""
        self.passed += 1

    @property
    def place(self) -> tuple[int, int]:
        """The sort key of the queue."""
        return (self.call.priority, self.number)


class CallQueue:
    """Tickets that wait, lowest priority number and earliest arrival first.

    Its length is bounded by who sends: a runner has a bounded number of workers. tickets: those
    that wait, in their order, only to be read.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self.tickets)

    def ticket(self, call: Call, now_s: float, asked: Asked) -> Ticket:
        """The place of a call that arrives now; the call does not wait yet."""
        return Ticket(call, next(self._numbers), now_s, asked)

    def add(self, ticket: Ticket) -> asyncio.Future[PoolMember]:
        """Puts the ticket into its place; returns the future for the endpoint that takes it."""
        ticket.turn = asyncio.get_running_loop().create_future()
        insort(self.tickets, ticket, key=_place)
        return ticket.turn

    def first(self) -> Iterator[Ticket]:
        """The first tickets in their order, at most as many as are worth checking."""
        return islice(self.tickets, LOOKED_AT)

    def first_alike(self) -> list[Ticket]:
        """The first tickets of one priority, up to one that has been passed MOST_PASSED times."""
        found = list[Ticket]()
        for ticket in self.first():
            if found and ticket.call.priority != found[0].call.priority:
                break
            found.append(ticket)
            if ticket.passed >= MOST_PASSED:
                break
        return found

    def take(self, ticket: Ticket) -> None:
        """Removes a ticket, if it is in the queue."""
        index = bisect_left(self.tickets, ticket.place, key=_place)
        if index < len(self.tickets) and self.tickets[index] is ticket:
            del self.tickets[index]

    def calls(self) -> Iterator[Call]:
        """The waiting calls, in order."""
        return (ticket.call for ticket in self.tickets)

    def waits_s(self, now_s: float) -> Iterator[float]:
        """How long each call has waited, in order."""
        return (now_s - ticket.since_s for ticket in self.tickets)

    def take_all(self, which: Callable[[Call], bool] = lambda _: True) -> list[Ticket]:
        """Removes and returns all tickets, in order. which: of the calls for which it is true."""
        taken, left = list[Ticket](), list[Ticket]()
        for ticket in self.tickets:
            (taken if which(ticket.call) else left).append(ticket)
        self.tickets = left
        return taken


def _place(ticket: Ticket) -> tuple[int, int]:
    return ticket.place
