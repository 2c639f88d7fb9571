"""Tracks outages, when an endpoint cannot be reached: rows wait, until the outage is over.

  up       -> down       a connection could not be made
  down     -> up         a connection was made: any response arrived, or the connection was lost
  down     -> over       the outage has lasted 300 s, or 5 s if the endpoint has never answered; its
                         calls then fail with NoEndpoint

A row is not blamed for an endpoint that is down: connection failures use none of its retries.
"""

from __future__ import annotations

import math

from redline.errors import Disconnected, TimedOut

# A wrong address should be noticed soon; a server that has answered before gets time to restart.
_NEVER_ANSWERED_S = 5.0
_ANSWERED_BEFORE_S = 300.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 15.0


class Outage:
    """Whether the endpoint can be reached, judged by the results of its connection attempts.

    again_s: when to try the next connection; -inf while the endpoint is up. is_closed: no further
    connection will be made, so the next outage is over at once.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self.again_s = -math.inf
        self._pause_s = _FIRST_PAUSE_S
        self._has_answered = False
        self.is_closed = False
        self.is_up = False  # the endpoint has answered, and no connection has failed since

    def close(self) -> None:
        """Records that no further connection will be made."""
        self.is_closed = True

    def answered(self) -> bool:
        """Records any sign of life: a success, an error, or a reset after connecting.

        Returns True if it ends an outage.
        """
        was_down = self._since_s is not None
        self._has_answered = self.is_up = True
        self._since_s = None
        self._pause_s = _FIRST_PAUSE_S
        self.again_s = -math.inf
        return was_down

    def refused(self, now_s: float) -> bool:
        """Records a failure to connect. Failures within one pause count as one.

        Returns True if it begins an outage.
        """
        self.is_up = False
        is_first = self._since_s is None
        if is_first:
            self._since_s = now_s
        if now_s >= self.again_s:
            self.again_s = now_s + self._pause_s
            self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)
        return is_first

    @property
    def is_down(self) -> bool:
        """Whether the last attempt to connect failed."""
        return self._since_s is not None

    def lasted_s(self, now_s: float) -> float:
        """Returns the seconds since the outage began; 0 while the endpoint is up."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def is_over(self, now_s: float) -> bool:
        """Whether the outage has lasted 300 s (5 s before any answer), or `close` was called."""
        patience_s = _ANSWERED_BEFORE_S if self._has_answered else _NEVER_ANSWERED_S
        return self.is_closed or self.lasted_s(now_s) >= patience_s


def is_unreachable(error: object) -> bool:
    """Whether the error says that no connection was made, so the row is not to blame."""
    return (isinstance(error, Disconnected) and not error.was_sent) or (
        isinstance(error, TimedOut) and error.phase == "connect"
    )
