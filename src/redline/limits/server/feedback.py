"""Adjusts an endpoint's limits to the server's answers during a run.

observation                                         reaction
headers state a limit for the first time            it is adopted, if `rate` is "auto"
headers state a different limit than before         it takes effect, but never above the user's own
headers state less remaining than this process      other clients use the key: a window is shared
alone would have left                               with them (_Crowd); what they use of a bucket,
                                                    beyond what `_spare` leaves them, counts as used
                                                    here
429s are clearly above 1 % of the answers           if they are few and no other client is seen, the
                                                    guard, unless the user set it, is doubled once;
                                                    otherwise less is sent (Pressure)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from redline.limits.rule import Booking, LimitLine, Rate, Rules, Window
from redline.limits.server.stated_limit import Stated, WindowGuess, window_s_of

# The most limits of one kind. Gateways list a few policies, but a gateway that states a new window
# each time would fill the memory.
_MOST_LINES = 8
# Usage before a limit was known counts as if it had occurred when the limit became known, if the
# window is at most this many seconds: in a longer window, the usage may expire much sooner.
_MOST_WAIT_S = 60.0
# A server counts the calls that have reached it, and this process the calls that it has sent:
# counts that differ by less than this share of the limit agree.
_NOISE = 0.01
# The belief, 0 to 1, that a limit refills steadily: above the first, it counts as a bucket. An
# observation that fits moves the belief towards 1 by the second share of the distance; any other
# moves it towards 0 by three times that share.
_STEADY = 0.8
_STEADY_RATE = 0.2
# A fixed window looks like a bucket for a moment: observations that fit a bucket count at most this
# many times per window.
_LOOKS = 16
# A reset above this share of W proves nothing: a moving window, too, is full again after nearly W.
_TELLING = 0.9
# Other clients may use half of a bucket before this process reacts, if the bucket takes at least
# this many seconds to fill: their usage shows only in replies, too late for a faster bucket.
_SPARED_FROM_S = 20.0
# The share of rejections is judged over at least this many seconds.
_SHORTEST_LOOK_S = 1.0
# At least this share of a limit is used, so that probing continues.
_LEAST = 0.02
# Constants that make the clients' shares converge (see _Crowd).
_GAIN, _GIVEN = 0.5, 0.08
# Constants by which rejections are judged (see Pressure).
_TOLERATED, _RAISE = 0.01, 0.01
_CUT, _MORE = 4.0, 0.05
_MANY, _FLOOD, _BLOCK = 0.15, 0.3, 0.8
# While at least half of the calls are admitted, at least this share of a limit is used: not all
# 429s are due to the number of this process's calls.
_LEAST_ACCEPTED = 0.1
# Among this many windows, two are rarely above 1 % by chance.
_MEMORY = 8
# With fewer answers, a share of rejections means nothing.
_LEAST_ANSWERS = 20


class _Likeness(NamedTuple):
    """What a limit stated by a server has in common with a line; the surer sign comes first."""

    has_count: bool
    has_name: bool


_UNLIKE = _Likeness(has_count=False, has_name=False)


class Feedback:
    """Adjusts limits to an endpoint's answers.

    The methods that adjust limits return whether the limits have changed.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._is_auto = rules.limits.rate == "auto"
        self._crowd = _Crowd(rules)
        self._pressure = Pressure(rules)
        self._guesses: WeakKeyDictionary[Window, WindowGuess] = WeakKeyDictionary()
        if rules.limits.profile == "bucket":
            # A bucket's window keeps no sends by itself: note sends from the start, before the
            # first headers.
            rules.watch(-math.inf)
        # Only counts an answer that is not a 429; if False, `answered` must be called instead.
        self.accepted = self._pressure.accepted

    def heard(self, stated: Sequence[Stated], bookings: Sequence[Booking], now_s: float) -> bool:
        """Adjusts to the limits stated in the response to the call of `bookings`."""
        self._rules.watch(now_s)
        is_changed = False
        for one, limit, line in self._lines_of(stated):
            if line is None:
                is_changed |= self._is_auto and self._adopt(one, limit, bookings, now_s)
                continue
            line.name = one.name or line.name
            line.is_headed |= one.window_s is None or one.is_assumed
            is_changed |= self._follow(line, one, limit, bookings, now_s)
            if one.remaining is not None:
                is_changed |= self._yield(line, one, bookings, now_s)
        return is_changed

    def answered(self, now_s: float, *, is_limited: bool) -> bool:
        """Counts an answer, and adjusts the used share of the limits.

        is_limited: whether the answer was a 429.
        """
        if not is_limited and self.accepted(now_s):
            return False
        if not self._rules.lines:
            return False
        pressure = self._pressure
        guard_s = self._rules.guard_s
        is_alone = self._crowd.share == 1
        pressure.answered(now_s, is_limited=is_limited, is_alone=is_alone)
        return self._use_share() or self._rules.guard_s != guard_s

    def _use_share(self) -> bool:
        share = min(self._crowd.share, self._pressure.share)
        if share == self._rules.share:
            return False
        self._rules.set_share(share)
        return True

    def _lines_of(self, stated: Sequence[Stated]) -> list[tuple[Stated, int, LimitLine | None]]:
        """Matches the limits in one reply to lines; returns each limit, its count and its line.

        The line is None for a limit without one. Two limits may match the same line only if they
        have its count, or if the user has set that line; then the stricter limit counts.
        """
        searched = self._rules.searched
        lines = [line for line in self._rules.lines if line not in searched]
        kinds = [one.kind for one in stated]
        known: list[tuple[Stated, int, LimitLine | None]] = []
        unknown: list[tuple[Stated, int]] = []
        alike: list[tuple[_Likeness, int, Stated, LimitLine]] = []
        for one in stated:
            if one.limit is None:
                continue
            of_kind = [line for line in lines if line.kind == one.kind]
            if len(of_kind) == 1 and kinds.count(one.kind) == 1:
                # The usual case, in a fraction of the time.
                line = of_kind[0]
                known.append((one, one.limit, None if _likeness(line, one) is None else line))
                continue
            unknown.append((one, one.limit))
            found = [
                (likeness, one.limit, one, line)
                for line in of_kind
                if (likeness := _likeness(line, one)) is not None
            ]
            best = max((each[0] for each in found), default=_UNLIKE)
            is_only = sum(each[0] == best for each in found) == 1
            # Without a window or a known count, the limit may belong to any of several lines.
            if is_only or best.has_count or one.window_s is not None:
                alike += found
        # The stricter of two limits goes to the stricter line.
        alike.sort(
            key=lambda each: (
                not each[0].has_count,
                not each[0].has_name,
                each[1],
                each[3].stated.count,
            )
        )
        kept: dict[LimitLine, tuple[Stated, int]] = {}
        for _, limit, one, line in alike:
            if line not in kept and (one, limit) in unknown:
                unknown.remove((one, limit))
                kept[line] = (one, limit)
        for likeness, limit, one, line in alike:
            is_of_line = likeness.has_count or line.user is not None
            if is_of_line and (one, limit) in unknown:
                unknown.remove((one, limit))
                kept[line] = min(kept[line], (one, limit), key=_strictness)
        known += ((one, limit, line) for line, (one, limit) in kept.items())
        return [*known, *((one, limit, None) for one, limit in unknown)]

    def _follow(
        self, line: LimitLine, one: Stated, count: int, bookings: Sequence[Booking], now_s: float
    ) -> bool:
        """Sets the line to the server's count, but never above the user's own."""
        window_s = line.stated.window_s
        if line.user is not None:
            count = min(count, line.user.count)
        elif line.is_headed and one.remaining is not None:
            window_s = self._measured_s(line, one, bookings, now_s)
        if count == line.stated.count and window_s == line.stated.window_s:
            return False
        self._rules.restate(line, Rate(count, window_s))
        return True

    def _measured_s(
        self, line: LimitLine, one: Stated, bookings: Sequence[Booking], now_s: float
    ) -> float:
        """Returns the window's length, as far as it has been measured."""
        window, window_s = line.window, line.stated.window_s
        guess = self._guesses.setdefault(window, WindowGuess(now_s, line.kind))
        booking = next((each for each in bookings if each.window is window), None)
        if booking is None or booking.record is None:
            return window_s
        sent_s = booking.record.sent_s
        if not guess.is_due(sent_s, booking.amount, window.used(now_s)):
            return window_s
        sends = [send for send in window.sends(now_s) if send[0] <= sent_s]
        return guess.seen(window_s, one, sends, line.others, now_s)

    def _adopt(self, one: Stated, limit: int, bookings: Sequence[Booking], now_s: float) -> bool:
        rules, searched = self._rules, self._rules.searched
        of_kind = [line for line in rules.lines if line.kind == one.kind]
        rate = Rate(limit, window_s_of(one))
        is_known = any(line.stated == rate and line not in searched for line in of_kind)
        if is_known or len(of_kind) >= _MOST_LINES:
            return False
        rules.set_rates(one.kind, [*(line.stated for line in of_kind), rate], now_s)
        line = rules.lines[-1]
        line.name, line.is_adopted = one.name, True
        line.is_headed = one.window_s is None or one.is_assumed
        if one.remaining is not None and rate.window_s <= _MOST_WAIT_S:
            used = max(0, limit - one.remaining)
            # The server may not have counted calls that were sent after this one.
            sent = (each.record.sent_s for each in bookings if each.record is not None)
            sent_s = max(sent, default=now_s)
            ours = sum(amount for at_s, amount in line.window.sends(now_s) if at_s <= sent_s)
            line.window.take(max(0, used - ours), now_s, is_paid=True)
            line.note(used, now_s)
        return True

    def _yield(
        self, line: LimitLine, one: Stated, bookings: Sequence[Booking], now_s: float
    ) -> bool:
        """Leaves other clients the amounts that they use, as far as `remaining` shows them."""
        assert one.limit is not None
        assert one.remaining is not None
        guess = self._guesses.get(line.window)
        if guess is not None and guess.is_trying:
            # What the bucket lacks during a trial was used by this process.
            return False
        used = max(0, one.limit - one.remaining)
        self._learn_refill(line, one, used, now_s)
        booking = next((b for b in bookings if b.window is line.window), None)
        if booking is None or booking.alone is None:
            return False
        # The server's count is from some moment between the write and now.
        then, now = booking.alone, line.alone(now_s)
        if line.steady <= _STEADY and self._rules.limits.profile != "bucket":
            ours = max(then.in_window, now.in_window)
            self._crowd.saw(line, one.limit, used, ours, booking.booked_s)
            return self._use_share()
        self._crowd.forget()
        known = max(then.in_bucket + line.others - then.others, now.in_bucket)
        others = math.floor(used - known - self._spare(line, one.limit))
        is_seen = others > _noise(self._rules, line, one.limit)
        if is_seen:
            line.take(others, now_s)
        return self._use_share() or is_seen

    def _spare(self, line: LimitLine, limit: int) -> float:
        """Returns how much may be missing from a bucket before other clients' usage is booked here.

        An even pace takes no more than is refilled, so half of the bucket suffices. With this
        margin, an amount that was taken once, or that is refilled in steps, costs nothing.
        """
        free = _left_free(self._rules, line, limit)
        is_even = self._rules.limits.profile in ("any", "counter")
        if is_even and line.stated.window_s >= _SPARED_FROM_S:
            return (free + limit) / 2
        return free

    def _learn_refill(self, line: LimitLine, one: Stated, used: int, now_s: float) -> None:
        """Learns whether the limit is a bucket, which is full again after `used` x W / N.

        A fixed window states such a reset, too, for a moment in its middle, and so does a moving
        window that is nearly used up.
        """
        if one.reset_s is None or used <= 0:
            return
        window_s = line.stated.window_s
        unit_s = window_s / line.stated.count
        # Some servers state resets in whole seconds; all state whole numbers of remaining requests.
        slack_s = min(1.0, window_s / 20) + 1.5 * unit_s
        if used * unit_s + 2 * slack_s > _TELLING * window_s:
            return
        if abs(one.reset_s - used * unit_s) > slack_s:
            line.steady -= 3 * _STEADY_RATE * line.steady
        elif now_s - line.looked_s >= window_s / _LOOKS:
            line.looked_s = now_s
            line.steady += _STEADY_RATE * (1 - line.steady)


class _Look(msgspec.Struct):
    """Collects a server's counts during one window, and this process's part of them.

    since_s: the beginning of the window. The count of a fixed window restarts and is highest at its
    end; the count of any other kind hardly changes. ours_before: this process's part during the
    window before.
    """

    since_s: float
    ours_before: float = 0.0
    _seen: int = 0
    _total: int = 0
    _total_ours: int = 0
    _least: float = math.inf
    _most: tuple[int, int] = (0, 0)

    def add(self, used: int, ours: int) -> None:
        self._seen += 1
        self._total += used
        self._total_ours += ours
        self._least = min(self._least, used)
        self._most = max(self._most, (used, ours))

    def counted(self) -> tuple[float, float]:
        """Returns the amount that all clients used, and this process's part."""
        used, ours = self._most
        if self._least < used / 2:
            return used, ours
        return self._total / self._seen, self._total_ours / self._seen


class _Crowd:
    """Finds the share of a limit that leaves other clients theirs, if a server counts in windows.

    Every one and a half windows, this process's amount x becomes

      x + (N - used) / 2 - 0.08 x * x / used

    If every client takes half of what is free, and those that use most give most away, all converge
    to equal amounts (Chiu and Jain 1989), at least 96 % of the limit in all. The last term is left
    out if no other client is seen.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._looks: WeakKeyDictionary[Window, _Look] = WeakKeyDictionary()
        self.share = 1.0

    def saw(self, line: LimitLine, limit: int, used: int, ours: int, booked_s: float) -> None:
        """Records what a server counted around a call. ours: this process's part of `used`."""
        look = self._looks.setdefault(line.window, _Look(booked_s))
        if booked_s < look.since_s:
            return
        look.add(used, ours)
        if booked_s >= look.since_s + line.stated.window_s:
            total, own = look.counted()
            self._looks[line.window] = _Look(booked_s, own)
            # After a pause of this process, a sliding-window counter may count more than was sent,
            # because it takes the sends of its previous window for even. If less is used because of
            # 429s or other clients, it was no pause.
            has_paused = look.ours_before - own > _noise(self._rules, line, limit)
            if self._rules.share < 1 or not has_paused:
                self._conclude(line, limit, total, own, booked_s)

    def forget(self) -> None:
        """Stops sharing: the server does not count in windows."""
        self.share = 1.0

    def _conclude(
        self, line: LimitLine, limit: int, used: float, ours: float, now_s: float
    ) -> None:
        change = (limit - used) * _GAIN
        others = used - ours - _left_free(self._rules, line, limit)
        if others > _noise(self._rules, line, limit):
            change -= _GIVEN * ours * ours / used
        elif self.share == 1:
            return
        usable = line.stated.count * self._rules.limits.headroom
        share = self._lead(line, now_s) * (max(1.0, ours) + change) / usable
        # A share of nearly 1 counts as 1.
        self.share = 1.0 if share > 1 - 2 * _NOISE else max(_LEAST, share)
        # Sends before the change count for one more window, of which half is skipped.
        for each in self._rules.lines:
            self._looks[each.window] = _Look(now_s + each.stated.window_s / 2)

    def _lead(self, line: LimitLine, now_s: float) -> float:
        """Returns the used share of the fullest line over the used share of `line`; 1 or more."""
        used = max(1, line.window.used(now_s)) / line.stated.count
        lines = self._rules.lines
        return max(1.0, *(each.window.used(now_s) / each.stated.count / used for each in lines))


class Pressure:
    """Finds the share of the limits at which a server rejects hardly any call.

    It judges window by window, or at once when 30 % are rejected while the share is still 1:

    429s among the answers            reaction
    hardly any                        1 % more is sent; the step grows by 1 % with each further
                                      quiet window
    clearly above 1 %, once           none yet: this may be chance
    again within eight windows, or    the pressure is certain until eight windows have been quiet:
    15 % and more                     any share above 1 % counts
    certain, below 15 %, no other     the guard, which may be too short for the network, is doubled,
    client seen                       once; a guard that the user set stays as it is
    certain                           less is sent: by 4 x the share above 1 %, but at most by the
                                      rejected share + 5 %
    80 % and more, if the pressure    a block: the first quiet window after it restores the share
    was not certain before            before it

    Clients that add a fixed amount and cut a share of their rate converge to equal rates (Chiu and
    Jain 1989).
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._since_s = math.inf  # earlier answers do not count; inf before the first answer
        self._due_s = -math.inf  # before this time, only 429s are examined
        self._is_resting = False  # until _since_s, after a change
        self._answered = 0
        self._limited = 0
        self._clear = _MEMORY  # windows since the last one that was clearly above 1 %
        self._quiet = 0  # windows since the last one that caused a reaction
        self._is_certain = False
        self._is_guard_doubled = False
        self._share_before = 0.0  # before the block that began the present pressure; 0 without one
        self.share = 1.0

    def accepted(self, now_s: float) -> bool:
        """Counts an answer other than a 429; False if `answered` must be called instead."""
        if now_s >= self._due_s:
            return False
        self._answered += 1
        return True

    def answered(self, now_s: float, *, is_limited: bool, is_alone: bool) -> None:
        """Counts an answer; judges the window if it is over. is_alone: no other client is seen."""
        if self._since_s == math.inf:
            self._since_s = now_s
            self._due_s = now_s + _SHORTEST_LOOK_S
        if now_s < self._since_s:
            return
        if self._is_resting:
            # Calls that were answered during the rest had been sent before the change.
            self._is_resting = False
            self._answered = 0
        if self._share_before and not is_limited and self._limited == self._answered:
            # The block is over: its rejections say nothing about the time after it.
            self._since_s, self._answered, self._limited = now_s, 0, 0
        self._answered += 1
        self._limited += is_limited
        if self._limited and self._answered < _LEAST_ANSWERS:
            return
        longest_s = max(line.stated.window_s for line in self._rules.lines)
        window_s = max(_SHORTEST_LOOK_S, min(60.0, longest_s))
        is_over = now_s >= self._since_s + window_s
        # Limits may change during a window, so its length is checked at least once a second.
        self._due_s = min(self._since_s + window_s, now_s + _SHORTEST_LOOK_S)
        # Counting the sends takes time, so it is done only at every eighth 429.
        is_due = is_limited and self._limited % 8 == 0 and self.share == 1
        if not is_over and not (is_due and self._is_flood(self._answered)):
            return
        answered = self._answered
        if self._limited:
            # A 429 arrives sooner than the answers to calls that were sent at the same time.
            answered = max(answered, self._sent(self._since_s, now_s))
        if is_over or self._is_flood(answered):
            # After a cut, the server still counts calls that were sent before it.
            self._is_resting = self._conclude(self._limited, answered, is_alone=is_alone)
            self._since_s = now_s + (window_s / 2 if self._is_resting else 0.0)
            self._due_s = self._since_s + (0.0 if self._is_resting else _SHORTEST_LOOK_S)
            self._answered = self._limited = 0

    def _is_flood(self, answered: int) -> bool:
        return self._limited >= answered * _FLOOD

    def _conclude(self, limited: int, answered: int, *, is_alone: bool) -> bool:
        """Judges one window; returns whether the guard was doubled or less is sent from now on."""
        rejected, expected = limited / answered, answered * _TOLERATED
        # Three standard deviations of a Poisson distribution.
        is_clear = limited > expected + 3 * math.sqrt(expected)
        is_certain = is_clear and (rejected >= _MANY or self._clear < _MEMORY)
        was_certain, self._is_certain = self._is_certain, self._is_certain or is_certain
        self._clear = 0 if is_clear else self._clear + 1
        if not self._is_certain or limited <= expected:
            self._quiet += 1
            self._is_certain = self._is_certain and self._quiet < _MEMORY
            self.share = min(1.0, max(self.share + _RAISE * self._quiet, self._share_before))
            self._share_before = 0.0
            return False
        self._quiet = 0
        if rejected < _BLOCK:
            self._share_before = 0.0
        elif not was_certain:
            self._share_before = self.share
        if rejected < _MANY and is_alone and not self._is_guard_doubled:
            self._is_guard_doubled = True
            self._rules.jitter.was_short()
            return True
        cut = min(_CUT * (rejected - _TOLERATED), rejected + _MORE)
        least = _LEAST if rejected > 0.5 else _LEAST_ACCEPTED
        self.share = max(least, self.share * (1 - cut) + _RAISE)
        return True

    def _sent(self, since_s: float, now_s: float) -> int:
        """Returns the number of calls since `since_s`, as far as a request limit counts them."""
        counts = (
            sum(amount for sent_s, amount in line.window.sends(now_s) if sent_s >= since_s)
            for line in self._rules.lines
            if line.kind == "requests"
        )
        return max(counts, default=0)


def _likeness(line: LimitLine, one: Stated) -> _Likeness | None:
    """Returns how `one`, of the same kind, resembles the limit of `line`; None if it does not."""
    has_count = line.stated.count == one.limit
    if one.window_s is None or (one.is_assumed and line.is_adopted):
        is_alike = has_count or line.is_headed
    else:
        is_alike = math.isclose(line.stated.window_s, one.window_s, rel_tol=0.01)
    has_name = one.name != "" and one.name == line.name
    return _Likeness(has_count, has_name) if is_alike else None


def _strictness(stated: tuple[Stated, int]) -> tuple[int, float]:
    one, limit = stated
    return limit, math.inf if one.remaining is None else one.remaining


def _left_free(rules: Rules, line: LimitLine, limit: int) -> int:
    """Returns the amount that headroom, or a user's lower limit, leaves to other clients."""
    return limit - math.floor(line.stated.count * rules.limits.headroom)


def _noise(rules: Rules, line: LimitLine, limit: int) -> float:
    """Returns how far a server's count may differ from this process's without other clients.

    Calls can overtake each other on their way, within the guard.
    """
    overtaken = limit * min(0.2, rules.guard_s / line.stated.window_s)
    return max(1.0, limit * _NOISE) + overtaken
