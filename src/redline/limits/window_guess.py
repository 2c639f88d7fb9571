"""How long the window of a limit is whose headers tell only when it resets."""

from __future__ import annotations

from redline.limits.stated import Stated

# The windows that providers state their limits for.
_USUAL_S = (1.0, 10.0, 60.0, 3600.0, 86_400.0)
_NEAR = 0.15
# A minute is what a limit without a window means in the APIs that tell none.
_DEFAULT_WINDOW_S = 60.0
# A reset that is this near to a whole window was told at its beginning.
_EARLY = 0.01


class WindowGuess:
    """One limit's resets as they come. since_s: when its window was last guessed."""

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s
        self._longest_s = 0.0

    def revised_s(self, window_s: float, reset_s: float, now_s: float, *, is_window: bool) -> float:
        """The window as it looks by now, window_s having been the guess so far.

        is_window: it has turned out not to refill steadily, as a bucket does.
        """
        self._longest_s = max(self._longest_s, reset_s)
        revised_s = window_s
        # A sliding-window counter is whole again after two windows.
        if reset_s > 2 * window_s + 1:
            revised_s = _usual_s(reset_s / 2)
        elif is_window and now_s >= self._since_s + window_s:
            # It was taken for a bucket at first, whose resets are shorter than its window.
            revised_s = min(window_s, _usual_s(self._longest_s))
        if revised_s != window_s:
            self._since_s, self._longest_s = now_s, 0.0
        return revised_s


def window_s_of(one: Stated) -> float:
    """The window of a limit that the server states: told, or read off the time it takes to refill.

    A bucket is whole again after (limit - remaining) x W / limit; a window, after its end at most.
    Where both would do, a minute, or else the shorter: who sends too fast soon sees the reset grow.
    """
    if one.window_s is not None:
        return one.window_s
    if one.limit and one.reset_s and one.remaining is not None and one.remaining < one.limit:
        refill_s = one.reset_s * one.limit / (one.limit - one.remaining)
        steady = [usual_s for usual_s in _USUAL_S if abs(refill_s - usual_s) <= _NEAR * usual_s]
        # Resets in whole seconds are rounded up. One that is told late in a long window reads as a
        # short one, until the next window tells better.
        shortest_s = _usual_s(one.reset_s)
        is_begun = one.reset_s >= shortest_s * (1 - _EARLY)
        if steady and (steady[0] <= _DEFAULT_WINDOW_S or not is_begun):
            return steady[0]
        return shortest_s
    return _DEFAULT_WINDOW_S


def _usual_s(reset_s: float) -> float:
    """The shortest usual window that may reset after reset_s, which some round up to seconds."""
    longer = [usual_s for usual_s in _USUAL_S if usual_s >= reset_s - 1]
    return longer[0] if longer else reset_s
