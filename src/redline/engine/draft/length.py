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

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

# Of useful drafts 0.7 are kept, and each costs a seventh of a step.
_HOPED_SHARE = 0.7
_HOPED_COST = 0.15
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
# A step counts as at most this many times the estimate: outliers occur.
_MOST_OFF = 1.5


@dataclass
class _Mean:
    """A weighted mean that begins at a hope and fades back to it.

    trust: the measurements that the hope weighs as much as. most: above this weight, measurements
    lose weight. fade: the share of their weight that they keep in each step.
    """

    trust: float
    most: float
    fade: float
    total: float = 0.0
    weight: float = 0.0

    def value(self, hope: float) -> float:
        return (self.trust * hope + self.total) / (self.trust + self.weight)

    def step(self, total: float = 0.0, weight: float = 0.0) -> None:
        """Adds the measurements of a step, by their sum."""
        weight += self.fade * self.weight
        kept = self.most / max(self.most, weight)
        self.total = (self.fade * self.total + total) * kept
        self.weight = weight * kept


class _Level:
    """Measurements of batches of about one size."""

    def __init__(self) -> None:
        # Seconds divided by the square root of the batch: a mean of reading weights, which takes as
        # long for any batch, and computing, which takes twice as long for twice the rows.
        self.plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        # By the length of drafts that were tried, how much longer than a plain step it takes.
        self.costs: dict[int, _Mean] = {}
        self.since_plain = 0
        self.is_drafting = False
        # The longest draft to try next: at most twice the longest of which a token was kept.
        self.reach = 1

    def slowdowns(self, most: int) -> list[float]:
        """Returns, by draft length, the duration of a step as a multiple of a plain one's.

        A length that was not tried is taken to cost as much per token as the one below it.
        """
        found, cost = [1.0], _HOPED_COST
        for length in range(1, most + 1):
            if length in self.costs:
                cost = self.costs[length].value(cost * length) / length
            found.append(1.0 + cost * length)
        return found


class DraftLength:
    """The draft length of each step, 0 to `most`. It only decides: the caller supplies seconds.

    Memory: some 100 bytes times `most` for each power of two that the batch size has reached.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Two rejections in a row end the hope if a draft costs half a step. Unmeasured, half of a
        # weight is lost in 690 steps.
        self._shares = [_Mean(trust=4.0, most=24.0, fade=0.999) for _ in range(most)]
        # By the bits of the batch size.
        self._levels: defaultdict[int, _Level] = defaultdict(_Level)

    def choose(self, batch: int) -> int:
        """Returns the number of tokens to draft for each row; 0 for none. batch: 1 row or more."""
        level = self._levels[(batch - 1).bit_length()]
        if len(level.plain) < _LEAST_PLAIN or level.since_plain >= _MOST_WITHOUT_PLAIN:
            return 0
        more = min(_MORE_A_ROW * batch, _MOST_MORE)
        best, best_gain = 0, _LEAST_GAIN + (more / 2 if level.is_drafting else more)
        tokens = stays = 1.0
        share, slowdowns = _HOPED_SHARE, level.slowdowns(self._most)
        for length, mean in enumerate(self._shares[: level.reach], 1):
            share = mean.value(share)
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
        level = self._levels[(batch - 1).bit_length()]
        rows = list(zip(drafted, accepted, strict=True))
        for place, mean in enumerate(self._shares, 1):
            # Rows that kept all drafts before this place.
            stayed = [kept >= place for made, kept in rows if made >= place and kept >= place - 1]
            mean.step(sum(stayed), len(stayed))
        for mean in level.costs.values():
            mean.step()
        scaled_s = None if step_s is None else step_s / sqrt(batch)
        if length == 0:
            level.since_plain = 0
            level.reach = max(1, level.reach - 1)
            if scaled_s is not None:
                level.plain.append(scaled_s)
            return
        level.since_plain += 1
        if any(accepted):
            level.reach = max(level.reach, 2 * length)
        if length not in level.costs:
            # In the first step of a length, kernels are compiled for its shapes, which takes time.
            # Costs change with the machine's other load: half of a weight is lost in 230 steps.
            level.costs[length] = _Mean(trust=1.0, most=16.0, fade=0.997)
        elif scaled_s is not None and level.plain:
            most = _MOST_OFF * level.slowdowns(length)[length]
            # Drafts do not make a step shorter: if they seem to, the plain ones were delayed.
            times = min(max(1.0, scaled_s / median(level.plain)), most)
            level.costs[length].step(times - 1.0, 1.0)
