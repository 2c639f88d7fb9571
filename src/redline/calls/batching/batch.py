"""Runs one batch: makes its calls, and gives each member its outcome.

the outcome of a call                  the outcomes of the members
an answer with a part per member       each gets its own part
an answer that cannot be split         BadReply for all
400, 413, 422 or OverLimit, or an      the batch is split into halves, each sent by itself, until
error without a status, except a       each member at fault is alone and gets the error
Retryable or Withdrawn one, or one
that stops the run
any other error                        all get the error, since no single member is to blame
a member's own `on_write` refuses      that member gets the error; the others are sent without it

A batch of n members makes at most 2n - 1 calls for its answers, or 1 + 2 log2(n), with the
logarithm rounded up, if only one of them is at fault. Its calls follow one another, so a batch
never has more than one in flight.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence

import msgspec

from redline.calls.batching.figures import BatchFigures
from redline.calls.batching.parts import Lists, Member
from redline.clock import Clock
from redline.errors import (
    BudgetSpent,
    CallError,
    NoEndpoint,
    OverLimit,
    Rejected,
    Retryable,
    Withdrawn,
)
from redline.waist import Call, Held, Outcome, failed

# Statuses of calls that may have failed because of their items; None is for errors without a
# status. 401, 403 and 404 concern the key and the model, which all members have in common.
_OF_ITEMS = frozenset({400, 413, 422, None})


class Batch:
    """Members that are sent together. figures: counts the batch's calls after the first."""

    def __init__(
        self, members: list[Member], lists: Lists, clock: Clock, figures: BatchFigures
    ) -> None:
        self.members = members
        self._lists = lists
        self._clock = clock
        self._figures = figures
        self._left = len(members)
        self._task: asyncio.Task[None] | None = None
        for member in members:
            member.on_leave = self.leave

    def start(self, on_end: Callable[[Batch], None]) -> None:
        """Sends the batch. on_end: called when every member has its outcome or has left."""
        self._task = asyncio.create_task(self._run(), name="redline batch")
        self._task.add_done_callback(lambda task: self._end(task, on_end))

    def leave(self) -> None:
        """Records that a member no longer waits; cancels the call when the last member leaves."""
        self._left -= 1
        if not self._left:
            self.cancel()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Waits until the batch is over."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _end(self, task: asyncio.Task[None], on_end: Callable[[Batch], None]) -> None:
        error = None if task.cancelled() else task.exception()
        for member in self.members:
            if member.answer.done():
                continue
            if error is not None:
                # A backend that raises is defective: each caller gets the exception.
                member.answer.set_exception(error)
            else:
                member.answer.set_result(ended_early())
        on_end(self)

    async def _run(self) -> None:
        left = [self.members]
        is_first = True
        while left:
            members = [one for one in left.pop() if not one.answer.done()]
            if not members:
                continue
            if not is_first:
                self._figures.divided += 1
            is_first = False
            try:
                left.extend(await self._ask(members))
            except (SystemExit, KeyboardInterrupt) as error:
                # If this task raised an exit, it would end the event loop before the exit reached
                # any caller.
                for member in members:
                    if not member.answer.done():
                        member.answer.set_exception(error)

    async def _ask(self, members: list[Member]) -> list[list[Member]]:
        """Makes one call, and sets the outcome of each member that it decides.

        Returns the groups of members that must still be sent, the next group last.
        """
        writing = _Writing(members, self._clock)
        call = _joint_call(members, writing)
        parts = [member.part for member in members]
        try:
            outcome = await self._lists.backend.send(self._lists.joined(parts), call)
        finally:
            writing.end(call)
        if writing.refused:
            for member, refusal in writing.refused:
                _answer(member, failed(refusal))
            return [[one for one in members if not one.answer.done()]]
        error = outcome.error
        if error is None:
            try:
                _share_held(members, call)
                for member, own in zip(members, self._lists.split(parts, outcome), strict=True):
                    _answer(member, own)
                return []
            except CallError as broken:
                error = broken
                outcome = msgspec.structs.replace(
                    failed(error, endpoint=outcome.endpoint, latency_s=outcome.latency_s),
                    attempts=outcome.attempts,
                    tried=outcome.tried,
                )
        elif _is_of_items(error) and len(members) > 1:
            half = (len(members) + 1) // 2
            return [members[half:], members[:half]]
        is_mixed = len({member.call.tenant for member in members}) > 1
        for member in members:
            own_error = _copy_of(error, for_any=is_mixed)
            _answer(member, msgspec.structs.replace(outcome, error=own_error))
        return []


class _Writing:
    """Runs the members' hooks for a joint call. refused: members whose `on_write` raised."""

    def __init__(self, members: list[Member], clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self.refused: list[tuple[Member, CallError]] = []

    def __call__(self) -> None:
        self.refused = []
        for member in self._waiting():
            if member.call.on_write is None:
                continue
            try:
                member.call.on_write()
            except CallError as error:
                self.refused.append((member, error))
        if self.refused:
            # The error must be final: a pool would resend a withdrawn call with the same members.
            raise BudgetSpent("a member of the batch must not be sent")
        sent_s = self._clock.now_s()
        for member in self._waiting():
            member.call.sent_s = sent_s
            member.call.requests += 1

    def wait(self) -> None:
        """Notifies the members that the call waits for its next attempt."""
        for member in self._waiting():
            member.call.sent_s = None
            if member.call.on_wait is not None:
                member.call.on_wait()

    def end(self, call: Call) -> None:
        """Records the end of the joint call in the calls of its members."""
        for member in self._waiting():
            member.call.sent_s = None
            member.call.refused += call.refused

    def _waiting(self) -> list[Member]:
        """Returns the members that still wait; other members' Calls may be in use elsewhere."""
        return [member for member in self._members if not member.answer.done()]


def _joint_call(members: Sequence[Member], writing: _Writing) -> Call:
    first = members[0].call
    tenants = {member.call.tenant for member in members}
    return Call(
        deadline_s=max(member.call.deadline_s for member in members),
        priority=min(member.call.priority for member in members),
        tenant=first.tenant if len(tenants) == 1 else "",
        avoid=first.avoid,
        unfit=first.unfit,
        barred=first.barred,
        once=any(member.call.once for member in members),
        on_write=writing,
        on_wait=writing.wait,
    )


def _is_of_items(error: CallError | NoEndpoint) -> bool:
    """Whether the call might succeed without some of its items."""
    if isinstance(error, OverLimit):
        return True
    is_of_all = isinstance(error, Retryable | Withdrawn) or error.stops_run
    return isinstance(error, CallError) and not is_of_all and error.status in _OF_ITEMS


def _copy_of(error: CallError | NoEndpoint, *, for_any: bool) -> CallError | NoEndpoint:
    """Returns a copy of the error for one member, whose caller may change it.

    for_any: True if the batch has members of several tenants. The endpoint's message is then left
    out, since it may quote another tenant's request.
    """
    own = copy.copy(error)
    if not for_any:
        own.__cause__ = error.__cause__
        return own
    status = error.status if isinstance(error, CallError) else None
    own.what = f"the call failed: {error.kind}" + (f", HTTP {status}" if status else "")
    own.args = (own.what,)
    if isinstance(own, CallError):
        own.keep_body(b"")
    return own


def _answer(member: Member, outcome: Outcome) -> None:
    if member.answer.done():
        return
    outcome.was_queued(member.at_s)
    member.answer.set_result(outcome)


def ended_early() -> Outcome:
    """Returns the outcome of a request whose batcher was closed or whose call was cancelled."""
    return failed(
        Rejected(
            "the batcher was closed before the answer arrived",
            hint="await all calls before closing it",
        )
    )


class _Share:
    """One member's share of the memory that the joint answer holds.

    shares: the shares that are not yet released; a new share adds itself. held: the memory, which
    is released with the last share.
    """

    def __init__(self, shares: set[_Share], held: Held) -> None:
        self._shares = shares
        self._held = held
        shares.add(self)

    @property
    def is_wanted(self) -> bool:
        return self._held.is_wanted

    def release(self) -> None:
        """Releases the share; may be called more than once."""
        self._shares.discard(self)
        if not self._shares:
            self._held.release()


def _share_held(members: Sequence[Member], call: Call) -> None:
    """Shares the answer's memory among the members; it is freed once all release their shares."""
    waiting = [member for member in members if not member.answer.done()]
    if call.held is None or not waiting:
        call.let_go()
        return
    shares: set[_Share] = set()
    for member in waiting:
        # The member may still hold the memory of an earlier attempt's answer.
        member.call.let_go()
        member.call.held = _Share(shares, call.held)
