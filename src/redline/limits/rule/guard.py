"""Measures the guard: how late a request may reach the server's limiter, relative to the fastest.

The time that a reply took bounds how late its request was. Let m be the shortest time from the
write of a request to the first byte of its answer. If a reply took t, its request reached the
server at most t - m later than the fastest request would have, wherever the time was spent. So, for
a window W:

  a send counts for W + (t - m) once it has its reply, and until then for W plus the largest
  lateness that is assumed (`unproven_s`);
  the prior is the jitter that is assumed before any measurement: if nearly all replies exceed the
  time of the fastest one by at most the prior, their spread bounds the jitter, and the guard
  follows it; otherwise the time went into generating the replies, which says nothing about the
  network, and the guard stays at the prior;
  handshakes, and replies whose processing time the server reports, show the network's delay alone;
  timers that fire late show the lag of the event loop. This is jitter too, but a send may make up
  for the lateness of the previous send, so the lag adds to the guard without slowing the pace.

The minimum of n samples is above the true minimum by about spread / n, or by spread / sqrt(n) if
the time is a sum of several times; so the larger of 4 spread / n and spread / sqrt(n) is added to
the measured spread. A burst can be late as a whole, so the samples must come from more than one
moment. Once the server has shown that the guard was too short, replies are no longer used as proof.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

# The prior: the jitter that is assumed before anything is measured, typical of the internet.
PRIOR_S = 0.05
# Covers timers, which count in whole milliseconds, and a busy event loop, which reads late.
MARGIN_S = 0.005
FIRST_GUARD_S = PRIOR_S + MARGIN_S
_MOST_S = 0.4
# Fewer replies prove nothing: the shortest time among them may not be short.
_LEAST_REPLIES = 16
_LEAST_HANDSHAKES = 8
_REPLIES = 128
_HANDSHAKES = 64
_LAGS = 128
# Sorting the samples is the most expensive step. At first it is done at every eighth reply, and
# later whenever a quarter of the samples is new.
_LEARN_EVERY = 8
_NEW_SHARE = 4


class Jitter:
    """Measures the jitter from replies, handshakes and timers.

    guard_s: the seconds to add to a window. base_s: if a reply took t, its call was at most
    t - base_s late; -inf while replies prove nothing. unproven_s: how late a call may be if no
    reply has proved less. catch_up_s: by how much a send may make up for a late timer. on_change:
    called when guard_s, base_s or unproven_s has changed. stated_s: a fixed guard, set by the user;
    None to measure it.
    """

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, stated_s: float | None = None
    ) -> None:
        self._on_change = on_change
        self._is_stated = stated_s is not None
        self._prior_s = PRIOR_S
        self._fastest_s = math.inf
        self._replies = 0
        self._took_s: deque[float] = deque(maxlen=_REPLIES)
        self._first_until_s = math.inf  # calls written until then belong to the first moment
        self._has_moments = False  # whether replies came from more than one moment
        self._trusts_replies = True
        self._handshakes_s: deque[float] = deque(maxlen=_HANDSHAKES)
        self._network_s = 0.0
        self._lags_s: deque[float] = deque(maxlen=_LAGS)
        self._rings = 0
        self._learn_at, self._learn_rings_at = 1, _LEARN_EVERY
        self.catch_up_s = MARGIN_S
        self._spread_s = math.inf  # how much longer than the fastest reply nearly all replies take
        self._unsure_s = 0.0  # by how much the fastest reply may exceed the fastest possible one
        self.base_s = -math.inf
        self.unproven_s = self.guard_s = FIRST_GUARD_S if stated_s is None else stated_s

    def rang(self, late_s: float) -> None:
        """Records that a timer fired `late_s` late."""
        if self._is_stated:
            return
        self._lags_s.append(late_s)
        self._rings += 1
        if self._rings < self._learn_rings_at:
            return
        self._learn_rings_at = self._rings + max(_LEARN_EVERY, len(self._lags_s) // _NEW_SHARE)
        lags_s = sorted(self._lags_s)
        lag_s = min(lags_s[len(lags_s) * 95 // 100], PRIOR_S)
        # MARGIN_S covers a short lag; a longer one takes its place.
        self.catch_up_s = max(MARGIN_S, lag_s)
        self._conclude()

    def replied(self, took_s: float, sent_s: float) -> None:
        """Records that a reply's first byte came `took_s` after its call was written at `sent_s`.

        took_s: without the server's own processing time, if the server reports it.
        """
        if took_s < self._fastest_s:
            self._fastest_s = took_s
            self._conclude()
        self._took_s.append(took_s)
        self._replies += 1
        if self._replies >= self._learn_at:
            self._learn(sent_s)

    def proved_s(self, took_s: float) -> float:
        """Returns the most by which a call with this reply time can have been late, in seconds.

        took_s: as passed to `replied`.
        """
        return min(took_s - self.base_s, self.unproven_s)

    def shook_hands(self, took_s: float) -> None:
        """Records that a connection took `took_s` to open, while no other was being opened."""
        self._handshakes_s.append(took_s)
        if len(self._handshakes_s) >= _LEAST_HANDSHAKES:
            times_s = sorted(self._handshakes_s)
            # The 90th percentile: slower handshakes are due to lost packets or a busy event loop.
            self._network_s = min(_MOST_S, times_s[len(times_s) * 9 // 10] - times_s[0])
            self._conclude()

    def was_short(self) -> None:
        """Records that the guard was too short: the server counted more than a window's sends."""
        self._prior_s = min(_MOST_S, self._prior_s * 2)
        self._trusts_replies = False
        self._conclude()

    def _learn(self, sent_s: float) -> None:
        """Measures the spread of the last replies. sent_s: when the last reply's call was sent."""
        replies = self._replies
        if replies == 1:
            self._first_until_s = sent_s + self._prior_s
        self._has_moments |= sent_s > self._first_until_s
        new = max(_LEARN_EVERY, len(self._took_s) // _NEW_SHARE)
        self._learn_at = replies // _LEARN_EVERY * _LEARN_EVERY + new
        if not (replies >= _LEAST_REPLIES and self._has_moments and self._trusts_replies):
            return
        took_s = sorted(self._took_s)
        self._spread_s = took_s[len(took_s) * 95 // 100] - self._fastest_s
        self._unsure_s = self._spread_s * max(4 / replies, 1 / math.sqrt(replies))
        self._conclude()

    def _conclude(self) -> None:
        if self._is_stated:
            return
        unproven_s = max(self._prior_s, self._network_s) + MARGIN_S
        jitter_s, base_s = self._prior_s, -math.inf
        if self._trusts_replies and self._spread_s <= self._prior_s:
            # 5 % more, because a twentieth of the replies took longer than the quantile.
            jitter_s = min(jitter_s, self._spread_s * 1.05 + self._unsure_s)
            base_s = self._fastest_s - self._unsure_s - MARGIN_S
        guard_s = max(jitter_s, self._network_s) + self.catch_up_s
        before = self.guard_s, self.unproven_s, self.base_s
        self.guard_s, self.unproven_s, self.base_s = guard_s, unproven_s, base_s
        if before != (guard_s, unproven_s, base_s):
            self._on_change()
