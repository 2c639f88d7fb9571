"""Decides when one rate limit allows the next send, from the sends so far.

Two rules apply (docs/architecture.md, Limits):
  hard  the amount sent in any window + guard, by actual send times, never exceeds the count N;
  soft  sends are paced at T with a burst of b (GCRA, ITU-T I.371). With b = N, the hard rule
        implies the soft one; with a bucket, there is no hard rule. shape.py has b and T.

In the hard rule, a send counts for W + u, where u (`unproven_s`) is the largest lateness of a send
without a reply. Once its reply has proved how late the send can have reached the server (guard.py),
the send counts for W plus that lateness. A record stores how long its replies took; the lateness is
computed only when the record is to leave the window, from what is known then.

The requests of a burst are not sent at once but W / (20 N) apart, at most 5 ms: a server that gets
six hundred requests at once makes the last of them wait for seconds, and counts them that much
later. Because each send waits for the Nth send before it, this costs time in the first window only.

Token amounts are estimates until they are settled. A margin is kept free for the amount by which
the actual use may exceed them (see Doubt). Because amounts differ, a pace loses time whenever
another limit holds it back. So with a burst of 1, tokens may catch up, by at most a twentieth of a
window; a separate rule keeps a sliding-window counter from rejecting them (phases.py).

The states of a booking:
  booked -> sent -> expired     the usual way; it may be proved and settled at any time after `sent`
  booked -> released            it was never written, and everything is given back
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from redline.limits.rule.bucket import LATE_S, MOST_ENTRIES, BucketLevel, Entry
from redline.limits.rule.cost import AMOUNT_OF, CERTAIN, Cost, Kind, Spread
from redline.limits.rule.guard import MARGIN_S
from redline.limits.rule.phases import Phases
from redline.limits.rule.rate import Rate
from redline.limits.rule.shape import BURST_SHARE, Shape, paid_at_s, refund_s, shape_of
from redline.structs import mutable

# Sums of floats are inexact in the last bits; a wait shorter than this counts as 0.
_EPSILON_S = 1e-9
# Sends within this share of a window have one record, with the time of the last send. This bounds
# the memory for a limit such as ten million per day, and costs 0.02 % of the rate.
GRAIN = 1 / 4096
# Records of requests that have left the window are dropped once per this many new records. The ring
# of kept_sends.py has room for them.
SWEEP_EVERY = 64
# The calls of a burst are sent at most this far apart.
_BURST_MOST_S = 0.005
# Margins are this many standard deviations, which a sum of many amounts exceeds about once in
# 30,000 times.
_DEVIATIONS = 4.0
# A sliding-window counter cannot reject anything while at most 1/4 of a limit is used.
_CALM_SHARE = 4
# Once more than that has been used, Phases is needed for this many windows.
_CROWDED_WINDOWS = 4


class Doubt:
    """Tracks by how much the sum of several amounts may exceed the sum of their estimates."""

    __slots__ = ("most", "third", "variance")

    def __init__(self) -> None:
        self.variance = 0.0
        self.third = 0.0
        self.most = 0.0

    def add(self, spread: Spread, sign: int = 1) -> None:
        """Adds an amount's uncertainty; removes it if sign is -1."""
        self.variance += sign * spread.variance
        self.third += sign * spread.third
        self.most += sign * spread.most

    def subtract(self, other: Doubt | Spread) -> None:
        """Removes the amounts in `other`, which were added before."""
        self.variance -= other.variance
        self.third -= other.third
        self.most -= other.most

    def margin(self, spread: Spread) -> float:
        """Returns the amount to keep free for these amounts and for one more.

        This is z standard deviations of the sum, corrected for its skewness (the first term of
        Cornish and Fisher 1938), because a single long-tailed amount may exceed its mean by far
        more than z standard deviations.
        """
        variance = self.variance + spread.variance
        # A deviation below a thousandth of a token is a rounding error of sums.
        if variance <= 1e-6:
            return 0.0
        third = self.third + spread.third
        z = _DEVIATIONS
        margin = z * math.sqrt(variance) + (z * z - 1) / 6 * third / variance
        return max(0.0, min(margin, self.most + spread.most))


@mutable
class Record(msgspec.Struct, eq=False, gc=False):
    """The sends since the previous record, up to `sent_s`.

    unproven: the number of its sends without a reply yet; while there are any, the record counts
    with the largest possible lateness. took_s: how long the slowest reply took. doubt: the
    uncertainty of amounts that are not settled yet: None without any, a Spread for one amount, a
    Doubt for several.
    """

    number: int
    sent_s: float
    amount: int
    unproven: int = 1
    took_s: float = 0.0
    doubt: Doubt | Spread | None = None


class Alone(NamedTuple):
    """What a server would count for one limit if this process and the known others used it alone.

    in_window: the amount sent within the last window. in_bucket: the amount missing from a bucket
    that refills steadily. others: the amount that other clients were known to have used by then,
    included in both.
    """

    in_window: int
    in_bucket: float
    others: int


@mutable
class Booking(msgspec.Struct, eq=False, gc=False):
    """An amount taken from one window, and its state."""

    window: Window
    amount: int
    booked_s: float
    spread: Spread  # CERTAIN once it is settled
    unit_s: float = 0.0  # by how much each unit delays later sends
    before_s: float = 0.0  # from book_now: when the pace had paid for all earlier bookings
    is_released: bool = False
    is_proved: bool = False
    record: Record | None = None  # once sent; without the hard rule, a record in no window
    entry: Entry | None = None  # without the hard rule, its entry in the bucket
    step: tuple[Phases, int] | None = None  # its step in Phases, if that was in use
    alone: Alone | None = None  # what the server should count, if the limits are watched


def prove(bookings: Iterable[Booking], took_s: float, used: Cost | None = None) -> None:
    """Records that a call's reply came `took_s` after the send, which proves its lateness.

    used: the call's actual use, if known; settles the bookings.
    """
    for booking in bookings:
        record = booking.record
        if record is not None and not booking.is_proved:
            booking.is_proved = True
            record.unproven -= 1
            if took_s > record.took_s:
                record.took_s = took_s
        if used is not None:
            window = booking.window
            if not window.is_plain:
                window.settle(booking, window.amount_of(used))


class Keeper(Protocol):
    """Keeps a window's sends so that they survive the process."""

    def keep(self, record: Record, change: int) -> None: ...  # its amount has changed by `change`
    def keep_pace(self, full_at_s: float) -> None: ...


class Window:
    """The window of one `Rate` under one profile. Synchronous; the caller passes the time.

    kind: what it counts. is_plain: whether it counts requests, one per call. amount_of: returns
    what it counts for the cost of a call. The other parameters: see `reshape`.
    """

    def __init__(
        self,
        rate: Rate,
        *,
        kind: Kind = "requests",
        profile: str = "any",
        guard_s: float = 0.05,
        unproven_s: float | None = None,
        catch_up_s: float = MARGIN_S,
    ) -> None:
        self.kind: Kind = kind
        self.is_plain = kind == "requests"
        self.amount_of = AMOUNT_OF[kind]
        self._full_at_s = -math.inf  # when the even pace has paid for all that was booked
        self._next_s = -math.inf  # when the next request of a burst may be sent
        self._level = BucketLevel()
        self._records: deque[Record] = deque()
        self._number = self._sweep_at = 0
        self._open_until_s = -math.inf  # sends up to then go into the last record
        self._held = 0  # the amount that is booked, or in a record
        self._doubt = Doubt()
        # A bucket's sends that are not settled yet, oldest first: (when they were sent, spread).
        self._unsettled: dict[Entry, tuple[float, Spread]] = {}
        # For token limits without bursts, while much is used and for some windows after that.
        self._phases: Phases | None = None
        self._calm: float = math.inf  # the most that may be held without Phases
        self._easy = -1  # the most that may be held for book_now to decide
        self._gone_s = -math.inf  # the send time of the latest record that was dropped
        self._keeper: Keeper | None = None
        self._base_s = -math.inf
        self._is_hard = profile != "bucket"
        self.reshape(rate, profile, guard_s, unproven_s, catch_up_s)

    def reshape(
        self,
        rate: Rate,
        profile: str,
        guard_s: float,
        unproven_s: float | None = None,
        catch_up_s: float = MARGIN_S,
    ) -> None:
        """Changes the rules; past sends still count.

        guard_s: the guard of the pace. unproven_s: the guard of the hard rule for sends without a
        reply; None for guard_s. catch_up_s: by how much a send may be early because a timer made
        the previous send late: the part of the guard that is not the network's jitter.
        """
        self.rate = rate
        self.guard_s = guard_s
        self.unproven_s = guard_s if unproven_s is None else unproven_s
        shape = shape_of(rate, self.kind, profile, guard_s)
        was_hard, self._is_hard = self._is_hard, shape.is_hard
        if was_hard != self._is_hard:
            self._change_books(rate)
        self._grain_s = self._span_s * GRAIN
        self._unit_s = shape.unit_s
        self._burst = shape.burst
        self._is_even = shape.is_even
        if self._is_even:
            self._full_at_s, self._next_s = max(self._full_at_s, self._next_s), -math.inf
        self._reshape_phases(shape)
        # With a burst of 1, every late timer would cost time. Timers count in whole milliseconds,
        # so even without a guard, a part of the lateness is made up for.
        self._catch_up_s = max(min(guard_s, catch_up_s), MARGIN_S) if self._is_even else 0.0
        self._catch_up_s = max(self._catch_up_s, shape.catch_up_s)
        apart_s = min(_BURST_MOST_S, rate.window_s * BURST_SHARE / rate.count)
        self._apart_s = apart_s if self.is_plain and not self._is_even else 0.0

    @property
    def _span_s(self) -> float:
        """For how long a send counts, unless its reply proves less."""
        return self.rate.window_s + (self.guard_s if self._is_hard else 0.0)

    @property
    def full_at_s(self) -> float | None:
        """When the pace has paid for all bookings; None before the first booking."""
        if not self._is_hard:
            return self._level.full_at_s(self._unit_s)
        return None if self._full_at_s == -math.inf else self._full_at_s

    @property
    def easy_amount(self) -> int:
        """The most tokens that delay later sends by at most LATE_S; 0 if tokens are not paced."""
        return int(LATE_S / self._unit_s) if self._calm < math.inf else 0

    def wait_s(self, amount: int, now_s: float, spread: Spread = CERTAIN) -> float:
        """Returns the seconds until `amount` may be sent: 0 for now.

        inf if it has to wait until a booking is sent or released. amount: 0 or more; the caller
        refuses an amount above the configured limit.
        """
        # If a burst may be the whole limit, the hard rule implies the soft one.
        due_s = self._full_at_s if self._is_even else self._next_s
        # A call is exactly one request, so requests need no margin.
        is_free = self.is_plain and self._is_hard and self._held + amount <= self.rate.count
        if is_free and due_s - now_s <= _EPSILON_S:
            return 0.0
        margin = 0.0
        if self._unsettled:
            self._end_doubt(now_s - self._span_s)
        if spread is not CERTAIN or self._doubt.variance:
            margin = self._doubt.margin(spread)
        if not self._is_hard:
            due_s = max(due_s, self._refilled_s(min(amount + margin, self.rate.count)))
        wait_s = due_s - now_s
        if wait_s <= _EPSILON_S:
            wait_s = 0.0
        if not self._is_hard:
            return wait_s
        if self._is_crowded(amount + margin, now_s) and self._phases is not None:
            needed = min(amount + margin, self.rate.count)
            phase_s = self._phases.wait_s(needed, now_s)
            if phase_s > wait_s and phase_s > _EPSILON_S:
                wait_s = phase_s
        free = self.rate.count - amount - math.ceil(margin)
        if self._held <= free:
            return wait_s
        self._expire(now_s)
        excess = self._held - free
        if excess <= 0 or self._held == 0:
            # An amount that has the window to itself needs no margin: a longer wait would not help.
            return wait_s
        return max(wait_s, self._freed_s(excess) - now_s)

    def book_now(self, now_s: float, cost: Cost) -> Booking | None:
        """Books the cost if the simplest rules allow it now; returns None if `wait_s` must decide.

        Like `wait_s` and `book`, without their special cases.
        """
        before_s, unit_s = self._full_at_s, self._unit_s
        if before_s - now_s > _EPSILON_S:
            return None
        if self.is_plain:
            amount, spread = 1, CERTAIN
            paced_s = unit_s
            held = self._held + 1
            if held > self._easy:
                return None
        else:
            amount = self.amount_of(cost)
            spread = CERTAIN if self.kind == "input_tokens" else cost.spread
            held, doubt = self._held + amount, self._doubt
            margin = doubt.margin(spread) if spread is not CERTAIN or doubt.variance else 0
            if held + margin > self._easy:
                return None
            if spread is not CERTAIN:
                doubt.add(spread)
            paced_s = amount * unit_s
        self._held = held
        self._full_at_s = (before_s if before_s > now_s else now_s) + paced_s
        return Booking(self, amount, now_s, spread, unit_s, before_s)

    def undo(self, booking: Booking) -> None:
        """Undoes a booking of `book_now`, which must be the window's last booking."""
        self._held -= booking.amount
        self._full_at_s = booking.before_s
        if booking.spread is not CERTAIN:
            self._doubt.subtract(booking.spread)

    def book(
        self,
        amount: int,
        now_s: float,
        late_s: float = 0.0,
        spread: Spread = CERTAIN,
        busy_s: float = 0.0,
    ) -> Booking:
        """Takes `amount`; call only when `wait_s` is 0.

        late_s: how late the caller is because its timer fired late. busy_s: for how long the queue
        has not been empty. Idle time is not caught up: otherwise, the next two sends would be too
        close.
        """
        booking = Booking(self, amount, now_s, spread)
        is_crowded = not self.is_plain and self._is_crowded(amount, now_s)
        self._held += amount
        if self._is_even:
            # The same as paid_at_s, without the call.
            from_s = now_s
            if not self.is_plain:
                late_s = busy_s
            if is_crowded and self._phases is not None:
                booking.step = self._phases, self._phases.add(amount, now_s)
            if late_s:
                from_s -= min(late_s, self._catch_up_s)
            if self._full_at_s > from_s:
                from_s = self._full_at_s
            booking.unit_s = self._unit_s
            self._full_at_s = from_s + amount * self._unit_s
        else:
            if self._apart_s:
                self._next_s = max(self._next_s, now_s - min(late_s, _BURST_MOST_S)) + self._apart_s
            if not self._is_hard:
                booking.entry = self._level.take(now_s, amount)
        if spread is not CERTAIN:
            self._doubt.add(spread)
        return booking

    def sent(self, booking: Booking, now_s: float) -> None:
        """Records that the booking's request was written at `now_s`; it counts from then."""
        if booking.record is not None or booking.is_released:
            return
        amount, records = booking.amount, self._records
        if not self._is_hard:
            # The number -1 means in no window: records in a window have numbers from 0.
            booking.record = Record(-1, now_s, amount)
            self._left_bucket(booking, now_s)
            return
        if now_s <= self._open_until_s and records:
            record = records[-1]
            record.amount += amount
            record.unproven += 1
            if now_s > record.sent_s:
                record.sent_s = now_s
        else:
            number = self._number
            if number >= self._sweep_at:
                self._expire(now_s)
                # Records of tokens are dropped at once, so that their doubt keeps nothing free.
                self._sweep_at = number + (SWEEP_EVERY if self.is_plain or self._easy >= 0 else 1)
            record = Record(number, now_s, amount)
            self._number = number + 1
            self._open_until_s = now_s + self._grain_s
            records.append(record)
        booking.record = record
        if self._keeper is not None:
            self._keeper.keep(record, amount)
        if self._phases is not None:
            self._move_in_phases(self._phases, booking, now_s)
        spread = booking.spread
        if spread is not CERTAIN:
            doubt = record.doubt
            if doubt is None:
                record.doubt = spread
                return
            if not isinstance(doubt, Doubt):
                record.doubt = both = Doubt()
                both.add(doubt)
                doubt = both
            doubt.add(spread)

    def release(self, booking: Booking, now_s: float) -> None:
        """Gives back a booking that was never written; does nothing if it was sent.

        The pace gets back only the time that has not passed since the booking.
        """
        if booking.record is not None or booking.is_released:
            return
        booking.is_released = True
        self._held -= booking.amount
        self._doubt.subtract(booking.spread)
        if booking.entry is not None:
            self._level.amend(booking.entry, 0)
        else:
            paced_s = booking.amount * booking.unit_s
            self._full_at_s -= refund_s(paced_s, now_s - booking.booked_s)
            self._amend_phases(booking, -booking.amount, 0)

    def believe(self, base_s: float) -> None:
        """Sets base_s: a reply that took t proves that its call was at most t - base_s late.

        -inf while replies prove nothing.
        """
        self._base_s = base_s

    def settle(self, booking: Booking, used: int) -> None:
        """Replaces the estimate of a sent booking with `used`, 0 or more; ignores unsent ones."""
        record, records = booking.record, self._records
        if record is None:
            return
        amount, spread = booking.amount, booking.spread
        if used > amount and used > self.rate.count:
            # At most one window can be owed: otherwise a server that counts wrongly would stop the
            # run.
            used = max(self.rate.count, amount)
        if spread is not CERTAIN:
            booking.spread = CERTAIN
        if booking.entry is not None:
            booking.amount = used
            self._level.amend(booking.entry, used)
            if self._unsettled.pop(booking.entry, None) is not None:
                self._doubt.subtract(spread)
            self._keep_pace()
            return
        is_counted = records and record.number >= records[0].number
        if is_counted and spread is not CERTAIN:
            self._doubt.subtract(spread)
            if record.doubt is spread:
                record.doubt = None
            elif isinstance(record.doubt, Doubt):
                record.doubt.subtract(spread)
        difference = used - amount
        if not difference:
            return
        booking.amount = used
        record.amount += difference
        self._full_at_s += difference * booking.unit_s
        if self._phases is not None:
            self._amend_phases(booking, difference, used)
        if is_counted:
            self._held += difference
            if self._held > self._calm:
                self._crowd(records[-1].sent_s)
            if self._keeper is not None:
                self._keeper.keep(record, abs(difference))

    def take(self, amount: int, now_s: float, *, is_paid: bool = False) -> None:
        """Counts `amount` as used by another client at `now_s`; nothing if it is 0 or less.

        is_paid: it was used earlier, and the pace has already waited for it: it fills the window
        from `now_s` on, but does not delay the next send. In a bucket, is_paid has no effect.
        """
        if amount > 0:
            full_at_s = self._full_at_s
            booking = self.book(amount, now_s)
            self.sent(booking, now_s)
            self.settle(booking, amount)
            if is_paid:
                self._full_at_s = full_at_s

    def recall(self, sends: Iterable[tuple[float, int]], now_s: float) -> None:
        """Adds sends from before this window existed: (time, amount), oldest first.

        Those of the last two windows are added: a sliding-window counter counts that many. They are
        taken to be all sends since the first of them, or since a window ago if that is earlier;
        earlier sends are unknown.
        """
        sends = [send for send in sends if send[0] > now_s - 2 * self._span_s]
        if sends and self._calm < math.inf:
            since_s = min(now_s - self.rate.window_s, sends[0][0])
            self._gone_s = max(self._gone_s, since_s)
            self._crowd(now_s)
        for sent_s, amount in sends:
            if not self._is_hard:
                self._level.amend(self._level.take(sent_s, amount), amount)
                # The limit may have been larger then, but one window after a send the bucket is
                # full again in any case.
                self._level.cap(sent_s + self._span_s, self._unit_s)
                continue
            self._held += amount
            booking = Booking(self, amount, sent_s, CERTAIN)
            if self._phases is not None:
                booking.step = self._phases, self._phases.add(amount, sent_s)
            self.sent(booking, sent_s)
            if self._is_even:
                full_at_s = paid_at_s(self._full_at_s, sent_s, amount, self._unit_s)
                self._full_at_s = min(full_at_s, sent_s + self._span_s)

    def resume_pace(self, full_at_s: float) -> None:
        """Continues the pace from `full_at_s`, unless the pace is already later."""
        if not self._is_hard:
            self._level.resume(full_at_s)
        elif self._is_even:
            self._full_at_s = max(self._full_at_s, full_at_s)
        else:
            # The pace is that of a bucket, which has no records: send nothing until it is full.
            self._next_s = max(self._next_s, full_at_s)

    def attach(self, keeper: Keeper) -> None:
        """Passes the records that count now, and all later sends, to `keeper`."""
        self._keeper = keeper
        for record in self._records:
            keeper.keep(record, record.amount)
        self._keep_pace()

    def used(self, now_s: float) -> int:
        """Returns the amount that still counts, whether it is booked or sent."""
        self._expire(now_s)
        return self._held

    def counted(self, now_s: float) -> int:
        """Returns the amount that the server may count: of a bucket, what is missing from it."""
        full_at_s = self.full_at_s
        if self._is_hard or full_at_s is None:
            return self.used(now_s)
        return max(0, math.ceil((full_at_s - now_s) / self._unit_s))

    def sends(self, now_s: float) -> list[tuple[float, int]]:
        """Returns (time, amount) of the sends that still count, oldest first, for `recall`.

        Bookings that are not sent yet count as sent at now_s.
        """
        self._expire(now_s)
        found = [(record.sent_s, record.amount) for record in self._records]
        booked = self._booked()
        return [*found, (now_s, booked)] if booked else found

    def _change_books(self, rate: Rate) -> None:
        """Moves the amounts that count from the hard rule to the bucket, or back."""
        unit_s = rate.window_s / rate.count
        if self._is_hard:
            # Amounts taken from the bucket are in no record, so send nothing until it would be
            # full.
            full_at_s = self._level.full_at_s(unit_s)
            if full_at_s is not None:
                self._next_s = max(self._next_s, full_at_s)
            self._level = BucketLevel()
            self._end_doubt(math.inf)
            return
        for record in self._records:
            entry = self._level.take(record.sent_s, record.amount)
            self._level.amend(entry, record.amount)
        self._held = self._booked()
        self._records.clear()
        self._doubt = Doubt()

    def _refilled_s(self, needed: float) -> float:
        """Returns when the bucket holds the amount `needed`, which is at most its count.

        An amount above the burst leaves no room for the guard, so the wait is that much longer.
        """
        full_at_s = self._level.full_at_s(self._unit_s)
        if full_at_s is None:
            return -math.inf
        return full_at_s - (self._burst - needed) * self._unit_s

    def _reshape_phases(self, shape: Shape) -> None:
        """Starts, updates or ends the use of Phases after a change of the rules."""
        rate, phases = self.rate, self._phases
        if not shape.catch_up_s:
            self._phases, self._calm = None, math.inf
            self._easy = rate.count if self._is_even else -1
            return
        calm = rate.count // _CALM_SHARE if self.guard_s <= rate.window_s else 0
        has_changed = calm != self._calm
        self._calm = self._easy = calm
        if phases is not None and phases.window_s == rate.window_s:
            phases.reshape(rate.count, self.guard_s)
            self._easy = -1
        elif has_changed or phases is not None:
            # The past was bounded by a different share, or is in Phases of a different window.
            self._phases = None
            if self._records:
                self._crowd(self._records[-1].sent_s)

    def _is_crowded(self, more: float, now_s: float) -> bool:
        """Whether usage is, or recently was, so high that `more` must be checked with Phases."""
        if self._held + more > self._calm:
            self._expire(now_s)
            if self._held + more > self._calm:
                self._crowd(now_s)
        elif self._phases is not None and now_s > self._phases.needed_until_s:
            self._phases, self._easy = None, math.floor(self._calm)
        return self._phases is not None

    def _crowd(self, at_s: float) -> None:
        """Starts to use Phases, or keeps them for longer, because much of the limit is used.

        at_s: from when bookings that are not sent yet count. Sends that have left the window count
        as a lump at the time of the last of them, and the time before that as used evenly
        (docs/limiter-internals.md).
        """
        span_s, phases = _CROWDED_WINDOWS * self.rate.window_s, self._phases
        if phases is not None:
            phases.keep_until(at_s + span_s)
            return
        phases = Phases(self.rate.count, self.rate.window_s, self.guard_s, at_s)
        phases.keep_until(at_s + span_s)
        self._phases, self._easy = phases, -1
        self._open_until_s = -math.inf  # existing records keep their times, as in Phases
        self._sweep_at = self._number
        if self._gone_s > at_s - span_s:
            phases.add(math.ceil(self._calm), self._gone_s)
            phases.assume()
        for record in self._records:
            phases.add(record.amount, record.sent_s)
        if booked := self._booked():
            phases.add(booked, at_s)

    def _amend_phases(self, booking: Booking, by: int, amount: int) -> None:
        phases = self._phases
        if phases is None or not by:
            return
        if booking.step is not None and booking.step[0] is phases:
            step = booking.step[1]
        else:
            # It was booked before these Phases were in use.
            record = booking.record
            at_s = phases.begun_s if record is None else record.sent_s
            step = phases.step_at(min(at_s, phases.begun_s))
        phases.amend(step, by, amount)

    def _move_in_phases(self, phases: Phases, booking: Booking, sent_s: float) -> None:
        """Moves a booking in Phases to when it was sent, if that is more than LATE_S later."""
        step = booking.step
        if step is None or step[0] is not phases or sent_s - booking.booked_s > LATE_S:
            self._amend_phases(booking, -booking.amount, 0)
            booking.step = phases, phases.add(booking.amount, sent_s)

    def _left_bucket(self, booking: Booking, now_s: float) -> None:
        self._held -= booking.amount
        if booking.entry is not None:
            self._level.left(booking.entry, now_s)
            if self.is_plain:
                self._level.amend(booking.entry, booking.amount)
            if booking.spread is not CERTAIN:
                self._unsettled[booking.entry] = now_s, booking.spread
                if len(self._unsettled) > MOST_ENTRIES:
                    # The oldest one keeps its estimate, as in the bucket's own log.
                    _, spread = self._unsettled.pop(next(iter(self._unsettled)))
                    self._doubt.subtract(spread)
        self._keep_pace()

    def _end_doubt(self, until_s: float) -> None:
        """Ends the doubt about a bucket's sends up to `until_s`: failed calls are never settled.

        The doubt about records ends when they leave the window. After a window, the bucket is full.
        """
        unsettled = self._unsettled
        while unsettled:
            entry = next(iter(unsettled))
            sent_s, spread = unsettled[entry]
            if sent_s > until_s:
                break
            del unsettled[entry]
            self._doubt.subtract(spread)

    def _keep_pace(self) -> None:
        """Passes a bucket's pace to the keeper: without records, a later process needs it."""
        if self._keeper is not None and not self._is_hard:
            full_at_s = self.full_at_s
            if full_at_s is not None:
                self._keeper.keep_pace(full_at_s)

    def _booked(self) -> int:
        """Returns the amount that is booked and not sent yet."""
        return self._held - sum(record.amount for record in self._records)

    def _freed_s(self, excess: int) -> float:
        """Returns when `excess` will have left the window; inf if that depends on bookings."""
        window_s, at_s = self.rate.window_s, -math.inf
        for record in self._records:
            at_s = max(at_s, record.sent_s + window_s + self._late_s(record))
            excess -= record.amount
            if excess <= 0:
                return at_s
        # All records will have left the window, though that does not free all of the margin.
        return math.inf if self._booked() else at_s

    def _late_s(self, record: Record) -> float:
        """Returns the most by which a record's last send can have been late, in seconds."""
        if record.unproven:
            return self.unproven_s
        return min(record.took_s - self._base_s, self.unproven_s)

    def _expire(self, now_s: float) -> None:
        horizon_s = now_s - self.rate.window_s + _EPSILON_S
        records, popleft = self._records, self._records.popleft
        surely_s = horizon_s - self.unproven_s
        gone, gone_s = 0, self._gone_s
        while records:
            record = popleft()
            sent_s = record.sent_s
            if sent_s > surely_s and sent_s + self._late_s(record) > horizon_s:
                records.appendleft(record)
                break
            gone += record.amount
            gone_s = sent_s
            if record.doubt is not None:
                self._doubt.subtract(record.doubt)
        self._held -= gone
        self._gone_s = gone_s
