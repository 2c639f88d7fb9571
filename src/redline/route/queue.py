"""The calls that wait in a pool, by priority and arrival."""

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

# If the first calls may not use the free endpoint, up to this many of them are skipped.
LOOKED_AT = 64
# At most this many later calls may overtake a call because they suit the endpoints with room
# better.
MOST_PASSED = 64

_PLACE = attrgetter("place")


class Ticket(msgspec.Struct, eq=False):
    """A call's place in the queue, to which it returns when an endpoint gives it back.

    since_s: when the call began to wait. asked: its facts. number: in the order of their arrival.
    passed: number of calls that have overtaken it. turn: the future that it awaits until its turn.
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
    """Tickets that wait, lowest priority number and earliest arrival first.

    The sender bounds its length: a runner has a bounded number of workers. tickets: those that
    wait, in order; read-only.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def add(self, ticket: Ticket) -> asyncio.Future[PoolMember]:
        """Puts the ticket into its place; returns the future for the endpoint that takes it."""
        ticket.turn = turn = asyncio.Future[PoolMember]()
        insort(self.tickets, ticket, key=_PLACE)
        return turn

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
