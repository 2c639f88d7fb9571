"""Chooses how many tokens to draft at a batch size, or none if speculation does not pay off.

Let h[j] be the share of rows that keep drafted token j after keeping all earlier ones. A step that
drafts k tokens yields 1 + h[1] + h[1] h[2] + ... tokens a row, which is (1 - a^(k+1)) / (1 - a) if
every h[j] is `a` (Leviathan et al. 2023). Such a step takes longer than one without drafts, by a
factor that grows with the batch, since a large batch leaves less of the machine idle. The k with
the most tokens per second is chosen. Shares are learned for all batches together, durations for
each power of two of the batch size.

Shares and durations begin at an optimistic value and drift back to it while nothing is measured. So
an abandoned length is tried again every few hundred steps, but only if it would pay off at the
optimistic value.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from math import sqrt
from statistics import median

# The optimistic values: 0.7 of the drafts are kept, and each draft costs 0.15 of a step.
_HOPED_SHARE = 0.7
_HOPED_COST = 0.15
# The optimistic value weighs as much as four measurements: if a draft costs half a step, two
# rejections in a row outweigh it. All measurements together weigh at most as much as 24, and lose
# half of their weight in 690 steps.
_TRUST = 4.0
_MOST_WEIGHT = 24.0
_FADE = 0.999
# Drafting must gain at least this factor, or the noise of the estimates alone would turn it on.
_LEAST_GAIN = 1.03
# To begin drafting, the gain must be larger by this much for each row, up to a bound: a draft model
# must first read all tokens that were generated without it. Rows also keep different numbers of
# drafts and end at different steps; the more rows, the longer the last rows run in a batch that is
# not full. While drafts are made, half of this is enough; otherwise a gain near the bound would
# switch them on and off all the time.
_MORE_A_ROW = 0.012
_MOST_MORE = 0.35
# Durations are multiples of a plain step's duration: the median of the latest few. While drafts
# pay off, one step in a hundred has none, to keep that median current.
_PLAIN_STEPS = 9
_LEAST_PLAIN = 3
_MOST_WITHOUT_PLAIN = 100


class _Mean:
    """A weighted mean that begins at an optimistic value and drifts back to it."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def value(self, hope: float) -> float:
        return (_TRUST * hope + self._sum) / (_TRUST + self._weight)

    def step(self, total: float = 0.0, count: float = 0.0) -> None:
        """Adds a step's measurements. total: their sum. count: their number."""
        weight = _FADE * self._weight + count
        kept = _MOST_WEIGHT / max(_MOST_WEIGHT, weight)
        self._sum = (_FADE * self._sum + total) * kept
        self._weight = weight * kept


class _Level:
    """Measurements of batches of about the same size."""

    def __init__(self) -> None:
        # Seconds divided by the square root of the batch size: a compromise between reading
        # weights, which takes the same time for any batch, and computing, whose time is
        # proportional to the rows.
        self.plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        # The cost of each drafted token, as a share of a plain step.
        self.cost = _Mean()
        self.tried: set[int] = set()
        self.since_plain = 0
        self.is_drafting = False
        # The longest draft to try next: twice the longest one of which a token was kept.
        self.reach = 1


class DraftLength:
    """Chooses the draft length of each step, 0 to `most`; the caller measures durations.

    Memory: about 100 bytes times `most`, and 1 kB for each power of two that the batch size has
    reached.
    """

    def __init__(self, most: int) -> None:
        self._shares = [_Mean() for _ in range(most)]
        # Level n is for batches of more than 2^(n-1) and at most 2^n rows.
        self._levels: defaultdict[int, _Level] = defaultdict(_Level)

    def choose(self, batch: int) -> int:
        """Returns the number of tokens to draft for each row; 0 for none. batch: 1 row or more."""
        level = self._levels[(batch - 1).bit_length()]
        if len(level.plain) < _LEAST_PLAIN or level.since_plain >= _MOST_WITHOUT_PLAIN:
            return 0
        more = min(_MORE_A_ROW * batch, _MOST_MORE)
        best, best_gain = 0, _LEAST_GAIN + (more / 2 if level.is_drafting else more)
        tokens = stays = 1.0
        share, cost = _HOPED_SHARE, level.cost.value(_HOPED_COST)
        for length, mean in enumerate(self._shares[: level.reach], 1):
            share = mean.value(share)
            stays *= share
            tokens += stays
            gain = tokens / (1 + cost * length)
            if gain > best_gain:
                best, best_gain = length, gain
        level.is_drafting = best > 0
        return best

    def measured(
        self, drafted: Sequence[int], accepted: Sequence[int], step_s: float | None
    ) -> None:
        """Records one step.

        drafted, accepted: for each row, the number of drafted tokens and of kept ones; at least one
        row. step_s: seconds from the start of drafting to the verdict; None if the step also did
        something else, such as reading a prompt, or if the draft model had to catch up.
        """
        batch, length = len(drafted), max(drafted)
        level = self._levels[(batch - 1).bit_length()]
        rows = list(zip(drafted, accepted, strict=True))
        for place, mean in enumerate(self._shares, 1):
            # For each row that kept all drafts before this place: whether it kept this one too.
            stayed = [kept >= place for made, kept in rows if made >= place and kept >= place - 1]
            mean.step(sum(stayed), len(stayed))
        level.cost.step()
        level.since_plain = level.since_plain + 1 if length else 0
        # The first step with a length takes longer, since kernels are compiled for its shapes.
        is_first = length not in level.tried
        level.tried.add(length)
        if any(accepted):
            level.reach = max(level.reach, 2 * length)
        if step_s is None:
            return
        scaled_s = step_s / sqrt(batch)
        if length == 0:
            level.plain.append(scaled_s)
        elif level.plain and not is_first:
            # Drafts do not make a step shorter: if they seem to, plain steps were delayed. And a
            # draft token that costs a whole step does not pay off, whatever delayed this step.
            cost = (scaled_s / median(level.plain) - 1) / length
            level.cost.step(min(max(0.0, cost), 1.0), 1)
