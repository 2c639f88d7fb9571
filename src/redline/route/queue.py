"""Orders the calls that wait in a pool, by priority and arrival."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count, islice
from operator import attrgetter

import msgspec

from redline.route.balance import Asked
from redline.route.member import PoolMember
from redline.waist import Call

# When an endpoint has room, at most this many calls, from the first on, are checked for a fit.
LOOKED_AT = 64
# At most this many later calls may overtake a call because they suit an endpoint with room better.
MOST_PASSED = 64

_PLACE = attrgetter("place")


class Ticket(msgspec.Struct, eq=False):
    """A call's place in the queue, to which the call returns when an endpoint gives it back.

    since_s: when the call began to wait. asked: its facts. number: increases in order of arrival.
    passed: number of calls that have overtaken it. turn: the future that the call awaits, whose
    result is the endpoint that takes it.
    """

    call: Call
    since_s: float
    asked: Asked
    number: int = msgspec.field(default_factory=count().__next__)
    passed: int = 0
    turn: asyncio.Future[PoolMember] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The sort key of the queue."""
        return (self.call.priority, self.number)


class CallQueue:
    """Waiting tickets, by lowest priority number, then by earliest arrival.

    The sender bounds the length: a runner has a bounded number of workers. tickets: all waiting
    tickets, in order; read-only.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def add(self, ticket: Ticket) -> asyncio.Future[PoolMember]:
        """Inserts the ticket at its place; returns a future whose result will be an endpoint."""
        ticket.turn = turn = asyncio.Future[PoolMember]()
        insort(self.tickets, ticket, key=_PLACE)
        return turn

    def first(self) -> Iterator[Ticket]:
        """Returns the first LOOKED_AT tickets, in order."""
        return islice(self.tickets, LOOKED_AT)

    def first_alike(self) -> list[Ticket]:
        """Returns the first tickets of one priority, in order.

        A ticket that has been passed MOST_PASSED times is the last: no later one may overtake it.
        """
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
        index = bisect_left(self.tickets, ticket.place, key=_PLACE)
        if index < len(self.tickets) and self.tickets[index] is ticket:
            del self.tickets[index]

    def take_all(self, which: Callable[[Call], bool] = lambda _: True) -> list[Ticket]:
        """Removes and returns the tickets whose calls satisfy `which`, in order."""
        taken, left = list[Ticket](), list[Ticket]()
        for ticket in self.tickets:
            (taken if which(ticket.call) else left).append(ticket)
        self.tickets = left
        return taken
