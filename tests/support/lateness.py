"""How late a busy machine runs what is due, and tests that only a calm one may fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

_TICK_S = 0.01
# A turn of another process, as there is on any machine.
_TURN_S = 0.005
TRIES = 3
# A machine that is late for more of the time is slower than any margin allows.
MOST_SHARE = 0.2


class Lateness:
    """A context manager: meanwhile a thread sleeps again and again, and notes how late it wakes.

    longest_s: the latest it woke. share: of the time, what it slept too long, from 0 to 1; a few
    milliseconds of each sleep are usual and left out.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._late_s = 0.0
        self._begun_s = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def share(self) -> float:
        return self._late_s / (time.monotonic() - self._begun_s)

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
            late_s = time.monotonic() - due_s
            self.longest_s = max(self.longest_s, late_s)
            self._late_s += max(0.0, late_s - _TURN_S)


def judge(check: Callable[[int], None], late_s: float, most_share: float = MOST_SHARE) -> None:
    """Passes if `check` does; it gets the number of the try, from 0.

    late_s: a failure counts unless the machine was late by more than this meanwhile, or for more
    than most_share of the time, which no promise covers. Such a try is repeated; if all were, the
    test is skipped, with what failed.
    """
    spoilt: list[str] = []
    for number in range(TRIES):
        try:
            with Lateness() as machine:
                check(number)
        except AssertionError as error:
            if machine.longest_s <= late_s and machine.share <= most_share:
                raise
            late = f"{machine.longest_s:.2f} s, {machine.share:.0%} of the time"
            spoilt.append(f"late by {late}: {str(error).splitlines()[0]}")
        else:
            return
    pytest.skip(f"the machine is too busy to judge: {spoilt}")
