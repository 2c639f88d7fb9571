"""Computes the numbers of a rate under a profile: for windows, shared send times and forecasts.

For N requests or tokens per window W, with the guard g, the pace has a burst b and an interval T:

  profile          b            hard rule   T
  any, counter     1            yes         (W + g) / N
  fixed, moving    N            yes         (W + g) / N
  bucket           N (1 - g/W)  no          W / N: the guard is kept free in the capacity

The pace pays for one unit per T. It admits an amount A once at most b - A earlier units are unpaid;
if A exceeds b, once none is unpaid, in a bucket (A - b) T later. A bucket that is too small to keep
the guard free in its capacity is treated as `any`. window.py describes the hard rule.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from redline.limits.rule.cost import Kind
from redline.limits.rule.rate import Rate

# A burst of requests is spread over at most this share of a window. The same share of a token limit
# may be caught up if another limit has held its calls back.
BURST_SHARE = 1 / 20


class Shape(NamedTuple):
    """A rate limit in numbers.

    burst: b. unit_s: T, in seconds. is_hard: whether the hard rule applies.

    catch_up_s: how far the pace of tokens may fall behind because of another limit and still catch
    up. If it is above 0, phases.py bounds what a sliding-window counter may read.
    """

    burst: int
    unit_s: float
    is_hard: bool
    catch_up_s: float

    @property
    def is_even(self) -> bool:
        """Whether sends are evenly spaced, one at a time, under the hard rule."""
        return self.is_hard and self.burst == 1


def shape_of(rate: Rate, kind: Kind, profile: str, guard_s: float) -> Shape:
    """Returns the shape of a limit on `kind`. guard_s: the guard of the pace."""
    count, window_s = rate.count, rate.window_s
    if profile == "bucket":
        burst = math.floor(count * (1 - guard_s / window_s))
        if burst >= 1:
            return Shape(burst, window_s / count, is_hard=False, catch_up_s=0.0)
    burst = count if profile in ("fixed", "moving") else 1
    catch_up_s = window_s * BURST_SHARE if burst == 1 and kind != "requests" else 0.0
    return Shape(burst, (window_s + guard_s) / count, is_hard=True, catch_up_s=catch_up_s)


def paid_at_s(full_at_s: float, from_s: float, amount: int, unit_s: float) -> float:
    """Returns when the pace has paid for `amount` more.

    It begins to pay at full_at_s, when it has paid for all earlier amounts, or at from_s if that is
    later.
    """
    return max(full_at_s, from_s) + amount * unit_s


def refund_s(paced_s: float, held_s: float) -> float:
    """Returns how much of paced_s the pace gets back for an amount that was never sent.

    held_s: for how long the amount was booked; this time has passed and is lost.
    """
    return max(0.0, paced_s - max(0.0, held_s))
