"""How sure a score is: intervals, several samples to a question, two runs on the same questions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeVar

Answer = TypeVar("Answer", bound=Hashable)

# Of 95 %, two-sided.
_Z = NormalDist().inv_cdf(0.975)


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def wilson(correct: int, total: int) -> Interval:
    """The 95 % score interval of a share, 0 to 1 (Wilson 1927). total: 0 gives the whole range."""
    if total == 0:
        return Interval(0.0, 1.0)
    share, z2 = correct / total, _Z * _Z
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    # At the ends the formula gives 0 and 1 but for rounding.
    low = 0.0 if correct == 0 else max(0.0, middle - half)
    high = 1.0 if correct == total else min(1.0, middle + half)
    return Interval(low, high)


def pass_at(k: int, samples: int, correct: int) -> float:
    """The chance that one of k samples is correct, of which `correct` of `samples` are.

    1 <= k <= samples. Unbiased: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, section 2.1).
    """
    wrong = samples - correct
    if wrong < k:
        return 1.0
    return 1.0 - math.prod((wrong - i) / (samples - i) for i in range(k))


def majority(answers: Iterable[Answer | None]) -> Answer | None:
    """The answer that most samples give; None for none. Of equally many, the one that came first.

    Self-consistency (Wang et al. 2022): samples without an answer have no vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    return max(votes, key=lambda answer: votes[answer], default=None)


class Paired(NamedTuple):
    """Two runs on the same questions.

    only_first, only_second: questions that one of them alone has right. difference: of the shares,
    second minus first. p: of McNemar's test, two-sided and exact.
    """

    questions: int
    both: int
    only_first: int
    only_second: int
    neither: int
    difference: float
    interval: Interval
    p: float


def paired(outcomes: Sequence[tuple[bool, bool]]) -> Paired:
    """Whether the second of two runs is better. outcomes: right or not, of each; at least one.

    The test is exact (binomial; McNemar 1947), the interval of the difference Wald's for pairs
    (Agresti, Categorical Data Analysis, 11.1).
    """
    counts = Counter(outcomes)
    both, neither = counts[True, True], counts[False, False]
    first, second = counts[True, False], counts[False, True]
    total = len(outcomes)
    difference = (second - first) / total
    variance = (first + second - (second - first) ** 2 / total) / total**2
    half = _Z * math.sqrt(max(0.0, variance))
    interval = Interval(max(-1.0, difference - half), min(1.0, difference + half))
    p = _binomial_p(min(first, second), first + second)
    return Paired(total, both, first, second, neither, difference, interval, p)


def _binomial_p(fewer: int, trials: int) -> float:
    """Two-sided p of a fair coin that shows `fewer` of `trials` times one side, at most half."""
    if trials == 0:
        return 1.0
    log_half = -trials * math.log(2)
    logs = (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + log_half
        for k in range(fewer + 1)
    )
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))
