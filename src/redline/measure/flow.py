"""Computes how much work falls within a window of time, and its rate with a confidence interval.

A call counts in a window with the share of its duration that lies within the window. So calls that
begin or end outside do not distort the rate, even if there are only a few long calls.
"""

from __future__ import annotations

import math
from array import array
from itertools import accumulate

import msgspec

_SLICES = 2048
_FIRST_WIDTH_S = 1e-4
# The interval of a rate comes from the means of this many parts of the window (batch means: Law,
# Simulation Modeling and Analysis, 5th ed. 2015, 9.5.3). A part must be longer than two calls, so
# that each call lies in only a few parts.
_MOST_BATCHES, _LEAST_BATCHES = 10, 5
_CALLS_A_BATCH = 2.0
# With fewer calls per part, the means of the parts are meaningless.
_LEAST_A_BATCH = 3
# Student's t, two-sided 95 %, for 4 to 9 degrees of freedom.
_T = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Rate(msgspec.Struct, frozen=True):
    """A rate per second. error: half the width of its 95 % interval; None if it is unknown."""

    per_s: float
    error: float | None = None


class Flow:
    """Adds up amounts in slices of time; a call's amount is spread evenly over its duration.

    For any number of calls and any length of time, there are at most 2,048 slices up to the end of
    the latest call, and after 0.1 s at least 1,024: as time passes, slices are joined in pairs.
    Adding a call takes constant time, however long the call is.
    """

    def __init__(self) -> None:
        self.width_s = _FIRST_WIDTH_S
        # Calls' amounts in their first and last slices, which they cover in part; and, for slices
        # that calls cover entirely, the difference in amount from the previous slice.
        self._edges = array("d", bytes(8 * _SLICES))
        self._steps = array("d", bytes(8 * (_SLICES + 1)))

    def add(self, begin_s: float, end_s: float, amount: float) -> None:
        """Adds an amount, spread evenly from begin_s to end_s, in seconds since the start."""
        while end_s >= self.width_s * _SLICES:
            self._join()
        width_s = self.width_s
        first, last = int(begin_s / width_s), int(end_s / width_s)
        if first == last:
            self._edges[first] += amount
            return
        density = amount / (end_s - begin_s)
        self._edges[first] += density * ((first + 1) * width_s - begin_s)
        self._edges[last] += density * (end_s - last * width_s)
        self._steps[first + 1] += density * width_s
        self._steps[last] -= density * width_s

    def slices(self) -> list[float]:
        """Returns the amount in each slice."""
        # Sums of floats leave a residue of about 1e-15 in an empty slice.
        sums = zip(self._edges, accumulate(self._steps), strict=False)
        return [max(0.0, edge + whole) for edge, whole in sums]

    def _join(self) -> None:
        """Joins slices in pairs. No call extends beyond them: a call is added after its end."""
        slices = self.slices()
        joined = [one + other for one, other in zip(slices[::2], slices[1::2], strict=True)]
        self.width_s *= 2
        self._edges = array("d", [*joined, *bytes(_SLICES - len(joined))])
        self._steps = array("d", bytes(8 * (_SLICES + 1)))


def rate(flow: Flow, begin_s: float, end_s: float, call_s: float = 0.0) -> Rate:
    """Returns the rate from begin_s to end_s, rounded to slices.

    call_s: a call's mean duration in seconds; 0 if unknown. The rate's error is None if the window
    is shorter than ten such calls, or has too few calls.
    """
    # Extends the slices to the end of the window, because time after the latest call counts too.
    flow.add(end_s, end_s, 0.0)
    slices, width_s = flow.slices(), flow.width_s
    first = min(round(begin_s / width_s), len(slices) - 1)
    cut = slices[first : max(first + 1, math.ceil(end_s / width_s))]
    seconds = len(cut) * width_s
    per_s = math.fsum(cut) / seconds
    batches = _MOST_BATCHES
    if call_s > 0:
        batches = min(batches, int(seconds / (_CALLS_A_BATCH * call_s)))
    size = len(cut) // batches if batches >= _LEAST_BATCHES else 0
    if not size or math.fsum(cut) < _LEAST_A_BATCH * batches:
        return Rate(per_s)
    sums = [math.fsum(cut[at * size : (at + 1) * size]) for at in range(batches)]
    middle = math.fsum(sums) / batches
    variance = math.fsum((each - middle) ** 2 for each in sums) / (batches - 1)
    return Rate(per_s, _T[batches - 1] * math.sqrt(variance / batches) / (size * width_s))
