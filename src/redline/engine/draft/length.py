"""Chooses how many tokens to draft at a batch size, or none if speculation does not pay.

With h[j] the share of rows that keep drafted token j once they kept those before it, a step that
drafts k tokens yields 1 + h[1] + h[1] h[2] + ... tokens a row; that is (1 - a^(k+1)) / (1 - a)
if all are `a` (Leviathan et al. 2023). It takes longer than a step without drafts, by a factor that
grows with the batch, since the machine has less to spare. The k with the best quotient is chosen.
Shares are learned for all batches together, durations for each power of two of the batch size.

Both begin at a hopeful value and fade back to it while nothing is measured. So a length that was
given up is tried again, once in some hundred steps, and only if it would pay at that value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import median

# Of useful drafts 0.7 are kept, and each costs a seventh of a step. The hope for a share weighs as
# much as four rows: two rejections in a row end it if a draft costs half a step.
_HOPED_SHARE = 0.7
_SHARE_TRUST = 4.0
_HOPED_COST = 0.15
_COST_TRUST = 1.0
# Measurements lose a share of their weight in each step: shares half of it in 690 steps, costs,
# which change with the machine's other load, in 230.
_SHARE_FADE = 0.999
_COST_FADE = 0.997
_MOST_ROWS = 24.0
_MOST_STEPS = 16.0
# Drafting must gain this much, or the noise of the estimates alone would turn it on.
_LEAST_GAIN = 1.03
# Drafting begins only at a further gain of this for each row, up to a bound: a draft model must
# first read all tokens that were generated without it. Rows also keep different numbers of drafts
# and end at different steps; the more rows, the longer the last ones run in a batch that is not
# full. While drafts are made, half of it is enough, or a gain near the bound would switch them on
# and off all the time.
_MORE_A_ROW = 0.012
_MOST_MORE = 0.35
# Durations are multiples of a plain step's, which is the median of the latest few. While drafts
# pay, one step in a hundred has none, to keep that median current.
_PLAIN_STEPS = 9
_LEAST_PLAIN = 3
_MOST_WITHOUT_PLAIN = 100
# A step counts as at most this many times the estimate, and at least its inverse: outliers occur.
_MOST_OFF = 1.5


class _Mean:
    """A weighted mean that begins at a hope and fades back to it."""

    __slots__ = ("_sum", "_weight")

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def value(self, hope: float, trust: float) -> float:
        """Returns the mean, as if `trust` measurements had been `hope`."""
        return (trust * hope + self._sum) / (trust + self._weight)

    def add(self, total: float, weight: float, most: float) -> None:
        """Adds measurements that sum to `total`; above a weight of `most`, old ones lose weight."""
        self._sum += total
        self._weight += weight
        self.scale(min(1.0, most / self._weight))

    def scale(self, by: float) -> None:
        self._sum *= by
        self._weight *= by


class _Level:
    """Measurements of batches of about one size."""

    def __init__(self, most: int) -> None:
        # Seconds divided by the square root of the batch: a mean of reading weights, which takes as
        # long for any batch, and computing, which takes twice as long for twice the rows.
        self.plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        self.costs = [_Mean() for _ in range(most + 1)]
        self.tried: set[int] = set()
        self.since_plain = 0
        self.is_drafting = False
        # The longest draft to try next: at most twice the longest of which a token was kept.
        self.reach = 1

    def slowdowns(self) -> list[float]:
        """Returns, by draft length, the duration of a step as a multiple of a plain one's.

        A length that was not measured is taken to cost as much per token as the one below it.
        """
        found, cost = [1.0], _HOPED_COST
        for length in range(1, len(self.costs)):
            cost = self.costs[length].value(cost * length, _COST_TRUST) / length
            found.append(1.0 + cost * length)
        return found


class DraftLength:
    """The draft length of each step, 0 to `most`. It only decides: the caller supplies seconds.

    Memory: some 100 bytes times `most` for each power of two that the batch size has reached.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shares = [_Mean() for _ in range(most + 1)]
        self._levels: dict[int, _Level] = {}

    def choose(self, batch: int) -> int:
        """Returns the number of tokens to draft for each row; 0 for none. batch: 1 row or more."""
        level = self._level(batch)
        if len(level.plain) < _LEAST_PLAIN or level.since_plain >= _MOST_WITHOUT_PLAIN:
            return 0
        more = min(_MORE_A_ROW * batch, _MOST_MORE)
        best, best_gain = 0, _LEAST_GAIN + (more / 2 if level.is_drafting else more)
        tokens = stays = 1.0
        share = _HOPED_SHARE
        slowdowns = level.slowdowns()
        for length in range(1, min(self._most, level.reach) + 1):
            share = self._shares[length].value(share, _SHARE_TRUST)
            stays *= share
            tokens += stays
            if tokens / slowdowns[length] > best_gain:
                best, best_gain = length, tokens / slowdowns[length]
        level.is_drafting = best > 0
        return best

    def measured(
        self, drafted: Sequence[int], accepted: Sequence[int], step_s: float | None
    ) -> None:
        """Records one step.

        drafted, accepted: the tokens drafted for each row, and those of them that were kept; at
        least one row. step_s: seconds from before the drafts to after the verdict; None if the step
        also did something else, such as reading a prompt, or if the draft model had to catch up.
        """
        batch, length = len(drafted), max(drafted)
        level = self._level(batch)
        for mean in self._shares:
            mean.scale(_SHARE_FADE)
        for mean in level.costs:
            mean.scale(_COST_FADE)
        if length == 0:
            level.since_plain = 0
            level.reach = max(1, level.reach - 1)
            if step_s is not None:
                level.plain.append(step_s / sqrt(batch))
            return
        level.since_plain += 1
        rows = list(zip(drafted, accepted, strict=True))
        for place in range(1, length + 1):
            # Rows that kept all drafts before this place.
            stayed = [kept >= place for made, kept in rows if made >= place and kept >= place - 1]
            if stayed:
                self._shares[place].add(sum(stayed), len(stayed), _MOST_ROWS)
        if any(accepted):
            level.reach = max(level.reach, 2 * length)
        # In the first step of a length, kernels are compiled for its shapes, which takes time.
        is_first = length not in level.tried
        level.tried.add(length)
        if step_s is not None and level.plain and not is_first:
            known = level.slowdowns()[length]
            times = step_s / (median(level.plain) * sqrt(batch))
            times = min(max(times, known / _MOST_OFF), known * _MOST_OFF)
            # Drafts do not make a step shorter: if they seem to, the plain ones were delayed.
            level.costs[length].add(max(0.0, times - 1.0), 1.0, _MOST_STEPS)

    def _level(self, batch: int) -> _Level:
        size = (batch - 1).bit_length()
        if size not in self._levels:
            self._levels[size] = _Level(self._most)
        return self._levels[size]
