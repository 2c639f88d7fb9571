"""A failure is a busy machine's if that was late, and the test's otherwise."""

from __future__ import annotations

import pytest

from support.lateness import TRIES, judge


def test_what_fails_on_a_calm_machine_fails() -> None:
    tried: list[int] = []

    def check(number: int) -> None:
        tried.append(number)
        raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="wrong"):
        judge(check, late_s=3600.0, most_share=1.0)
    assert tried == [0]


def test_what_a_late_machine_spoils_is_tried_again() -> None:
    tried: list[int] = []

    def check(number: int) -> None:
        tried.append(number)
        assert number == 1

    judge(check, late_s=-1.0)
    assert tried == [0, 1]


def test_what_is_spoilt_each_time_is_skipped_with_what_failed() -> None:
    tried: list[int] = []

    def check(number: int) -> None:
        tried.append(number)
        raise AssertionError("too slow")

    with pytest.raises(pytest.skip.Exception, match=r"too busy.*too slow"):
        judge(check, late_s=-1.0)
    assert len(tried) == TRIES
