"""Proof that a check can fail: it must catch something that is made wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redline.testing import Deadlock


def assert_caught(check: Callable[[Any], None], right: Any, wrong: Any) -> None:
    """`check` passes on what is right and fails on what is wrong."""
    check(right)
    is_caught = False
    try:
        check(wrong)
    except* (AssertionError, Deadlock):
        # Hypothesis reports failures of several kinds as a group.
        is_caught = True
    assert is_caught, "the check does not notice what is wrong, so it cannot fail"
