"""Intervals and tests against figures worked out by hand, by brute force, and from papers."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.tasks.evaluate import majority, paired, pass_at, share_interval, wilson


def test_an_interval_is_wilsons() -> None:
    # 10 of 100: from the closed form with z = 1.959964, worked out by hand.
    low, high = wilson(10, 100)
    assert (low, high) == pytest.approx((0.05522914, 0.17436566), abs=1e-7)
    assert wilson(0, 0) == (0, 1)


@given(total=st.integers(1, 5000), data=st.data())
def test_an_interval_holds_its_share_and_mirrors(total: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, total))
    low, high = wilson(correct, total)
    assert 0 <= low <= correct / total <= high <= 1
    other_low, other_high = wilson(total - correct, total)
    assert (1 - other_high, 1 - other_low) == pytest.approx((low, high), abs=1e-12)
    # Its ends are where the normal test just rejects.
    for end in (low, high):
        if 0 < end < 1:
            z = abs(correct / total - end) / math.sqrt(end * (1 - end) / total)
            assert z == pytest.approx(1.959963984540054, rel=1e-6)


def test_pass_at_k_is_the_share_of_choices_with_a_correct_one() -> None:
    for samples in range(1, 8):
        for correct in range(samples + 1):
            answers = [True] * correct + [False] * (samples - correct)
            for k in range(1, samples + 1):
                chosen = list(itertools.combinations(answers, k))
                share = Fraction(sum(map(any, chosen)), len(chosen))
                assert pass_at(k, samples, correct) == pytest.approx(float(share))


def test_the_majority_is_what_most_say() -> None:
    assert majority(["a", "b", "b", None, None, None]) == "b"
    assert majority(["b", "a", "a", "b"]) == "b"
    assert majority([None]) is None
    assert majority([]) is None


def _by_hand(first: int, second: int) -> float:
    """McNemar's exact test from binomial coefficients."""
    trials = first + second
    tail = sum(math.comb(trials, k) for k in range(min(first, second) + 1))
    return min(1.0, float(2 * Fraction(tail, 2**trials)))


def test_two_runs_are_compared_pair_by_pair() -> None:
    for both, first, second, neither in itertools.product((0, 3), (0, 1, 6), (0, 1, 9), (1, 40)):
        outcomes = [(True, True)] * both + [(True, False)] * first
        outcomes += [(False, True)] * second + [(False, False)] * neither
        found = paired(Counter(outcomes))
        counts = (found.both, found.only_first, found.only_second, found.neither)
        assert counts == (both, first, second, neither)
        assert found.difference == pytest.approx((second - first) / len(outcomes))
        assert found.p == pytest.approx(_by_hand(first, second))
        assert found.interval.low <= found.difference <= found.interval.high
    assert paired(Counter([(True, False), *[(False, True)] * 9])).p == pytest.approx(22 / 1024)


@given(questions=st.lists(st.booleans(), min_size=1, max_size=60), samples=st.integers(1, 9))
def test_equal_answers_to_a_question_count_as_one(questions: list[bool], samples: int) -> None:
    groups = [(samples * right, samples) for right in questions]
    assert share_interval(groups) == pytest.approx(wilson(sum(questions), len(questions)))


@given(data=st.data(), count=st.integers(2, 40), samples=st.integers(2, 8))
def test_an_interval_is_no_narrower_than_that_of_independent_answers(
    data: st.DataObject, count: int, samples: int
) -> None:
    rights = data.draw(st.lists(st.integers(0, samples), min_size=count, max_size=count))
    low, high = share_interval([(right, samples) for right in rights])
    share = sum(rights) / (count * samples)
    narrow = wilson(sum(rights), count * samples)
    assert low <= min(share, narrow.low + 1e-12)
    assert max(share, narrow.high - 1e-12) <= high
    assert low < high


def test_intervals_cover_when_answers_go_together() -> None:
    """Of 400 draws, 60 questions of 8 answers, each question hard or easy; 95 % within 4 sigma."""
    random_ = random.Random(7)
    held = 0
    for _ in range(400):
        rates = [random_.choice((0.1, 0.9)) for _ in range(60)]
        drawn = [(sum(random_.random() < rate for _ in range(8)), 8) for rate in rates]
        low, high = share_interval(drawn)
        held += low <= 0.5 <= high
    assert 362 <= held <= 396


def by_all_signs(differences: Sequence[Fraction]) -> float:
    sums = [
        sum(sign * d for sign, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(abs(one) >= abs(sum(differences)) for one in sums) / len(sums)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=9))
def test_samples_are_compared_by_flipping_signs(counts: list[tuple[int, int]]) -> None:
    outcomes = [(Fraction(one, 3), Fraction(other, 4)) for one, other in counts]
    found = paired(Counter(outcomes))
    assert found.p == pytest.approx(by_all_signs([second - first for first, second in outcomes]))
    assert found.interval.low <= found.difference <= found.interval.high
    assert found.interval.low < found.interval.high


def test_a_few_questions_without_a_difference_prove_nothing() -> None:
    for outcomes in ([(True, True)] * 3, [(False, True)] * 3):
        low, high = paired(Counter(outcomes)).interval
        assert high - low > 0.3


def test_a_very_long_comparison_takes_the_normal_approximation() -> None:
    terms = [Fraction(1, 8), Fraction(-1, 2)] * 4_000
    p = paired(Counter([(Fraction(1, 2), Fraction(1, 2) + term) for term in terms])).p
    assert p < 1e-100
    terms += [-term for term in terms]
    even = paired(Counter((Fraction(1, 2), Fraction(1, 2) + term) for term in terms))
    assert even.p == 1


def test_many_numbers_of_answers_do_not_overflow() -> None:
    # The common denominator has 475 digits.
    shares = [(Fraction(1, 2), Fraction(n // 2 + n % 2, n)) for n in range(1, 1100)]
    assert 1e-4 < paired(Counter(shares)).p < 1e-3
    assert paired(Counter(shares + [(other, one) for one, other in shares])).p == 1


def test_many_pairs_do_not_overflow() -> None:
    outcomes = [(True, False)] * 5_000 + [(False, True)] * 5_150
    assert 0.05 < paired(Counter(outcomes)).p < 0.5
