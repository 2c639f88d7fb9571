"""Combines all rate limits of one endpoint: a call is booked in all of them or in none.

Nothing here waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from redline.errors import ConfigError, OverLimit
from redline.limits.rule.cost import CERTAIN, KINDS, AmountOf, Cost, Kind
from redline.limits.rule.guard import MARGIN_S, Jitter
from redline.limits.rule.kept_sends import RecentSends
from redline.limits.rule.rate import Rate
from redline.limits.rule.settings import AUTO, Limits, as_rates, usable
from redline.limits.rule.window import Alone, Booking, Window, prove

# A smaller change of the guard does not justify a division in every window.
_LEAST_CHANGE_S = 1e-4
# A limit whose wait is at least this share of the longest wait is nearly as strict.
NEARLY = 0.75


class LimitLine(msgspec.Struct, eq=False):
    """One limit: its rate, and the window that enforces it.

    user: the rate that the user configured; None for a limit from the server or the search. stated:
    the rate in force, before headroom. most: the largest count since the limit was set; headers may
    lower the count and raise it again. name: its name in the server's headers; "" if they do not
    name it. others: the amount of it that other clients are known to have used so far.
    """

    stated: Rate
    user: Rate | None
    window: Window
    most: int
    name: str = ""
    others: int = 0
    is_adopted: bool = False  # whether the limit comes from the server's headers
    is_headed: bool = False  # whether the server's headers mention this limit
    steady: float = 0.5  # the belief, 0 to 1, that it refills steadily, like a bucket
    looked_s: float = -math.inf  # when a header last showed how it refills
    _full_at_s: float = -math.inf

    @property
    def kind(self) -> Kind:
        """The kind of amounts that the limit counts."""
        return self.window.kind

    def watch(self, now_s: float) -> None:
        """Starts to track the amount that the server should be counting."""
        self._full_at_s = -math.inf
        self.note(self.window.counted(now_s), now_s)

    def note(self, amount: int, now_s: float) -> None:
        """Counts `amount`, which is about to be sent to the server."""
        missing_s = amount * self.stated.window_s / self.stated.count
        self._full_at_s = max(self._full_at_s, now_s) + missing_s

    def alone(self, now_s: float) -> Alone:
        """Returns what the server would count now for this process and the known others alone."""
        missing_s = max(0.0, self._full_at_s - now_s)
        in_bucket = missing_s * self.stated.count / self.stated.window_s
        return Alone(self.window.used(now_s), in_bucket, self.others)

    def take(self, amount: int, now_s: float) -> None:
        """Counts `amount` as used by other clients."""
        self.others += amount
        self.window.take(amount, now_s)
        self.note(amount, now_s)


class Rules:
    """The windows of `limits`; every call takes from all of them or from none.

    is_watched: whether the server reports what remains; each booking then records what the server
    should count. is_searched: whether a limit is being searched for by means of refusals. The guard
    of a searched limit has no margin, because the search measures the network's jitter as well.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.jitter = Jitter(self.follow_guard, limits.guard_s)
        self.is_watched = False
        self.is_searched = limits.rate == AUTO
        self.counts_tokens = False  # whether there is a token limit, so that estimates matter
        # The most tokens that a call may take with a bound instead of an estimate; 0 for none.
        self.easy_tokens = 0
        self._profile = limits.profile
        # The share of every limit that this process may use now, after headroom.
        self.share = 1.0
        self._recent: RecentSends | None = None
        # The guard: the seconds that are now added to each window.
        self.guard_s = self.jitter.guard_s
        # The jitter, if replies are to be passed to it; None if the guard is fixed or not needed.
        self.learner: Jitter | None = None
        # The `book_now` of each window.
        self._takers: list[Callable[[float, Cost], Booking | None]] = []
        # For each token limit: what it counts for a call, and the most that one call may need.
        self._tokens: list[tuple[LimitLine, AmountOf, int]] = []
        self.lines: list[LimitLine] = []
        for kind in KINDS:
            for rate in as_rates(getattr(limits, kind), kind):
                self._add(kind, rate, rate)
        self._follow_lines()

    def watch(self, now_s: float) -> None:
        """Makes each booking record the count to expect from a server that reports its count."""
        if not self.is_watched:
            self.is_watched = True
            for line in self.lines:
                line.watch(now_s)
            self._follow_lines()

    def most(self, kind: Kind) -> float:
        """Returns the most that a single call could ever be granted; inf if nothing limits it."""
        counts = (self._largest(line).count for line in self.lines if line.kind == kind)
        return min(counts, default=math.inf)

    def check(self, cost: Cost) -> None:
        """Raises OverLimit if `cost` could never be granted, ConfigError if it is below 0 or NaN.

        Only the amounts that a token limit counts are checked.
        """
        # One request fits into every request limit.
        for line, amount_of, most in self._tokens:
            if (amount := amount_of(cost)) > most:
                raise OverLimit(
                    f"the call needs at least {amount:,} {line.kind.replace('_', ' ')}, "
                    f"more than the limit of {self._largest(line)} ever allows",
                    hint="shorten the prompt, lower max_tokens, or raise the token limit",
                )
            # A NaN, once booked, would hold all other calls back forever.
            if not amount >= 0:
                raise ConfigError(f"the tokens of a call must be 0 or more, not {amount}")

    def fits(self, cost: Cost) -> bool:
        """Whether the rates in force, which headers may have lowered, could ever grant `cost`."""
        return all(
            amount_of(cost) <= usable(line.stated, self.limits.headroom).count
            for line, amount_of, _ in self._tokens
        )

    def take_now(self, cost: Cost, now_s: float) -> list[Booking] | None:
        """Books `cost` in all windows and returns the bookings, if it may be sent now.

        None if it must wait. Also None for a cost that is a bound, unless the limits have ample
        room: an estimate might still be granted.
        """
        taken: list[Booking] = []
        for book_now in self._takers:
            booking = book_now(now_s, cost)
            if booking is None:
                break
            taken.append(booking)
        else:
            if not self.is_watched:
                return taken
        for one in taken:
            one.window.undo(one)
        if cost.is_bound:
            return None
        return None if self.wait_s(cost, now_s) > 0 else self.book(cost, now_s)

    def wait_s(self, cost: Cost, now_s: float) -> float:
        """Returns the seconds until `cost` may be sent: 0 for now.

        inf if it has to wait until a booking is sent or released.
        """
        wait_s = 0.0
        for line in self.lines:
            window = line.window
            if window.is_plain:
                line_s = window.wait_s(1, now_s)
            else:
                spread = cost.spread_of(window.kind)
                line_s = window.wait_s(window.amount_of(cost), now_s, spread)
            if line_s > wait_s:
                wait_s = line_s
        return wait_s

    def room_for_s(self, calls: int, amounts: Mapping[Kind, float], now_s: float) -> float:
        """Returns the seconds until the last of `calls` could be sent.

        Of more calls than a window holds, only a full window counts, so the result is too low.
        amounts: tokens per call.
        """
        wait_s = 0.0
        for line in self.lines:
            window = line.window
            amount = math.ceil(calls * amounts.get(line.kind, 1))
            line_s = window.wait_s(min(amount, window.rate.count), now_s)
            # inf means that bookings come first: they are about to be sent, and count from then.
            wait_s = max(wait_s, line_s if line_s < math.inf else window.rate.window_s)
        return wait_s

    def holding(self, cost: Cost, now_s: float) -> list[LimitLine]:
        """Returns the limits for which `cost` has to wait, the longest wait first.

        Includes only limits whose wait is at least NEARLY times the longest wait. Empty if `cost`
        need not wait.
        """
        waits = []
        for line in self.lines:
            amount, spread = cost.amount(line.kind), cost.spread_of(line.kind)
            waits.append((line.window.wait_s(amount, now_s, spread), line))
        longest_s = max((wait_s for wait_s, _ in waits), default=0.0)
        near = [one for one in waits if one[0] > 0 and one[0] >= NEARLY * longest_s]
        return [line for _, line in sorted(near, key=lambda one: -one[0])]

    def spacing_s(self, cost: Cost) -> float:
        """Returns the seconds between successive calls of this cost, in the long run."""
        each_s = [
            cost.amount(line.kind) / usable(line.stated, self.limits.headroom).per_s
            for line in self.lines
        ]
        return max(each_s, default=0.0)

    def book(
        self, cost: Cost, now_s: float, late_s: float = 0.0, busy_s: float = 0.0
    ) -> list[Booking]:
        """Takes `cost` from every window; call only when `wait_s` is 0.

        late_s: how late the timer for this call fired. busy_s: for how long the queue has not been
        empty.
        """
        bookings = []
        for line in self.lines:
            window = line.window
            if window.is_plain:
                amount, spread = 1, CERTAIN
            else:
                amount, spread = window.amount_of(cost), cost.spread_of(window.kind)
            booking = window.book(amount, now_s, late_s, spread, busy_s)
            if self.is_watched:
                line.note(amount, now_s)
                booking.alone = line.alone(now_s)
            bookings.append(booking)
        return bookings

    def settle(self, bookings: Iterable[Booking], used: Cost) -> None:
        """Replaces a call's estimate with its actual use."""
        for booking in bookings:
            window = booking.window
            if not window.is_plain:
                window.settle(booking, window.amount_of(used))

    def replied(
        self,
        bookings: Iterable[Booking],
        took_s: float,
        sent_s: float,
        used: Cost | None = None,
    ) -> None:
        """Records that a call's first byte came `took_s` after its write at `sent_s`.

        took_s: without the server's processing time, if known. used: the call's actual use, if
        known.
        """
        if self.learner is not None:
            self.learner.replied(took_s, sent_s)
            prove(bookings, took_s, used)
        elif used is not None:
            self.settle(bookings, used)

    def follow_guard(self) -> None:
        """Updates the windows to the measured guard and the lateness that replies prove."""
        guard_s = self.jitter.guard_s
        if abs(guard_s - self.guard_s) >= _LEAST_CHANGE_S:
            self.guard_s = guard_s
            self._reshape()
        for line in self.lines:
            line.window.believe(self.jitter.base_s)

    @property
    def searched(self) -> list[LimitLine]:
        """The request limits that the search has set; empty without a search."""
        if not self.is_searched:
            return []
        found = [line for line in self.lines if line.user is None and not line.is_adopted]
        return [line for line in found if line.kind == "requests"]

    def end_search(self) -> None:
        """Ends the search for the limit."""
        self.is_searched = False
        self._reshape()

    def drop(self, lines: Sequence[LimitLine]) -> None:
        """Removes limits; call only if their sends also count in the remaining limits."""
        self.lines = [line for line in self.lines if line not in lines]
        if self._recent is not None:
            for line in lines:
                self._recent.drop(line.window)
        self._reshape()

    def set_share(self, share: float) -> None:
        """Sets the share of every limit that this process may use, above 0 and at most 1."""
        self.share = share
        self._reshape()

    def restate(self, line: LimitLine, stated: Rate) -> None:
        """Changes a limit to the rate `stated`, before headroom; past sends still count."""
        line.stated = stated
        line.most = max(line.most, stated.count)
        self._reshape()

    def set_rates(self, kind: Kind, rates: Sequence[Rate], now_s: float) -> None:
        """Replaces the limits of one kind; past sends count in the new limits.

        rates: before headroom. A limit whose window has the same length keeps its window.
        """
        old = [line for line in self.lines if line.kind == kind]
        longest = max(old, key=lambda line: line.stated.window_s, default=None)
        sends, full_at_s, longest_s = list[tuple[float, int]](), None, 0.0
        if longest is not None:
            longest_s = longest.stated.window_s
            sends, full_at_s = longest.window.sends(now_s), longest.window.full_at_s
        self.lines = [line for line in self.lines if line.kind != kind]
        for rate in rates:
            kept = next((line for line in old if line.stated.window_s == rate.window_s), None)
            if kept is None:
                window = self._add(kind, rate, None).window
                recent, passed = self._recent, sends
                # A longer window also counts sends of an earlier process that are too old for the
                # others.
                if (
                    recent is not None
                    and rate.window_s > longest_s
                    and recent.recall(kind, window, is_first=longest is None)
                ):
                    passed = [send for send in sends if send[0] >= recent.since_s]
                window.recall(passed, now_s)
                if full_at_s is not None:
                    window.resume_pace(min(full_at_s, now_s + rate.window_s))
                if recent is not None:
                    recent.attach(kind, window)
            else:
                old.remove(kept)
                if kept.stated != rate:
                    kept.stated, kept.most = rate, rate.count
                self.lines.append(kept)
        if self._recent is not None:
            for line in old:
                self._recent.drop(line.window)
        self._reshape()

    def keep_in(self, recent: RecentSends) -> None:
        """Adds the sends kept by `recent` to the windows, and keeps later sends there."""
        self._recent = recent
        for line in self.lines:
            recent.keep(line.kind, line.window)
            if self.is_watched:
                line.watch(recent.since_s)

    def _add(self, kind: Kind, rate: Rate, user: Rate | None) -> LimitLine:
        window = Window(
            usable(rate, self._used_share()),
            kind=kind,
            profile=self._profile,
            guard_s=self.guard_s,
            unproven_s=self.jitter.unproven_s,
            catch_up_s=self.jitter.catch_up_s,
        )
        window.believe(self.jitter.base_s)
        line = LimitLine(rate, user, window, rate.count)
        self.lines.append(line)
        return line

    def _follow_lines(self) -> None:
        lines = self.lines
        self.learner = self.jitter if self.limits.guard_s is None and lines else None
        self._tokens = [
            (line, line.window.amount_of, self._largest(line).count)
            for line in lines
            if line.kind != "requests"
        ]
        self.counts_tokens = bool(self._tokens)
        self._takers = [line.window.book_now for line in lines]
        # If the server reports its count, each call records the count to expect, which is not
        # corrected later: a bound would overstate it.
        can_bound = self.counts_tokens and not self.is_watched
        self.easy_tokens = (
            min(line.window.easy_amount for line, _, _ in self._tokens) if can_bound else 0
        )

    def _largest(self, line: LimitLine) -> Rate:
        # A share or a count in headers may lower a limit, but only for a while, so no call is
        # refused for good because of it. The count may even be another model's.
        return usable(Rate(line.most, line.stated.window_s), self.limits.headroom)

    def _reshape(self) -> None:
        share, jitter, searched = self._used_share(), self.jitter, self.searched
        margin_s = MARGIN_S if self.limits.guard_s is None else 0.0
        for line in self.lines:
            rate = usable(line.stated, share)
            guard_s = self.guard_s - (margin_s if line in searched else 0.0)
            line.window.reshape(rate, self._profile, guard_s, jitter.unproven_s, jitter.catch_up_s)
        self._follow_lines()

    def _used_share(self) -> float:
        return self.limits.headroom * self.share
