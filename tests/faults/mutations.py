"""Broken parts of redline, each of which must break the law in some script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from faults.parts import Breaking, assemble
from faults.play import BrokenLaw, play
from redline.calls import Call, HttpBackend, Retry
from redline.job.settings import NO_MORE_S
from redline.job.work import Feed
from redline.journal import Identifier, Journal, ResultsFile
from redline.limits import Limiter
from support.broken_parts import acknowledges_early, keeps_torn_lines, knows_nothing


@dataclass(frozen=True)
class Mutation:
    """breaking: makes a broken one of `part`.

    says: parts of what may then be found first. is_rare: it takes some hundred scripts.
    """

    name: str
    part: object
    breaking: Breaking
    says: tuple[str, ...]
    is_rare: bool = False

    def is_named_by(self, broken: BrokenLaw) -> bool:
        """The law is broken by this, and by nothing else that came with it."""
        return any(part in str(broken) for part in self.says)


def _loses_bad_replies(base: Any) -> Any:
    class Losing(base):  # type: ignore[misc]
        def append(self, result: Any) -> None:
            error = result.outcome.error
            if error is None or error.kind != "bad_reply":
                super().append(result)

    return Losing


def _acknowledges_twice(base: Any) -> Any:
    class Twice(base):  # type: ignore[misc]
        def __init__(self, output: Any, acknowledge: Any) -> None:
            def twice(results: list[Any]) -> None:
                acknowledge(results)
                acknowledge(results)

            super().__init__(output, twice)

    return Twice


def _keeps_slots(base: Any) -> Any:
    class Keeping(base):  # type: ignore[misc]
        async def send(self, request: Any, call: Any, sink: Any = None) -> Any:
            try:
                return await super().send(request, call, sink)
            except asyncio.CancelledError:
                self.slots.take_free()
                raise

    return Keeping


def _tries_once_more(base: Any) -> Any:
    class OnceMore(base):  # type: ignore[misc]
        def __init__(self, backend: Any, policy: Any, **named: Any) -> None:
            policy = msgspec.structs.replace(policy, max_retries=policy.max_retries + 1)
            super().__init__(backend, policy, **named)

    return OnceMore


def _is_late(base: Any) -> Any:
    class Slow:
        def __init__(self, clock: Any) -> None:
            self.now_s = lambda: clock.now_s() - 1_000.0

    class Late(base):  # type: ignore[misc]
        def __init__(self, backend: Any, policy: Any, *, clock: Any, **named: Any) -> None:
            super().__init__(backend, policy, clock=Slow(clock), **named)

    return Late


def _without(*names: str) -> Breaking:
    """Makes a part of which these methods do nothing."""

    def breaking(base: Any) -> Any:
        return type(base.__name__, (base,), dict.fromkeys(names, lambda *_: None))

    return breaking


def _flushes_late(base: Any) -> Any:
    class Late(base):  # type: ignore[misc]
        def flush(self) -> None:
            if asyncio.current_task() is not None:
                # The sync's own.
                super().flush()
                return
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, super().flush)

    return Late


def _forgets_waiting(base: Any) -> Any:
    class Forgetting(base):  # type: ignore[misc]
        is_over = False

        def close(self) -> None:
            self.is_over = True
            super().close()

        async def next(self) -> Any:
            was_over = self.is_over
            picked = await super().next()
            if self.is_over and not was_over:
                await asyncio.get_running_loop().create_future()
            return picked

    return Forgetting


def _goes_on(base: Any) -> Any:
    class GoingOn(base):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            if value != NO_MORE_S:
                super().__setattr__(name, value)

    return GoingOn


MUTATIONS = [
    Mutation(
        "an outcome is lost where an answer cannot be read",
        Journal,
        _loses_bad_replies,
        ("taken and not acknowledged",),
    ),
    Mutation("rows are acknowledged twice", Journal, _acknowledges_twice, ("acknowledged twice",)),
    Mutation("a cancelled call keeps its slot", HttpBackend, _keeps_slots, ("slots",)),
    Mutation(
        "a finished row is asked again on resume", Identifier, knows_nothing, ("succeeded twice",)
    ),
    Mutation(
        "one attempt more than allowed", Retry, _tries_once_more, ("failed", "without retries")
    ),
    Mutation("a row is tried again after its deadline", Retry, _is_late, ("deadline",)),
    Mutation("a grant that is not used is kept", Limiter, _without("give_back"), ("still in use",)),
    Mutation(
        "what an answer used is not settled", Limiter, _without("settle"), ("are booked for",)
    ),
    Mutation("a Retry-After is not heeded", Limiter, _without("park"), ("although told",)),
    Mutation(
        "a torn line is kept",
        ResultsFile,
        keeps_torn_lines,
        ("damaged lines", "half a line"),
        is_rare=True,
    ),
    Mutation(
        "rows are acknowledged before they are synced",
        Journal,
        acknowledges_early,
        ("acknowledged and lost", "in its file, not"),
    ),
    Mutation(
        "a slot is used again before its line is written",
        Journal,
        _flushes_late,
        ("a death costs",),
        is_rare=True,
    ),
    Mutation(
        "workers that wait for rows are forgotten when the run ends",
        Feed,
        _forgets_waiting,
        ("virtual time", "after the drain"),
        is_rare=True,
    ),
    Mutation(
        "an attempt begins after Ctrl-C",
        Call,
        _goes_on,
        ("asked although the run was to end",),
        is_rare=True,
    ),
]


def caught_by(mutation: Mutation, seeds: Iterable[int]) -> BrokenLaw | None:
    """How the first of these scripts that notices the mutation breaks the law; None for none."""
    parts = assemble(mutation.part, mutation.breaking)
    for seed in seeds:
        try:
            play(seed, parts)
        except BrokenLaw as error:
            return error
    return None
