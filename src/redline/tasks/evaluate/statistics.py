"""Calculates intervals of scores, scores of several samples per question, and paired tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import NamedTuple, TypeVar

Answer = TypeVar("Answer", bound=Hashable)

# The normal quantile of a two-sided 95 % interval.
_Z = NormalDist().inv_cdf(0.975)
# The maximum number of additions in an exact test; this takes about half a second.
_MOST_EXACT = 5_000_000


class Interval(NamedTuple):
    """A 95 % confidence interval of a share, 0 to 1, or of a difference of shares."""

    low: float
    high: float

    def text(self) -> str:
        """Returns text such as `(95 %: 20.8 to 93.9 %)`."""
        return f"(95 %: {100 * self.low:.1f} to {100 * self.high:.1f} %)"


def wilson(correct: float, total: float) -> Interval:
    """Returns the 95 % score interval of correct / total (Wilson 1927); 0 to 1 if total is 0."""
    if total == 0:
        return Interval(0.0, 1.0)
    share, z2 = correct / total, _Z * _Z
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    # At the ends the formula gives 0 and 1, except for rounding.
    low = 0.0 if correct == 0 else max(0.0, middle - half)
    high = 1.0 if correct == total else min(1.0, middle + half)
    return Interval(low, high)


def share_interval(questions: Sequence[tuple[int, int]]) -> Interval:
    """Returns the 95 % interval of the share of right answers, clustered by question.

    questions: for each question, the number of right answers and of all answers. The standard error
    is cluster-robust (Liang and Zeger 1986), with a question as a cluster. The result is Wilson's
    interval for the number of independent answers that have this standard error. With one answer
    per question it equals `wilson`. If all answers to each question agree, each question counts as
    one answer.
    """
    correct, total = map(sum, zip(*questions, strict=True)) if questions else (0, 0)
    if correct in (0, total):
        return wilson(correct and len(questions), len(questions))
    share = correct / total
    residuals = math.fsum((right - share * answers) ** 2 for right, answers in questions)
    # If no question differs from the mean, all answers count as independent.
    independent = min(total, share * (1 - share) * total**2 / residuals) if residuals else total
    return wilson(share * independent, independent)


def pass_at(k: int, samples: int, correct: int) -> float:
    """Estimates the probability that at least one of k samples is correct.

    `correct` of `samples` are correct; 1 <= k <= samples. The estimate is unbiased:
    1 - C(n-c, k) / C(n, k) for n samples, c of them correct (Chen et al. 2021, section 2.1).
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def majority(answers: Iterable[Answer | None]) -> Answer | None:
    """Returns the most frequent answer (in a tie, the first), or None if there is no answer.

    Self-consistency (Wang et al. 2022): samples without an answer have no vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    return max(votes, key=lambda answer: votes[answer], default=None)


class Paired(NamedTuple):
    """Two runs on the same questions, compared by each question's share of right answers.

    first, second: the means of the shares. both, neither: the number of questions with all answers
    right in both runs, and with none right in either. only_first, only_second: the number of
    questions with a larger share in that run. The remaining questions have equal shares between 0
    and 1. difference: second minus first; interval: its 95 % interval. p: two-sided, for the
    hypothesis of no difference. is_mcnemar: p comes from McNemar's exact test, because all
    differing shares differ by 1.
    """

    questions: int
    first: float
    second: float
    both: int
    only_first: int
    only_second: int
    neither: int
    difference: float
    interval: Interval
    p: float
    is_mcnemar: bool


def paired(outcomes: Mapping[tuple[Fraction | bool, Fraction | bool], int]) -> Paired:
    """Compares two runs on the same questions.

    outcomes: the number of questions for each pair of shares of right answers, 0 to 1; at least one
    question.

    The test flips the sign of each question's difference (Fisher 1935): if the runs do not differ,
    both signs are equally likely. It is exact, and is McNemar's test (1947) if each question has
    one answer. For very many questions with several answers, the normal approximation replaces it.
    The interval for pairs (Agresti and Min 2005) adds two questions: one tie, and half a win for
    each run. So a few questions without a difference prove nothing.
    """
    shares: Counter[tuple[Fraction, Fraction]] = Counter()
    differences: Counter[Fraction] = Counter()
    for (one, other), count in outcomes.items():
        first, second = Fraction(one), Fraction(other)
        shares[first, second] += count
        differences[second - first] += count
    total = shares.total()
    gained, lost = (
        sum(count for d, count in differences.items() if sign * d > 0) for sign in (1, -1)
    )
    middle = sum(d * count for d, count in differences.items()) / (total + 2)
    squares = sum(d * d * count for d, count in differences.items())
    variance = float((squares + 1) / (total + 2) - middle**2) / (total + 2)
    half = _Z * math.sqrt(variance)
    means = [sum(pair[place] * count for pair, count in shares.items()) / total for place in (0, 1)]
    difference = float(means[1] - means[0])
    interval = Interval(
        max(-1.0, min(difference, float(middle) - half)),
        min(1.0, max(difference, float(middle) + half)),
    )
    is_mcnemar = all(d in (-1, 0, 1) for d in differences)
    return Paired(
        questions=total,
        first=float(means[0]),
        second=float(means[1]),
        both=shares[Fraction(1), Fraction(1)],
        only_first=lost,
        only_second=gained,
        neither=shares[Fraction(0), Fraction(0)],
        difference=difference,
        interval=interval,
        p=_binomial_p(min(lost, gained), lost + gained) if is_mcnemar else _flip_p(differences),
        is_mcnemar=is_mcnemar,
    )


def _flip_p(differences: Mapping[Fraction, int]) -> float:
    """Returns the two-sided p of a sum whose terms have either sign with probability 1/2.

    differences: the number of terms of each size.
    """
    scale = math.lcm(*(d.denominator for d in differences))
    terms: Counter[int] = Counter()
    for d, count in differences.items():
        if d:
            terms[abs(int(d * scale))] += count
    observed = abs(sum(int(d * scale) * count for d, count in differences.items()))
    reach = sum(terms.elements())
    if terms.total() * reach > _MOST_EXACT:
        # A fraction, since the scale may exceed a float if the numbers of answers vary.
        squares = sum(term * term * count for term, count in terms.items())
        return math.erfc(math.sqrt(Fraction(observed * observed, 2 * squares)))
    # chances[s]: the probability that the positive terms add up to s.
    chances = [1.0]
    for term in terms.elements():
        halves = [chance / 2 for chance in chances]
        pad = [0.0] * term
        chances = [kept + added for kept, added in zip(halves + pad, pad + halves, strict=True)]
    return min(1.0, math.fsum(c for s, c in enumerate(chances) if abs(2 * s - reach) >= observed))


def _binomial_p(fewer: int, trials: int) -> float:
    """Returns the two-sided p of a fair coin that shows one side `fewer` of `trials` times.

    fewer: a count of at most half of `trials`.
    """
    if trials == 0:
        return 1.0
    log_half = -trials * math.log(2)
    logs = (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + log_half
        for k in range(fewer + 1)
    )
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))
