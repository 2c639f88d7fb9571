"""Applies limits that several processes share through a ledger: a file, or Redis.

To its callers, a SharedLimiter is a Limiter. Behind it, a ledger books send times ahead for all
processes (schedule.py): the limiter requests a lease for its first callers, grants each caller a
slot of the lease, and reports with the next request how the slots were used.

A slot that is due goes to the first caller in line that it fits. If it fits none of those at the
front, it goes to the caller for which it was booked. So callers of one priority are served in
order as far as slots fit them. A slot is lost only if it fits no caller at the front and its own
caller is gone, if the event loop is late for it, or if the limiter is parked.
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

# The slack: a call leaves at most this long after its planned time. It is the guard, or 2 % of the
# shortest window if that is more, from 5 to 50 ms, and at least twice the uncertainty of ledger
# times. If the event loop is so busy that slots pass unused, the slack doubles, up to 2 s, until
# they are used.
_SLACK_SHARE, _LEAST_SLACK_S, _MOST_SLACK_S = 0.02, 0.005, 0.05
_MOST_BUSY_SLACK_S, _CALMER = 2.0, 0.8
# One lease has at most this share of a limit, or what its duration allows if that is more. Calls of
# a burst are sent at once, which takes the loop a few ms and must be over within the slack.
_LEASE_SHARE = 1 / 16
_MOST_CALLS, _MOST_BURST = 4096, 256
# If callers still need slots, the ledger is queried again after a random part of a lease in this
# range, so that each turn is worthwhile and no process always comes first. The rest of the lease
# covers the time of the query.
_ASK_AFTER = (1 / 8, 3 / 8)
# A ledger that does not answer is queried again with this back-off. After GIVE_UP_S seconds,
# callers get an error.
_FIRST_BACK_OFF_S, _MOST_BACK_OFF_S = 0.05, 2.0
GIVE_UP_S = 30.0
# A 429 despite the limits means that another client uses them as well, or that the guard was too
# short; the share of 429s shows which. In both cases, all processes pause for a tenth of the
# shortest window, at most 1 s; each process causes at most one such pause per window.
_PAUSE_SHARE, _MOST_PAUSE_S = 0.1, 1.0
_CLOSE_WITHIN_S = 1.0
_NOTHING = Cost()
# The most slots searched for a caller, and the most callers searched for a slot.
_MOST_LOOKS = 64


# The amount that a call takes from each limit, in the order of the rules.
_Amounts = tuple[int, ...]


class Slot(msgspec.Struct, eq=False):
    """A send time that is booked in the ledger.

    owner: the caller for which it was booked; None once the slot was due or given back. planned_s:
    in ledger time. stamp_s, amounts: its stamp (ledger time) and amounts as the ledger has them.
    at_s, until_s: a call may be sent in the slot between these local times. sent_s, late_s, used:
    its true state, which the ledger does not know yet, in local time; used is None while equal to
    `amounts`.
    """

    owner: Waiter[_Amounts, Slot] | None
    planned_s: float
    stamp_s: float
    at_s: float
    until_s: float
    amounts: _Amounts
    used: _Amounts | None = None
    sent_s: float | None = None
    late_s: float | None = None  # an upper bound of its delay to the server, once proved

    def fits(self, amounts: _Amounts) -> bool:
        return all(map(int.__le__, amounts, self.amounts))


class SharedLimiter(RateLimiter):
    """Applies rates that all processes with the same ledger share. For one event loop.

    If no guard is configured, each process measures the guard for its own path to the server. All
    processes must be configured with the same limits: no header changes them, and no limit is
    searched for. No call is granted at once, because the ledger assigns each call its time; nor is
    a bound of its tokens enough, because an amount booked too high would be missing in other
    processes.
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
        self._changed: dict[Slot, None] = {}  # slots whose changes the ledger does not know yet
        self._flush_s = math.inf  # the latest time to report these changes
        self._ask_s = -math.inf  # the ledger is not queried for slots before this time
        self._free_s = -math.inf  # no further call can be sent before this time
        self._first_s = -math.inf  # when the first caller without a slot could be served
        self._seen_s = 0.0
        self._has_missed = False  # a slot has passed unused since the last query
        self._slack_factor = 1.0
        self._park_news_s = -math.inf  # the end of a park that the ledger does not know yet
        self._pausable_s = -math.inf
        self._pressure = Pressure(self.rules)
        self._lost_s: float | None = None  # since when the ledger has not answered
        self._back_off_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def room_s(self, cost: Cost, now_s: float) -> float:
        """Returns the seconds until a call of `cost`, behind the callers in line, could be granted.

        Books nothing. This is an estimate from the ledger's last answer, as if all calls cost the
        same.
        """
        wait_s = max(0.0, self._parked_until_s - now_s, self._free_s - now_s)
        return wait_s + self.waiting * self.rules.spacing_s(cost)

    @property
    def is_lost(self) -> bool:
        if self._lost_s is None:
            return False
        now_s = self._clock.now_s()
        # Without callers, the ledger is not queried, so it may be within reach again.
        is_current = self._task is not None or now_s <= self._ask_s
        return is_current and now_s - self._lost_s >= GIVE_UP_S

    @property
    def next_s(self) -> float:
        """The time (monotonic) of the park's end or of the next grant, whichever is later.

        -inf if the limiter was never parked and no caller waits.
        """
        due_s = -math.inf
        if self.waiting:
            due_s = self._slots[0].at_s if self._slots else self._first_s
        return max(self._parked_until_s, due_s)

    def binds(self, cost: Cost, now_s: float) -> str:
        """Returns the limit that holds back a call of `cost`, in words; "" if none does."""
        return "the shared limits" if self.waiting or self._free_s > now_s else ""

    def holding(self, now_s: float) -> list[tuple[Kind, Rate | None]]:
        """Returns all shared limits if callers are in line: which of them binds is unknown here."""
        return list(self._rated) if self.waiting else []

    def park(self, until_s: float) -> bool:
        """Gives no grants before `until_s` (monotonic).

        Returns False if an earlier call set this time or a later one. Other processes learn of the
        park with their next lease.
        """
        if not super().park(until_s):
            return False
        self._park_news_s = until_s
        self._pump()
        return True

    def accepted(self, now_s: float) -> bool:
        """Counts an answer other than a 429; False if `answered` must be called instead."""
        return self._pressure.accepted(now_s)

    def answered(self, now_s: float, *, is_limited: bool) -> None:
        """Counts an answer. After a 429, all processes pause; each causes at most one per window.

        If 429s recur but are few, this process's guard, unless it is configured, is doubled, once.
        """
        if self.rules.lines:
            self._pressure.answered(now_s, is_limited=is_limited, is_alone=True)
        if not is_limited or now_s < self._pausable_s:
            return
        self._pausable_s = now_s + self._shortest_s
        self.park(now_s + min(_MOST_PAUSE_S, self._shortest_s * _PAUSE_SHARE))

    async def acquire(self, cost: Cost | int = _NOTHING, priority: int = 0) -> Grant:
        """Waits for a grant for one request of `cost`, in turn, and returns it.

        cost: a number means tokens, input and output together. priority: lower goes first.
        Raises OverLimit at once if the request could never be granted, and NoEndpoint if, for
        GIVE_UP_S seconds, the ledger has not answered or other processes have had other limits.
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
            # The slot passed because the event loop was busy or the process was suspended.
            self._drop(slot)

    def mark_sent(self, taken: Slot, now_s: float) -> None:
        """Records that a grant's call was written at `now_s`."""
        taken.sent_s = now_s
        self._note(taken)

    def give_back(self, taken: Slot) -> None:
        """Makes the slot of a grant whose call was not written available again."""
        if self._is_closed:
            return
        self._slots.appendleft(taken)
        self._pump()

    def settle(self, taken: Slot, used: Cost) -> None:
        """Records the usage of a grant's call."""
        # Bounded by a whole window: otherwise a server that counts wrongly would stop the run.
        taken.used = tuple(min(used.amount(kind), rate.count) for kind, rate in self._rated)
        self._note(taken)

    def replied(self, taken: Slot, took_s: float, sent_s: float, used: Cost | None) -> None:
        """Records that the reply of a grant's call began `took_s` seconds after the write.

        used: see `settle`; None if not known yet.
        """
        if self._limits.guard_s is None:
            self.jitter.replied(took_s, sent_s)
            taken.late_s = self.jitter.proved_s(took_s)
            self._note(taken)
        if used is not None:
            self.settle(taken, used)

    async def aclose(self) -> None:
        """Gives booked slots back, and closes the ledger. May be called again."""
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
            # Other processes lose as much as after a crash: at most one lease.
            pass
        finally:
            await self._ledger.aclose()

    def _pump(self) -> None:
        """Grants due slots, requests a lease if one is needed, and sets the timer."""
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
        """Gives each due slot to a caller in line that it fits, or back to the ledger."""
        queue, slots = self._queue, self._slots
        while slots and slots[0].at_s <= now_s:
            slot = slots.popleft()
            # The caller's future will hold the slot; the slot must not hold the caller in a cycle.
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
        """Yields the callers in line for which no slot is booked.

        A slot that its own caller no longer needs counts for the first caller that it fits. Only
        the first such slots are compared with a caller.
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
        """Returns the first callers without a slot that together need at most `_batch`.

        At least one, if there is any.
        """
        first: list[Waiter[_Amounts, Slot]] = []
        room = self._batch
        for waiter in islice(self._without_slot(), self._most_calls):
            room = [have - amount for have, amount in zip(room, waiter.want, strict=True)]
            if first and min(room, default=0) < 0:
                break
            first.append(waiter)
        return first

    def _due_ask_s(self) -> float:
        """Returns when the ledger must be queried next; inf for never."""
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
        """Marks a used slot to be reported with the next request.

        That is made after a quarter of the shortest window, or one lease if that is longer, at the
        latest.
        """
        self._changed[slot] = None
        if self._flush_s == math.inf:
            self._flush_s = self._clock.now_s() + max(self._lease_s, self._shortest_s / 4)
            self._pump()

    async def _ask(self) -> None:
        """Takes one turn at the ledger, for the first callers in line."""
        try:
            first = self._first()
            request = self._request([waiter.want for waiter in first])
            lease = await self._ledger.transact(request)
            if lease.others:
                raise NoEndpoint(
                    f"the processes that share these limits disagree: others have {lease.others}, "
                    f"this one has {self._words}",
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
        # Without a hard rule, the pace must allow for the whole delay of a call to the server.
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
        """Adds the slots of a lease. first: the callers for which they were requested."""
        local_s = self._ledger.local_s
        self._lost_s = None
        self._back_off_s = 0.0
        if request.park_s and local_s(request.park_s)[1] >= self._park_news_s:
            self._park_news_s = -math.inf
        self._parked_until_s = max(self._parked_until_s, local_s(lease.parked_s)[1])
        for owner, planned_s in zip(first, lease.times, strict=False):
            when_s = local_s(planned_s)[1], local_s(planned_s + request.slack_s)[0]
            # The terms are added in the same order as in the ledger: the sums must be equal to the
            # last bit, or the ledger would not find its record.
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
        """Handles a ledger that did not answer: schedules a retry; after GIVE_UP_S, fails callers.

        The last report may or may not have arrived, and is not repeated. If it has not, stamps that
        were not moved and slots that were not given back count for longer than they must.
        """
        now_s = self._clock.now_s()
        if self._lost_s is None:
            self._lost_s = now_s
        self._back_off_s = min(_MOST_BACK_OFF_S, max(_FIRST_BACK_OFF_S, self._back_off_s * 2))
        self._ask_s = now_s + self._back_off_s
        if self.is_lost:
            for waiter in [*self._without_slot()]:
                self._queue.refuse(waiter, NoEndpoint(error.what, hint=error.hint))


def _booked(cost: Cost, kind: Kind, rate: Rate) -> int:
    """Returns the amount to book for a call, with the margin that a call needs by itself.

    A margin for the sum of all calls would be smaller, but other processes' calls are unknown here.
    """
    margin = Doubt().margin(cost.spread_of(kind))
    return max(cost.amount(kind), min(rate.count, cost.amount(kind) + math.ceil(margin)))
