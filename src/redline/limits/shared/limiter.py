"""Limits that several processes share through a ledger: a file, or Redis.

To its callers a SharedLimiter is a Limiter. Behind it a ledger books send times ahead for all
processes (schedule.py): this one asks for a lease for its first callers, admits each within its
slot, and reports how the slots were used when it asks again.

A slot that is due goes to the first caller in line that it fits; if it fits none of those at the
front, to the caller for which it was booked. So the order is kept within a priority, and a slot is
lost only if it fits none at the front and its own caller is gone.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import NoEndpoint
from redline.limits.rule import Cost, Doubt, Kind, Limits, Rate
from redline.limits.server import Pressure
from redline.limits.shared.ledger import Ledger
from redline.limits.shared.schedule import (
    Change,
    Lease,
    LeaseRequest,
    described,
    lease_s_of,
    rated,
    rules_of,
)
from redline.limits.wait import Grant, RateLimiter, Waiter, WaitQueue

# A call leaves at most this long after its planned time: the guard, or 2 % of the shortest window.
# If a loop is so busy that slots pass unused, the slack doubles until they do not.
_SLACK_SHARE, _LEAST_SLACK_S, _MOST_SLACK_S = 0.02, 0.005, 0.05
_MOST_BUSY_SLACK_S, _CALMER = 2.0, 0.8
# The share of a limit in one lease, unless its duration allows more. The calls of a burst are sent
# at once, which takes the loop some ms and must be over within the slack.
_LEASE_SHARE = 1 / 16
_MOST_CALLS, _MOST_BURST = 4096, 256
# If more can be had, the ledger is queried after a random part of a lease in this range, so that
# each turn is worthwhile and no process always comes first. The rest of the lease covers the query.
_ASK_AFTER = (1 / 8, 3 / 8)
# A lost ledger is queried again with this back-off, and callers get an error after GIVE_UP_S.
_FIRST_BACK_OFF_S, _MOST_BACK_OFF_S = 0.05, 2.0
GIVE_UP_S = 30.0
# A 429 in spite of the limits: another client uses them as well, or the guard was too short. All
# processes pause for a tenth of the shortest window, at most once per window. The share of the 429s
# tells whether it is the guard.
_PAUSE_SHARE, _MOST_PAUSE_S = 0.1, 1.0
_CLOSE_WITHIN_S = 1.0
_NOTHING = Cost()
# The most that is searched for a slot that fits a caller, or for a caller that fits a slot.
_MOST_LOOKS = 64


# What a call takes of each limit, in the order of the rules.
_Amounts = tuple[int, ...]


class Slot(msgspec.Struct, eq=False):
    """A send time that is booked in the ledger.

    owner: the caller for which it was booked; None once it was due, or given back. planned_s: the
    ledger's time. stamp_s, amounts: its state in the ledger. at_s, until_s: when a call may leave
    in it, local. sent_s, late_s, used: its true state, local, which the ledger has yet to learn;
    used is None while it equals `amounts`.
    """

    owner: Waiter[_Amounts, Slot] | None
    planned_s: float
    stamp_s: float
    at_s: float
    until_s: float
    amounts: _Amounts
    used: _Amounts | None = None
    sent_s: float | None = None
    late_s: float | None = None  # how late it reached the server at most, once proved

    def fits(self, amounts: _Amounts) -> bool:
        return all(map(int.__le__, amounts, self.amounts))


class SharedLimiter(RateLimiter):
    """The rate limits of `limits`, shared by all processes that use the ledger. For one event loop.

    A guard that is not configured is measured by each process for its own way to the server. The
    limits are those configured in all processes: no header changes them, and none is searched for.
    The ledger keeps the sends and assigns each call its time, so that none is granted at once, nor
    by a bound: an amount that one process books too high would be missing for the others.
    """

    is_shared = True
    _queue: WaitQueue[_Amounts, Slot]

    def __init__(self, limits: Limits, ledger: Ledger, clock: Clock = SYSTEM) -> None:
        super().__init__(limits, clock)
        self.jitter = self.rules.jitter
        self._limits = limits
        self._ledger = ledger
        self._owner = secrets.token_hex(8)
        self._words = described(limits)
        self._rated = rated(limits)
        self._lease_s = lease_s_of(limits)
        self._shortest_s = min((rate.window_s for _, rate in self._rated), default=1.0)
        self._batch = [
            math.ceil(rate.count * max(_LEASE_SHARE, self._lease_s / rate.window_s))
            for _, rate in self._rated
        ]
        is_paced = limits.profile in ("any", "counter")
        self._most_calls = _MOST_CALLS if is_paced else _MOST_BURST
        self._slots: deque[Slot] = deque()  # booked, the earliest first
        self._changed: dict[Slot, None] = {}  # what the ledger does not know yet
        self._flush_s = math.inf  # when it is flushed at the latest
        self._ask_s = -math.inf  # not to be asked before
        self._free_s = -math.inf  # before that no more can be sent
        self._first_s = -math.inf  # when the first caller without a slot could go
        self._seen_s = 0.0
        self._has_missed = False  # a slot passed unused since the ledger was asked
        self._slack_factor = 1.0
        self._park_news_s = -math.inf  # what the ledger does not know yet
        self._pausable_s = -math.inf
        self._pressure = Pressure(self.rules)
        self._lost_s: float | None = None  # since when the ledger does not answer
        self._back_off_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def room_s(self, cost: Cost, now_s: float) -> float:
        """Seconds until a call of `cost` could be granted after the callers in line; books nothing.

        Estimated from the last answer of the ledger, as if all calls cost the same.
        """
        wait_s = max(0.0, self._parked_until_s - now_s, self._free_s - now_s)
        return wait_s + self.waiting * self.rules.spacing_s(cost)

    @property
    def next_s(self) -> float:
        """When the next grant may be given (monotonic) to a present waiter; -inf if none waits."""
        due_s = -math.inf
        if self.waiting:
            due_s = self._slots[0].at_s if self._slots else self._first_s
        return max(self._parked_until_s, due_s)

    def binds(self, cost: Cost, now_s: float) -> str:
        """The limit that holds a call of `cost`, in words; empty if none does."""
        return "the shared limits" if self.waiting or self._free_s > now_s else ""

    def holding(self, now_s: float) -> list[tuple[Kind, Rate | None]]:
        """The limits that are shared, if callers are in line: which of them is not known here."""
        return list(self._rated) if self.waiting else []

    def park(self, until_s: float) -> bool:
        """Gives no grants before `until_s` (monotonic). True if that is later than before.

        The other processes learn of it with their next lease.
        """
        if not super().park(until_s):
            return False
        self._park_news_s = until_s
        self._pump()
        return True

    def accepted(self, now_s: float) -> bool:
        """Counts an answer other than a 429; False if `answered` must be called for it instead."""
        return self._pressure.accepted(now_s)

    def answered(self, now_s: float, *, is_limited: bool) -> None:
        """Counts an answer. A 429 is a short pause for all processes, at most once a window.

        Few 429s that recur double this process's guard, once.
        """
        if self.rules.lines:
            self._pressure.answered(now_s, is_limited=is_limited, is_alone=True)
        if not is_limited or now_s < self._pausable_s:
            return
        self._pausable_s = now_s + self._shortest_s
        self.park(now_s + min(_MOST_PAUSE_S, self._shortest_s * _PAUSE_SHARE))

    async def acquire(self, cost: Cost | int = _NOTHING, priority: int = 0) -> Grant:
        """A grant for one request of `cost`; waits for it in turn.

        cost: a number means tokens, input and output together. priority: lower goes first.
        Raises OverLimit at once when it could never be granted, and NoEndpoint when the ledger
        has not answered for GIVE_UP_S.
        """
        cost = cost if isinstance(cost, Cost) else Cost(cost)
        self.check(cost)
        queue, asked_s = self._queue, self._clock.now_s()
        amounts = tuple(_booked(cost, kind, rate) for kind, rate in self._rated)
        number = queue.number()
        if not queue.waiting:
            self._busy_from_s = asked_s
        while True:
            turn = queue.add(amounts, priority, number)
            self._pump()
            try:
                slot = await turn
            except asyncio.CancelledError:
                queue.leave(turn, self.give_back)
                raise
            now_s = self._clock.now_s()
            if now_s <= slot.until_s:
                return Grant(self, slot, cost, now_s - asked_s, until_s=slot.until_s)
            # The loop was busy, or the process stopped, until the slot had passed.
            self._drop(slot)

    def mark_sent(self, taken: Slot, now_s: float) -> None:
        """Records that a grant's call was written at `now_s`."""
        taken.sent_s = now_s
        self._note(taken)

    def give_back(self, taken: Slot) -> None:
        """Gives back the slot of a grant whose call was not written."""
        if self._is_closed:
            return
        self._slots.appendleft(taken)
        self._pump()

    def settle(self, taken: Slot, used: Cost) -> None:
        """Records that a grant's call used `used`."""
        # At most a whole window can be owed, or a server that counts wrongly would stop the run.
        taken.used = tuple(min(used.amount(kind), rate.count) for kind, rate in self._rated)
        self._note(taken)

    def replied(self, taken: Slot, took_s: float, sent_s: float, used: Cost | None) -> None:
        """Records that a grant's reply began `took_s` after its write; used: as for `settle`."""
        if self._limits.guard_s is None:
            self.jitter.replied(took_s, sent_s)
            taken.late_s = self.jitter.proved_s(took_s)
            self._note(taken)
        if used is not None:
            self.settle(taken, used)

    async def aclose(self) -> None:
        """Gives back what is booked, and closes the ledger. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        while self._slots:
            self._drop(self._slots.pop())
        try:
            if self._changed:
                async with asyncio.timeout(_CLOSE_WITHIN_S):
                    await self._ledger.transact(self._request([]))
        except (NoEndpoint, TimeoutError):
            # The others lose no more than by a crash: one lease.
            pass
        finally:
            await self._ledger.aclose()

    def _pump(self) -> None:
        """Grants calls that are due, requests a lease if one is needed, sets the timer."""
        if self._is_closed:
            return
        now_s = self._clock.now_s()
        self._hand_out(now_s)
        due_s = self._slots[0].at_s if self._slots else math.inf
        if self._task is None:
            ask_s = self._due_ask_s()
            if ask_s <= now_s:
                self._task = asyncio.get_running_loop().create_task(self._ask())
            else:
                due_s = min(due_s, ask_s)
        self._ring_at(due_s, now_s)

    def _hand_out(self, now_s: float) -> None:
        """Gives each slot that is due to a caller in line that it fits, or back to the ledger."""
        queue, slots = self._queue, self._slots
        while slots and slots[0].at_s <= now_s:
            slot = slots.popleft()
            # The caller's future will hold the slot: without this, each would keep the other.
            owner, slot.owner = slot.owner, None
            taker = None
            if now_s <= slot.until_s and slot.at_s >= self._parked_until_s:
                near = islice(queue.line(), _MOST_LOOKS)
                taker = next((one for one in near if slot.fits(one.want)), None)
                if taker is None and owner is not None and not owner.future.done():
                    taker = owner
            if taker is None:
                self._drop(slot)
            else:
                queue.wake(taker, slot)

    def _without_slot(self) -> Iterator[Waiter[_Amounts, Slot]]:
        """The callers in line without a slot: their own, or one that its caller no longer needs.

        A slot counts for the first caller that it fits, of those near the first slots.
        """
        owners, free = set[Waiter[_Amounts, Slot]](), list[Slot]()
        for slot in self._slots:
            if slot.owner is None or slot.owner.future.done():
                free.append(slot)
            else:
                owners.add(slot.owner)
        free.reverse()
        for waiter in self._queue.line():
            if waiter in owners:
                continue
            near = range(len(free) - 1, max(-1, len(free) - 1 - _MOST_LOOKS), -1)
            at = next((at for at in near if free[at].fits(waiter.want)), None)
            if at is None:
                yield waiter
            else:
                del free[at]

    def _first(self) -> list[Waiter[_Amounts, Slot]]:
        """The first callers without a slot, who need at most `_batch` together; at least one."""
        first: list[Waiter[_Amounts, Slot]] = []
        room = self._batch
        for waiter in islice(self._without_slot(), self._most_calls):
            room = [have - amount for have, amount in zip(room, waiter.want, strict=True)]
            if first and min(room, default=0) < 0:
                break
            first.append(waiter)
        return first

    def _due_ask_s(self) -> float:
        """When the ledger is to be asked next; inf for never."""
        if self._park_news_s > -math.inf:
            ask_s = -math.inf
        else:
            is_short = self.waiting > len(self._slots)
            ask_s = min(self._flush_s, self._ask_s if is_short else math.inf)
        return ask_s if self._lost_s is None else max(ask_s, self._ask_s)

    def _rang(self) -> None:
        self._timer = None
        self._pump()

    def _drop(self, slot: Slot) -> None:
        """Gives the slot back to the ledger."""
        self._has_missed |= self._clock.now_s() > slot.until_s
        self._changed[slot] = None

    def _note(self, slot: Slot) -> None:
        """Reports a used slot to the ledger: with the next request, or soon."""
        self._changed[slot] = None
        if self._flush_s == math.inf:
            self._flush_s = self._clock.now_s() + max(self._lease_s, self._shortest_s / 4)
            self._pump()

    async def _ask(self) -> None:
        """One turn at the ledger, for the first in line."""
        try:
            first = self._first()
            request = self._request([waiter.want for waiter in first])
            lease = await self._ledger.transact(request)
            if lease.others:
                raise NoEndpoint(
                    f"other processes share these limits as {lease.others}, this one as "
                    f"{self._words}",
                    hint="set the same limits in every process",
                )
            self._book(lease, request, first)
        except NoEndpoint as error:
            self._fail(error)
        finally:
            self._task = None
        self._pump()

    def _request(self, wants: list[_Amounts]) -> LeaseRequest:
        ledger, guard_s, unproven_s = self._ledger, self.jitter.guard_s, self.jitter.unproven_s
        slack_s = max(guard_s, _SLACK_SHARE * self._shortest_s, _LEAST_SLACK_S)
        slack_s = max(min(slack_s, _MOST_SLACK_S), 2 * ledger.unsure_s)
        self._slack_factor *= 2 if self._has_missed else _CALMER
        self._slack_factor = max(1.0, min(self._slack_factor, _MOST_BUSY_SLACK_S / slack_s))
        self._has_missed = False
        slack_s *= self._slack_factor
        # Without a hard rule, the pace must allow for all the lateness of a call at the server.
        is_bucket = self._limits.profile == "bucket"
        pace_guard_s = slack_s + unproven_s if is_bucket else max(guard_s, slack_s)
        changes = [self._change(slot, unproven_s) for slot in self._changed]
        self._changed.clear()
        self._flush_s = math.inf
        has_news = self._park_news_s > -math.inf
        return LeaseRequest(
            owner=self._owner,
            limits=self._words,
            rules=rules_of(self._limits, pace_guard_s),
            wants=wants,
            changes=changes,
            guard_s=unproven_s,
            slack_s=slack_s,
            lead_s=ledger.lead_s,
            lease_s=self._lease_s,
            seen_s=self._seen_s,
            park_s=ledger.stamp_s(self._park_news_s) if has_news else 0.0,
            busy_s=self._clock.now_s() - self._busy_from_s if wants else 0.0,
        )

    def _change(self, slot: Slot, unproven_s: float) -> Change:
        from_s, before = slot.stamp_s, slot.amounts
        if slot.sent_s is None:
            unused = (0,) * len(before)
            return Change(from_s, from_s, before, unused, slot.planned_s, was_sent=False)
        late_s = unproven_s if slot.late_s is None else slot.late_s
        slot.stamp_s = self._ledger.stamp_s(slot.sent_s) + late_s
        slot.amounts = slot.used or before
        return Change(from_s, slot.stamp_s, before, slot.amounts, slot.planned_s)

    def _book(
        self, lease: Lease, request: LeaseRequest, first: list[Waiter[_Amounts, Slot]]
    ) -> None:
        """Books the slots of the ledger's answer. first: the callers for which they were wanted."""
        local_s = self._ledger.local_s
        self._lost_s = None
        self._back_off_s = 0.0
        if request.park_s and local_s(request.park_s)[1] >= self._park_news_s:
            self._park_news_s = -math.inf
        self._parked_until_s = max(self._parked_until_s, local_s(lease.parked_s)[1])
        for owner, planned_s in zip(first, lease.times, strict=False):
            when_s = local_s(planned_s)[1], local_s(planned_s + request.slack_s)[0]
            # Added in the ledger's order, so that it finds its own record again.
            stamp_s = planned_s + request.slack_s + request.guard_s
            self._slots.append(Slot(owner, planned_s, stamp_s, *when_s, owner.want))
            self._seen_s = max(self._seen_s, planned_s)
        if len(lease.times) < len(request.wants):
            self._ask_s = local_s(lease.free_s)[1] + self._lease_s * random.uniform(*_ASK_AFTER)
            self._first_s = local_s(lease.at_s)[1]
            self._free_s = max(self._ask_s + self._lease_s / 2, self._first_s)
        else:
            self._ask_s = local_s(lease.free_s)[1]
            self._free_s = self._first_s = -math.inf

    def _fail(self, error: NoEndpoint) -> None:
        """Plans to ask the ledger again, which did not answer; after GIVE_UP_S, fails the callers.

        The last report may have arrived or not, and is not repeated: a stamp that is not moved,
        or a slot that is not given back, counts for longer than it must.
        """
        now_s = self._clock.now_s()
        if self._lost_s is None:
            self._lost_s = now_s
        self._back_off_s = min(_MOST_BACK_OFF_S, max(_FIRST_BACK_OFF_S, self._back_off_s * 2))
        self._ask_s = now_s + self._back_off_s
        if now_s - self._lost_s >= GIVE_UP_S:
            for waiter in [*self._without_slot()]:
                self._queue.refuse(waiter, NoEndpoint(error.what, hint=error.hint))


def _booked(cost: Cost, kind: Kind, rate: Rate) -> int:
    """The amount booked for a call: with its margin, as the doubt of all processes is unknown."""
    margin = Doubt().margin(cost.spread_of(kind))
    return max(cost.amount(kind), min(rate.count, cost.amount(kind) + math.ceil(margin)))
