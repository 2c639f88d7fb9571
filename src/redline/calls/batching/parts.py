"""Defines requests as parts of a list, and backends that answer lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from redline.waist import Backend, Call, Outcome, Request


class Part(msgspec.Struct, frozen=True):
    """A request as a part of a batch. key: equal for requests that may share a call.

    count: the number of its items, 1 or more. size: the bytes of its body. items: the items in the
    form in which they are sent. answers: the number of answers requested for each item.
    """

    request: Request
    key: Hashable
    count: int
    size: int
    items: tuple[Any, ...]
    answers: int = 1

    @property
    def asked(self) -> int:
        """The number of answers requested for all items together."""
        return self.count * self.answers


class Member(msgspec.Struct, eq=False):
    """A request that waits for its batch, or for the batch's answer.

    number: its position in order of arrival. at_s: when it arrived. answer: the future of its
    outcome. on_leave: called when its caller no longer waits; None while it has no batch.
    """

    part: Part
    call: Call
    number: int
    at_s: float
    answer: asyncio.Future[Outcome]
    on_leave: Callable[[], None] | None = None


class Lists(msgspec.Struct, frozen=True):
    """A backend that answers lists, and functions that join its requests and split its answers.

    part_of: returns a request as a part, None if it must be sent alone. joined: returns one request
    for several parts. split: returns the outcome of each part from the outcome of a successful
    joint call; raises CallError if the answer cannot be split.
    """

    backend: Backend
    part_of: Callable[[Request, Call], Part | None]
    joined: Callable[[Sequence[Part]], Request]
    split: Callable[[Sequence[Part], Outcome], list[Outcome]]
