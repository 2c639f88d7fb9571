"""Bounds what a server's sliding-window counter reads of our sends, wherever its windows begin.

Such a counter weights the previous window by the share of it that is still in view. Let W be the
window's length, N the limit's count, and A(s, t) the amount that was sent after s and up to t. If
the counter's current window began at p = t - uW, it reads

    (1 - u) A(p - W, p) + A(p, t)  =  u A(p, t) + (1 - u) A(p - W, t)  <=  N.

A send may reach the counter up to g late, so both intervals begin g earlier here. Let D(t) =
r t - A(0, t) be the amount not used so far, at the even rate r = N / W. Then the condition is

    D(t)  >=  u D(t - g - uW) + (1 - u) D(t - g - uW - W) + r g      for every u from 0 to 1.

The largest right-hand side, without r g, is called the floor. For u = 0 and u = 1, the condition is
that of a moving window. Sends at N / (W + g) raise D by r g in each W + g, so they are always
allowed. Sends that were missed a moment ago (small u) may be made up for, with hardly any effect on
the counter. A pace alone could not allow this, except by always keeping room for what it might have
to make up for.

The past is kept in steps of W / 512, each with its amount and the highest D in it. The floor is
recomputed every W / 128, and whenever that much of the limit has been given back. It is never below
the exact floor, and hardly above it.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from itertools import accumulate, islice
from operator import add

# A window has 128 groups of 4 steps each. The floor is computed once per group.
_GROUPS, _STEPS = 128, 4
# For each group back to a window ago, the smallest and the largest u that falls into it.
_SHARES = [
    (max(0.0, (number - 1) / _GROUPS), min(1.0, (number + 1) / _GROUPS))
    for number in range(_GROUPS + 1)
]
# A wait up to the end of a group takes at least this long, so that rounding cannot end it early.
_LEAST_S = 1e-6


class _Group:
    """A few neighbouring steps.

    amounts: the amount sent in each step. sent: the amount sent in all of them. highs: for each
    step, the highest D in it minus D at its beginning. top: the highest D in the group minus D at
    the group's beginning; None if it must be recomputed.
    """

    __slots__ = ("amounts", "highs", "sent", "top")

    def __init__(self) -> None:
        self.amounts = [0.0] * _STEPS
        self.highs = [0.0] * _STEPS
        self.sent = 0.0
        self.top: float | None = None

    def found_top(self, gain: float) -> float:
        """Computes `top`, as if nothing is sent in later steps. gain: D's growth per step."""
        top = level = 0.0
        for amount, high in zip(self.amounts, self.highs, strict=True):
            if level + high > top:
                top = level + high
            level += gain - amount
        self.top = max(top, level)
        return self.top


class Phases:
    """Decides how much of one limit may be sent, wherever a sliding-window counter's windows begin.

    count, window_s: the limit's. guard_s: by how much a send may be late. begun_s: since when each
    amount is added as it is booked. needed_until_s: until when this object is needed, as set by
    `keep_until`.
    """

    def __init__(
        self, count: int, window_s: float, guard_s: float, begun_s: float = -math.inf
    ) -> None:
        self.window_s, self.begun_s = window_s, begun_s
        self.needed_until_s = -math.inf
        self._group_s = window_s / _GROUPS
        self._step_s = self._group_s / _STEPS
        # The number of the current group; at first, below all others. Sends from before a reboot
        # have negative times, because the clock has begun at 0 since.
        self._at = -sys.maxsize
        self._unused = 0.0  # D at the beginning of the current group
        self._sent = 0.0  # the amount in all groups
        self._floor = -math.inf
        self._floor_at: int | None = None  # the floor's group; None if it must be recomputed
        self._back = 0.0  # the amount given back since the floor was computed
        self._groups: deque[_Group] = deque()
        self._count, self._per_s = 0, 0.0
        self.reshape(count, guard_s)

    def keep_until(self, until_s: float) -> None:
        """Records that this object is needed at least until `until_s`."""
        self.needed_until_s = max(self.needed_until_s, until_s)

    def reshape(self, count: int, guard_s: float) -> None:
        """Changes the count or the guard from now on; past sends still count."""
        if count != self._count:
            per_s = count / self.window_s
            more = max(0.0, per_s - self._per_s) * self._step_s
            self._count, self._per_s = count, per_s
            self._gain = gain = per_s * self._step_s
            for group in self._groups:
                group.highs = [min(gain, high + more) for high in group.highs]
                group.top = None
        # Two windows, the guard for sends on their way to the server, and a group at either end.
        size = 2 * _GROUPS + math.ceil(guard_s / self._group_s) + 2
        missing = size - len(self._groups)
        if missing > 0:
            self._groups = deque([*(_Group() for _ in range(missing)), *self._groups], size)
        self._guard_s = guard_s
        self._floor_at = None

    def wait_s(self, amount: float, now_s: float) -> float:
        """Returns the seconds until `amount` may be sent, or must be checked again; 0 for now.

        amount: at most the limit's count.
        """
        unused = self._advance(now_s)
        if self._sent + amount <= self._count:
            return 0.0
        now_s = max(now_s, self._at * self._group_s)
        at = math.floor((now_s - self._guard_s) / self._group_s)
        if at != self._floor_at:
            self._floor = self._found_floor(at)
            self._floor_at, self._back = at, 0.0
        wait_s = (self._floor + amount - unused) / self._per_s + self._guard_s
        if wait_s <= 0.0:
            return 0.0
        return min(wait_s, max(_LEAST_S, (at + 1) * self._group_s + self._guard_s - now_s))

    def add(self, amount: int, now_s: float) -> int:
        """Records that `amount` is sent now; returns its step, for `amend`."""
        unused = self._advance(now_s)
        group = self._groups[-1]
        since_s = now_s - self._at * self._group_s
        step = min(_STEPS - 1, max(0, int(since_s / self._step_s)))
        begun = self._unused + step * self._gain - (group.sent - group.amounts[step])
        if unused - begun > group.highs[step]:
            group.highs[step] = unused - begun
        group.amounts[step] += amount
        group.sent += amount
        group.top = None
        self._sent += amount
        return self._at * _STEPS + step

    def step_at(self, at_s: float) -> int:
        """Returns the step at `at_s`, for `amend`."""
        at = math.floor(at_s / self._group_s)
        step = int((at_s - at * self._group_s) / self._step_s)
        return at * _STEPS + min(_STEPS - 1, max(0, step))

    def amend(self, step: int, by: int, amount: int) -> None:
        """Changes an amount that was sent in `step` by `by`, to `amount`."""
        at, step = divmod(step, _STEPS)
        index = len(self._groups) - 1 - (self._at - at)
        if index < 0:
            return
        group = self._groups[index]
        group.amounts[step] += by
        group.sent += by
        group.top = None
        self._sent += by
        if at != self._at:
            self._unused -= by
        if by < 0:
            # From then on, D is higher by -by; in this step, it is at most the gain minus `amount`.
            high = group.highs[step]
            group.highs[step] = max(high, min(high - by, self._gain - amount))
            self._floor -= by
            self._back -= by
            if self._back > self._gain * _STEPS:
                self._floor_at = None

    def assume(self) -> None:
        """Counts the unknown part of the past as if the limit had been used fully and evenly."""
        if not self._sent:
            return
        for group in self._groups:
            if group.sent:
                break
            group.amounts = [self._gain] * _STEPS
            group.highs = [self._gain] * _STEPS
            group.sent, group.top = self._gain * _STEPS, None
            self._sent += group.sent
        self._floor_at = None

    def _advance(self, now_s: float) -> float:
        """Moves the groups on to `now_s`; returns D at that time."""
        at = math.floor(now_s / self._group_s)
        if at > self._at:
            groups, gone = self._groups, at - self._at
            if gone < len(groups):
                self._unused += self._gain * _STEPS * gone - groups[-1].sent
                self._sent -= sum(group.sent for group in islice(groups, gone))
            else:
                # All groups are past. Start D at 0 again: as it grew, it would lose precision.
                gone, self._unused, self._sent, self._floor_at = len(groups), 0.0, 0.0, None
            self._at = at
            groups.extend(_Group() for _ in range(gone))
        since_s = now_s - self._at * self._group_s
        return self._unused + since_s * self._per_s - self._groups[-1].sent

    def _found_floor(self, at: int) -> float:
        """Computes the floor while the guard reaches back into group `at`."""
        gain = self._gain
        groups = list(reversed(self._groups))
        tops = [group.found_top(gain) if group.top is None else group.top for group in groups]
        gone = [group.sent - gain * _STEPS for group in groups[1:]]
        highs: list[float] = list(map(add, tops, accumulate(gone, initial=self._unused)))
        recent = self._at - at
        pairs = zip(highs[recent:], highs[recent + _GROUPS :], _SHARES, strict=False)
        return max(
            old + (new - old) * (most if new > old else least) for new, old, (least, most) in pairs
        )
