"""The stated error of estimates."""

from __future__ import annotations

import pytest

from redline.calls.tokens import Accuracy, Comparison


def test_nothing_is_known_before_the_first_call() -> None:
    assert Comparison().accuracy() == Accuracy(0, None, None)


def test_errors_are_weighted_by_tokens() -> None:
    compared = Comparison()
    compared.add(110, 100)
    compared.add(1, 2)
    compared.add(800, 900)
    stated = compared.accuracy()
    assert stated.calls == 3
    assert stated.bias == pytest.approx((10 - 1 - 100) / 1002)
    assert stated.absolute == pytest.approx((10 + 1 + 100) / 1002)


def test_only_the_latest_256_calls_count() -> None:
    compared = Comparison()
    for _ in range(100):
        compared.add(1000, 1)
    for _ in range(256):
        compared.add(10, 10)
    assert compared.accuracy() == Accuracy(256, 0.0, 0.0)


def test_calls_that_used_nothing_have_no_relative_error() -> None:
    compared = Comparison()
    compared.add(5, 0)
    assert compared.accuracy() == Accuracy(1, None, None)
