"""Requests as parts of a list, and who answers lists."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from redline.waist import Backend, Call, Outcome, Request


class Part(msgspec.Struct, frozen=True):
    """A request as a part of a batch. key: those who may share a call have the same.

    count: its items, one or more. size: its bytes. items: as they are sent. answers: how many each
    item has.
    """

    request: Request
    key: Hashable
    count: int
    size: int
    items: tuple[Any, ...]
    answers: int = 1


class Lists(msgspec.Struct, frozen=True, kw_only=True):
    """How requests become a list for a backend, and its answer becomes theirs.

    part_of: None for a request that goes alone. joined: one request for several parts. split: the
    outcome of each part, from the success of them all; raises CallError if it cannot say.
    """

    backend: Backend
    part_of: Callable[[Request, Call], Part | None]
    joined: Callable[[Sequence[Part]], Request]
    split: Callable[[Sequence[Part], Outcome], list[Outcome]]
