"""Requests as parts of a list, and backends that answer lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from redline.waist import Backend, Call, Outcome, Request


class Part(msgspec.Struct, frozen=True):
    """A request as a part of a batch. key: equal for requests that may share a call.

    count: its items, 1 or more. size: its bytes. items: in the form in which they are sent.
    answers: the number of answers to each item.
    """

    request: Request
    key: Hashable
    count: int
    size: int
    items: tuple[Any, ...]
    answers: int = 1

    @property
    def asked(self) -> int:
        """The number of answers to all of its items."""
        return self.count * self.answers


class Member(msgspec.Struct, eq=False):
    """A request that waits for its batch, or for the batch's answer.

    number: its place by arrival. at_s: its time of arrival. answer: the future of its outcome.
    on_leave: called when its caller no longer waits; None while it has no batch.
    """

    part: Part
    call: Call
    number: int
    at_s: float
    answer: asyncio.Future[Outcome]
    on_leave: Callable[[], None] | None = None


class Lists(msgspec.Struct, frozen=True):
    """A backend of lists, and the functions that join requests for it and split its answers.

    part_of: returns a request's part, None if it must be sent alone. joined: returns one request
    for several parts. split: returns the outcome of each part from the joint success; raises
    CallError if the answer cannot be split.
    """

    backend: Backend
    part_of: Callable[[Request, Call], Part | None]
    joined: Callable[[Sequence[Part]], Request]
    split: Callable[[Sequence[Part], Outcome], list[Outcome]]
