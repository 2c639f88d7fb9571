"""Books send times ahead for several processes under one set of limits. Synchronous, without I/O.

A ledger (a file, or a key in Redis) keeps one `State`. Each process brings a `LeaseRequest`: how
its last slots were used, and what its first callers want. `transact` books a send time for each
want: the earliest that the rules of all windows allow after everything that was booked before.
These times are the lease of the process. A lease reaches at most `lease_s` ahead, so a process that
dies wastes at most that much time, and no process can take everything. redis_ledger.lua is the same
rule in Lua: change both together.

The rules are those of limits/rule/window.py, with the numbers of rule/shape.py, applied so that the
ledger need not rely on any process afterwards:

  hard   a send leaves the window W seconds after its stamp, and the amounts stamped in any W never
         exceed the count. The stamp of a slot is planned + slack + guard, until its process reports
         when it was sent (then sent + guard), or how late it can have reached the server (then sent
         + that delay). A process never sends in a slot later than planned + slack, so a process
         that dies or is suspended breaks no limit.
  soft   slots are T = (W + guard) / N apart with a burst of b (GCRA). This guard is at least the
         slack, so that sends may be late by the slack. Evenly paced tokens catch up, by at most
         `catch_up_s`, when another limit has held them back.
  bucket has no hard rule: the pace alone bounds what is taken from the server's bucket. Its guard
         is slack + guard. A refund must not credit more than the bucket had room for since the
         slot, because a full bucket gains nothing. So a book keeps, for each slot, the least that
         was missing from the bucket at any later slot (its lows).
  phase  a sliding-window counter must read at most N of evenly paced tokens, in whatever phase its
         windows begin (rule/phases.py): u S(t - uW) + (1 - u) S(t - uW - W) <= N, where S(x) is the
         amount stamped after x. So stamps of these tokens are kept for two windows.

Records are merged in grains of W/65,536, or of (W + 0.1 s)/1,024 for counts above 1,024; stamps are
rounded up. This keeps the state small, even for a limit of millions, and costs at most 0.1 % of the
rate.

Processes take turns: a process whose wants did not all fit waits in line, behind the processes that
have waited longer, until it is served. It keeps its place as long as it asks again in time.

  the first want fits     the process
  within the lease        gets as many slots as fit, and goes to the end of the line
  beyond the lease        waits in its place, and keeps the others out until the want could be sent:
                          small calls do not starve a large one
  behind other processes  waits until they could have been served, and is served if they do not ask

All times are ledger times, in seconds; `now_s` decreases only if the ledger's clock is set back.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from redline.limits.rule import KINDS, Kind, Limits, Rate, paid_at_s, refund_s, shape_of

# Other limits under the same name are an error while any process uses the name; after this many
# seconds without a turn, they count as a change between two runs.
STALE_S = 5.0
# The bounds of a lease. A crash wastes at most one, and another process waits for at most one.
MOST_LEASE_S, LEAST_LEASE_S = 1.0, 0.005
# A server's request to wait is honoured for at most this long, as in server/retry_after.py.
MOST_PARK_S = 86_400.0
_SMALL_COUNT, _FINE, _COARSE = 1024, 65_536, 1024
_LEAST_GRAIN_S = 1e-6
# The most lows of a bucket that a book keeps (see `Book.refund`).
_MOST_LOWS = 256


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """One rate in the form that the ledger needs. key: identifies its window in every process.

    catch_up_s: how many seconds the pace may fall behind and then catch up; if above 0, every
    phase is checked.
    """

    key: str
    count: int
    window_s: float
    unit_s: float
    burst: int
    is_hard: bool
    grain_s: float
    catch_up_s: float = 0.0


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The use of a slot: the amounts `before` at stamp `from_s` become `after` at `to_s`.

    planned_s: the planned send time of the slot. was_sent: False if the slot is given back unused.
    """

    from_s: float
    to_s: float
    before: Sequence[int]
    after: Sequence[int]
    planned_s: float
    was_sent: bool = True


class LeaseRequest(msgspec.Struct, frozen=True, array_like=True):
    """One process's turn at the ledger.

    owner: identifies the process. limits: the shared limits in words, the same in all processes.
    wants: for each of its first callers, its amount under each rule. changes: how its earlier slots
    were used. guard_s: how late a send without a reply may reach the server. slack_s: by how much a
    send may leave later than planned. lead_s: the time until the process has the answer. lease_s:
    how far ahead send times are booked. seen_s: the latest send time that it was ever given; 0 if
    none. park_s: no send is planned before this time; 0 for none. busy_s: how long it has had
    callers in line without a break.
    """

    owner: str
    limits: str
    rules: Sequence[Rule]
    wants: Sequence[Sequence[int]] = ()
    changes: Sequence[Change] = ()
    guard_s: float = 0.0
    slack_s: float = 0.0
    lead_s: float = 0.0
    lease_s: float = MOST_LEASE_S
    seen_s: float = 0.0
    park_s: float = 0.0
    busy_s: float = 0.0


class Lease(msgspec.Struct, array_like=True):
    """Send times for the first wants, in order.

    free_s: when another request is worthwhile. parked_s: no process sends before this time. others:
    the limits of the other processes, if they differ; nothing was booked then. at_s: when the first
    want that got no time could be sent, as far as is known now.
    """

    now_s: float
    times: list[float]
    free_s: float
    parked_s: float
    others: str = ""
    at_s: float = 0.0


class Book(msgspec.Struct, array_like=True):
    """The bookings in one window: its pace, and the amounts by stamp.

    full_at_s: the time at which the burst is fully available again. stamps: in grains, ascending.
    older, olders: stamps and amounts of the window before, if every phase is checked.
    lows_at_s, lows_s: of a bucket, the slots at which less was missing than at any later one: their
    times, and what was missing, in seconds of refill. Both ascend; the first low is 0.
    """

    grain_s: float
    full_at_s: float
    total: int = 0
    stamps: list[int] = []
    amounts: list[int] = []
    older: list[int] = []
    olders: list[int] = []
    lows_at_s: list[float] = []
    lows_s: list[float] = []

    def add(self, stamp_s: float, amount: int) -> None:
        if amount <= 0:
            return
        stamp = math.ceil(stamp_s / self.grain_s)
        if self.older and stamp <= self.older[-1]:
            _put(self.older, self.olders, stamp, amount)
            return
        _put(self.stamps, self.amounts, stamp, amount)
        self.total += amount

    def remove(self, stamp_s: float, amount: int) -> None:
        """Removes at most `amount` at this stamp; some or all may have left the window already."""
        stamp = math.ceil(stamp_s / self.grain_s)
        if self.older and stamp <= self.older[-1]:
            _take(self.older, self.olders, stamp, amount)
            return
        self.total -= _take(self.stamps, self.amounts, stamp, amount)

    def earliest_s(self, rule: Rule, amount: int) -> float:
        """Returns the first time at which this rule allows `amount`, which is at most the count."""
        if not rule.is_hard:
            # An amount above the burst leaves no room for the guard, so it waits for the guard.
            return self.full_at_s - (rule.burst - amount) * rule.unit_s
        at_s = self.full_at_s - max(0, rule.burst - amount) * rule.unit_s
        excess = self.total + amount - rule.count
        index = 0
        while excess > 0 and index < len(self.stamps):
            excess -= self.amounts[index]
            if excess <= 0:
                at_s = max(at_s, self.stamps[index] * self.grain_s + rule.window_s)
            index += 1
        return at_s

    def book(
        self, rule: Rule, amount: int, at_s: float, stamp_s: float, busy_s: float = 0.0
    ) -> None:
        """Books a slot at `at_s`, which is never earlier than the slot booked before."""
        if not rule.is_hard:
            self._keep_low(at_s)
        from_s = at_s - min(rule.catch_up_s, busy_s)
        self.full_at_s = paid_at_s(self.full_at_s, from_s, amount, rule.unit_s)
        if not rule.is_hard:
            return
        gone = 0
        while gone < len(self.stamps) and (
            self.stamps[gone] * self.grain_s + rule.window_s <= at_s
        ):
            self.total -= self.amounts[gone]
            gone += 1
        if rule.catch_up_s:
            self.older += self.stamps[:gone]
            self.olders += self.amounts[:gone]
            past = bisect_left(self.older, math.floor((at_s - 2 * rule.window_s) / self.grain_s))
            del self.older[:past], self.olders[:past]
        del self.stamps[:gone], self.amounts[:gone]
        self.add(stamp_s, amount)

    def _keep_low(self, at_s: float) -> None:
        """Records what is missing from the bucket before a slot at `at_s`."""
        lows_at_s, lows_s = self.lows_at_s, self.lows_s
        # Of several slots at one time, only the first counts: more is missing before the others.
        if lows_at_s and at_s <= lows_at_s[-1]:
            return
        # Slots before the first recorded one are unknown and get no refund, so its low is 0.
        low_s = max(0.0, self.full_at_s - at_s) if lows_s else 0.0
        while lows_s and lows_s[-1] >= low_s:
            del lows_at_s[-1], lows_s[-1]
        lows_at_s.append(at_s)
        lows_s.append(low_s)
        if len(lows_s) > _MOST_LOWS:
            # The two oldest become one, with the later time and the lower low.
            del lows_at_s[0], lows_s[1]

    def refund(self, unused_s: float, planned_s: float) -> None:
        """Credits a bucket with `unused_s` for a slot at `planned_s`, as far as it had room since.

        unused_s: in seconds of refill; below 0 if the slot used more than was booked. The refund is
        exact: the bucket is as full as if the right amount had been booked, unless another slot has
        used more.
        """
        lows_s, at = self.lows_s, bisect_right(self.lows_at_s, planned_s)
        most_s = lows_s[at] if at < len(lows_s) else math.inf
        unused_s = min(unused_s, most_s if lows_s else 0.0)
        self.full_at_s -= unused_s
        if unused_s <= 0:
            return
        for index in range(at, len(lows_s)):
            lows_s[index] -= unused_s
        while 0 < at < len(lows_s) and lows_s[at - 1] >= lows_s[at]:
            at -= 1
            del self.lows_at_s[at], lows_s[at]

    def read(self, rule: Rule, at_s: float, end_s: float) -> Reading:
        """Returns an upper bound of a sliding-window counter from at_s to end_s, without new sends.

        For each possible start of its windows, the counter falls linearly. The maximum over all
        starts is convex, so it is below the straight line between its values at at_s and end_s.
        """
        stamps, amounts = self.older + self.stamps, self.olders + self.amounts
        window_s, grain_s = rule.window_s, self.grain_s
        # The amount stamped at or after each stamp; last, after all of them: 0.
        left = [*accumulate(reversed(amounts), initial=0)]
        left.reverse()
        first = last = 0.0
        before = behind = 0
        for index, stamp in enumerate(stamps):
            stamp_s = stamp * grain_s
            while stamps[before] * grain_s < stamp_s - window_s:
                before += 1
            while behind < len(stamps) and stamps[behind] * grain_s < stamp_s + window_s:
                behind += 1
            # The counter's window begins just before this stamp, or its previous window does.
            for begun_s, both, current in (
                (stamp_s, left[before], left[index]),
                (stamp_s + window_s, left[index], left[behind]),
            ):
                if at_s - window_s <= begun_s <= end_s:
                    fall = (both - current) / window_s
                    first = max(first, both - (at_s - begun_s) * fall)
                    last = max(last, both - (end_s - begun_s) * fall)
        return Reading(rule.count, at_s, end_s, max(first, last), last)

    def fill(self, rule: Rule, stamp_s: float) -> None:
        """Counts the window as full at `stamp_s`, because what was sent before is unknown."""
        self.full_at_s = stamp_s + rule.count * rule.unit_s
        self.total = 0
        self.stamps, self.amounts, self.older, self.olders = [], [], [], []
        self.lows_at_s, self.lows_s = [], []
        if rule.is_hard:
            self.add(stamp_s, rule.count)

    def shift(self, by_s: float) -> None:
        """Moves all times back by `by_s`, rounded so that no send leaves its window early."""
        self.full_at_s -= by_s
        by = math.floor(by_s / self.grain_s)
        self.stamps = [stamp - by for stamp in self.stamps]
        self.older = [stamp - by for stamp in self.older]
        # From now on it is unknown which slots were planned before: they get no refund.
        self.lows_at_s, self.lows_s = self.lows_at_s[-1:], [0.0] * len(self.lows_s[-1:])


def _put(stamps: list[int], amounts: list[int], stamp: int, amount: int) -> None:
    at = bisect_left(stamps, stamp)
    if at < len(stamps) and stamps[at] == stamp:
        amounts[at] += amount
    else:
        stamps.insert(at, stamp)
        amounts.insert(at, amount)


def _take(stamps: list[int], amounts: list[int], stamp: int, amount: int) -> int:
    """Removes at most `amount` at this stamp; returns the amount that was removed."""
    at = bisect_left(stamps, stamp)
    if at == len(stamps) or stamps[at] != stamp:
        return 0
    amount = min(amount, amounts[at])
    amounts[at] -= amount
    if amounts[at] == 0:
        del stamps[at], amounts[at]
    return amount


class Reading(msgspec.Struct):
    """An upper bound of what a sliding-window counter reads.

    The bound is a straight line, which never rises, from `first` at at_s to `last` at end_s, plus
    the amount `planned` since. count: what the counter may read at most.
    """

    count: int
    at_s: float
    end_s: float
    first: float
    last: float
    planned: int = 0

    def earliest_s(self, amount: int, at_s: float) -> float:
        """Returns when `amount` may be sent: at_s or later.

        A result after end_s is not a send time but the time when another request is worthwhile.
        """
        fall = (self.first - self.last) / (self.end_s - self.at_s)
        excess = self.first + self.planned + amount - self.count
        if excess <= (at_s - self.at_s) * fall:
            return at_s
        later_s = self.at_s + (excess / fall if fall > 0 else math.inf)
        return max(at_s, min(later_s, self.end_s + (self.end_s - self.at_s) / 4))


class Place(msgspec.Struct, array_like=True):
    """A process in line.

    kept_s: until then, no process behind it is served. until_s: when it loses its place, unless it
    asks again first.
    """

    owner: str
    kept_s: float
    until_s: float


class State(msgspec.Struct, array_like=True):
    """The state that a ledger keeps. touched_s: time of the last turn. last_s: latest send time."""

    limits: str
    touched_s: float
    last_s: float = 0.0
    parked_s: float = 0.0
    line: list[Place] = []
    books: dict[str, Book] = {}

    def shift(self, by_s: float) -> None:
        """Moves all times back by `by_s`, after the ledger's clock was set back by that much."""
        self.touched_s -= by_s
        self.last_s -= by_s
        self.parked_s -= by_s
        for place in self.line:
            place.kept_s -= by_s
            place.until_s -= by_s
        for book in self.books.values():
            book.shift(by_s)

    def is_over(self, now_s: float) -> bool:
        """Returns whether nothing in the state counts any more, so that it may be deleted.

        Sends count for two windows, because every phase may be checked.
        """
        if now_s - self.touched_s < STALE_S:
            return False
        longest_s = max((float(key.split("/")[1]) for key in self.books), default=0.0)
        sent_s = max(self.touched_s, self.last_s) + 2 * longest_s
        full_at_s = max((book.full_at_s for book in self.books.values()), default=0.0)
        return now_s > max(sent_s, full_at_s, self.parked_s)

    def restart(self, by_s: float) -> None:
        """Does the same as `shift` after a reboot, when no process that had a slot is left."""
        self.shift(by_s)
        for book in self.books.values():
            book.lows_at_s, book.lows_s = [], []


def transact(state: State | None, request: LeaseRequest, now_s: float) -> tuple[State, Lease]:
    """Takes the turn of a request; returns the new state, and the lease.

    state: may be changed in place and returned; None if there is none yet.
    """
    if state is None:
        state = State(request.limits, now_s)
    if state.limits != request.limits and now_s - state.touched_s < STALE_S:
        return state, Lease(now_s, [], now_s, now_s, state.limits)
    if now_s < state.touched_s:
        state.shift(state.touched_s - now_s)
    if state.limits != request.limits:
        state.books = {rule.key: _continued(state, rule, now_s) for rule in request.rules}
        state.limits = request.limits
    for rule in request.rules:
        if rule.key not in state.books:
            state.books[rule.key] = Book(rule.grain_s, now_s)
    _doubt(state, request, now_s)
    state.touched_s = now_s
    for change in request.changes:
        _correct(state, request, change, now_s)
    state.parked_s = max(state.parked_s, min(request.park_s, now_s + MOST_PARK_S))
    times, free_s, at_s = _plan(state, request, now_s)
    return state, Lease(now_s, times, free_s, state.parked_s, "", at_s)


def _continued(state: State, rule: Rule, now_s: float) -> Book:
    """Returns the rule's book after a change of the limits, based on an old book.

    This is the rule's own old book, or the book of its kind with the shortest window that is not
    shorter than the rule's; if there is none, the one with the longest window.
    """
    books = state.books
    book = books.get(rule.key)
    if book is None:
        kind, found = rule.key.partition("/")[0], list[tuple[bool, float, str]]()
        for key in books:
            of_kind, window, _ = key.split("/")
            if of_kind == kind:
                is_short = float(window) < rule.window_s
                found.append((is_short, -float(window) if is_short else float(window), key))
        if not found:
            return Book(rule.grain_s, now_s)
        old = books[min(found)[2]]
        book = Book(rule.grain_s, min(old.full_at_s, now_s + rule.window_s))
        book.lows_at_s, book.lows_s = old.lows_at_s, old.lows_s
        for stamps, amounts in ((old.older, old.olders), (old.stamps, old.amounts)):
            for stamp, amount in zip(stamps, amounts, strict=True):
                book.add(stamp * old.grain_s, amount)
    if rule.is_hard and book.lows_s:
        # The old book was a bucket's, which keeps no stamps: a whole window counts as sent at its
        # last slot.
        book.add(state.last_s, rule.count)
        book.lows_at_s, book.lows_s = [], []
    return book


def _doubt(state: State, request: LeaseRequest, now_s: float) -> None:
    """Fills the books if the state, because it is outdated or new, lacks slots of this process."""
    longest_s = max((rule.window_s for rule in request.rules), default=0.0)
    # After a reboot, earlier times may be below 0.
    if not request.seen_s or state.last_s >= request.seen_s or now_s >= request.seen_s + longest_s:
        return
    for rule in request.rules:
        state.books[rule.key].fill(rule, now_s + request.slack_s + request.guard_s)
    # Later than any slot that other processes can have been given, so that this happens only once.
    state.last_s = now_s + 2 * request.lease_s + request.lead_s


def _correct(state: State, request: LeaseRequest, change: Change, now_s: float) -> None:
    # Bounded: otherwise a stamp from before the clock was set back would count too long.
    to_s = min(change.to_s, now_s + request.lease_s + request.slack_s + request.guard_s)
    for index, rule in enumerate(request.rules):
        book = state.books[rule.key]
        before, after = change.before[index], change.after[index]
        unused_s = (before - after) * rule.unit_s
        if not rule.is_hard:
            book.refund(unused_s, change.planned_s)
            continue
        book.remove(change.from_s, before)
        book.add(to_s, after)
        if change.was_sent:
            book.full_at_s -= unused_s
        elif rule.burst > 1 or change.planned_s >= state.last_s:
            # Without bursts, an unused slot is refunded only if no later one is planned: otherwise,
            # the pace has moved on.
            book.full_at_s -= refund_s(unused_s, now_s - change.planned_s)


def _plan(state: State, request: LeaseRequest, now_s: float) -> tuple[list[float], float, float]:
    """Returns the times, when to ask again, and when the first remaining want could be sent."""
    owner, lease_s = request.owner, request.lease_s
    line = [place for place in state.line if place.until_s > now_s or place.owner == owner]
    mine = next((at for at, place in enumerate(line) if place.owner == owner), len(line))
    others = [place for place in line if place.owner != owner]
    state.line = others
    if not request.wants:
        return [], now_s, now_s
    from_s = max(now_s + request.lead_s, state.last_s, state.parked_s)
    until_s = now_s + request.lead_s + lease_s
    readings = [
        state.books[rule.key].read(rule, from_s, max(until_s, from_s + rule.grain_s))
        if rule.catch_up_s
        else None
        for rule in request.rules
    ]
    at_s = _earliest_s(state, request, request.wants[0], from_s, readings)
    times: list[float] = []
    # Processes ahead go first, unless they could have been served and have not asked.
    if all(place.kept_s <= now_s for place in line[:mine]):
        for amounts in request.wants:
            at_s = _earliest_s(state, request, amounts, from_s, readings)
            if at_s > until_s:
                break
            for rule, amount, reading in zip(request.rules, amounts, readings, strict=True):
                stamp_s = at_s + request.slack_s + request.guard_s
                state.books[rule.key].book(rule, amount, at_s, stamp_s, request.busy_s)
                if reading is not None:
                    reading.planned += amount
            from_s = state.last_s = at_s
            times.append(at_s)
    if len(times) == len(request.wants):
        return times, now_s + (lease_s / 8 if others else 0.0), at_s
    free_s = at_s - (until_s - now_s)
    if times:
        # This process has been served: from now on the others go first.
        mine, ask_s = len(others), free_s
    elif mine == 0:
        ask_s = min(free_s, now_s + lease_s / 2)
    else:
        ask_s = now_s + lease_s / 4
    # Keep the others out a little longer: otherwise small calls would take what a large call needs
    # before its process has asked again.
    is_large = max(request.wants[len(times)], default=0) > 1
    kept_s = free_s + (lease_s / 2 if is_large else 0.0)
    place = Place(owner, kept_s, max(now_s, ask_s) + request.lead_s + lease_s / 2)
    state.line = [*others[:mine], place, *others[mine:]]
    return times, ask_s, at_s


def _earliest_s(
    state: State,
    request: LeaseRequest,
    amounts: Sequence[int],
    from_s: float,
    readings: Sequence[Reading | None],
) -> float:
    for rule, amount in zip(request.rules, amounts, strict=True):
        from_s = max(from_s, state.books[rule.key].earliest_s(rule, amount))
    for amount, reading in zip(amounts, readings, strict=True):
        if reading is not None:
            from_s = reading.earliest_s(amount, from_s)
    return from_s


def rated(limits: Limits) -> list[tuple[Kind, Rate]]:
    """Returns every rate of `limits` with its kind, in the order of the rules.

    Of several rates with windows of the same length, only the lowest is included: no other can
    bind.
    """
    lowest: dict[tuple[Kind, str], Rate] = {}
    for kind in KINDS:
        for rate in limits.rates(kind):
            # Formatted as in the key of a rule.
            name = kind, f"{rate.window_s:.15g}"
            if name not in lowest or rate.count < lowest[name].count:
                lowest[name] = rate
    return [(kind, rate) for (kind, _), rate in lowest.items()]


def described(limits: Limits) -> str:
    """Returns the rates and the profile in words, which must be equal in all processes."""
    rates = ", ".join(f"{rate} {kind.replace('_', ' ')}" for kind, rate in rated(limits))
    return f"{rates or 'no rate'} (profile {limits.profile})"


def rules_of(limits: Limits, guard_s: float) -> tuple[Rule, ...]:
    """Returns the rules, in the order of `rated`. guard_s: the guard of the pace."""
    rules = []
    for kind, rate in rated(limits):
        shape = shape_of(rate, kind, limits.profile, guard_s)
        grain_s = _grain_s(rate)
        rules.append(
            Rule(
                key=f"{kind}/{rate.window_s:.15g}/{grain_s:.6g}",
                count=rate.count,
                window_s=rate.window_s,
                unit_s=shape.unit_s,
                burst=shape.burst,
                is_hard=shape.is_hard,
                grain_s=grain_s,
                catch_up_s=shape.catch_up_s,
            )
        )
    return tuple(rules)


def lease_s_of(limits: Limits) -> float:
    """Returns how far ahead send times are booked: 1/10 of the shortest window, 5 ms to 1 s."""
    shortest_s = min((rate.window_s for _, rate in rated(limits)), default=MOST_LEASE_S)
    return min(MOST_LEASE_S, max(LEAST_LEASE_S, shortest_s / 10))


def _grain_s(rate: Rate) -> float:
    if rate.count <= _SMALL_COUNT:
        return max(_LEAST_GRAIN_S, rate.window_s / _FINE)
    return (rate.window_s + 0.1) / _COARSE
