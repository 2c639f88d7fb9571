"""How late a busy machine runs what is due, and tests that only a calm one may fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

_TICK_S = 0.01
TRIES = 3


class Lateness:
    """A context manager: meanwhile a thread sleeps again and again, and notes how late it wakes.

    longest_s: the latest it woke.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            due_s = time.monotonic() + _TICK_S
            time.sleep(_TICK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - due_s)


def judge(check: Callable[[int], None], late_s: float) -> None:
    """Passes if `check` does; it gets the number of the try, from 0.

    late_s: a failure counts unless the machine was late by more than this meanwhile, which no
    promise covers. Such a try is repeated; if all were, the test is skipped, with what failed.
    """
    spoilt: list[str] = []
    for number in range(TRIES):
        try:
            with Lateness() as machine:
                check(number)
        except AssertionError as error:
            if machine.longest_s <= late_s:
                raise
            spoilt.append(f"{machine.longest_s:.2f} s late: {str(error).splitlines()[0]}")
        else:
            return
    pytest.skip(f"the machine is too busy to judge: {spoilt}")
