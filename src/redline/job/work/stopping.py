"""Decides when a run ends because continuing is useless: rows fail, or it must wait too long.

by default             the first HOPELESS_ROWS rows all fail, except with --retry-failed
--strict               the first row fails
--stop-at-error-rate   that share of the last WINDOW_ROWS rows fails; checked from row LEAST_ROWS
                       on; unfinished rows count as not failed
--longest-wait         no call is in flight, and none can be sent for longer than that
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from redline.calls import Call
from redline.errors import (
    CallError,
    ConfigError,
    NoEndpoint,
    RedlineError,
    TooManyFailures,
    WaitTooLong,
)
from redline.job.settings import Job
from redline.process import duration
from redline.waist import Load

# If the first rows all fail, the run is set up wrongly, and a million more would fail as well.
HOPELESS_ROWS = 100
# If each row fails independently with a probability of 15 %, then 20 % or more of the rows fail in
# one of 80,000 windows of 1,000 rows, but in one of ten windows of 100 rows.
WINDOW_ROWS = 1000
LEAST_ROWS = 100


@dataclass(eq=False, repr=False)
class Failures:
    """Counts a run's failed rows, and decides after each whether the run must end."""

    _job: Job
    _count: int = 0
    _early: int = 0
    # For each row that failed recently, the number of rows that had begun by then.
    _lately: deque[int] = field(default_factory=deque)

    def failed(
        self,
        error: CallError | NoEndpoint,
        succeeded: int,
        *,
        begun: int = 0,
        is_early: bool = False,
    ) -> RedlineError | None:
        """Counts a failed row; returns the error that ends the run, or None if the run continues.

        succeeded: rows of this run that have succeeded so far. begun: rows that have begun, with or
        without an outcome; rows without one count as not failed. is_early: the row failed without a
        request, while earlier rows wait for their answers; such a row is not one of the first rows.
        """
        if self._job.strict:
            error.hint = error.hint or "leave out --strict to continue after rows that fail"
            return error
        self._count += 1
        self._early += is_early
        ends_early = self._job.ends_if_hopeless and not self._job.retry_failed
        is_first = ends_early and not succeeded and isinstance(error, CallError)
        if is_first and self._count - self._early >= HOPELESS_ROWS:
            return ConfigError(
                f"the first {HOPELESS_ROWS} rows all failed, the last with: {error.what}",
                where=error.where,
                hint=error.hint
                or "try a few rows until they succeed; with -o, then start over with --restart",
            )
        most = self._job.stop_at_error_rate
        rows = max(begun, succeeded + self._count)
        return None if most is None else self._at_rate(error, rows, most)

    def _at_rate(
        self, error: CallError | NoEndpoint, begun: int, most: float
    ) -> TooManyFailures | None:
        """Returns an error if at least the share `most` of the last rows failed.

        begun: the number of rows that have begun, including the one that has just failed.
        """
        lately, rows = self._lately, min(begun, WINDOW_ROWS)
        lately.append(begun)
        while lately[0] <= begun - WINDOW_ROWS:
            lately.popleft()
        if rows < LEAST_ROWS or len(lately) / rows < most:
            return None
        return TooManyFailures(
            f"{len(lately):,} of the last {rows:,} rows failed, and --stop-at-error-rate is "
            f"{most * 100:g} %; the last with: {error.what}",
            where=error.where,
            hint=error.hint or "with -o, the same command resumes with the remaining rows",
        )


def longest_wait(
    load: Load, in_hand: Iterable[Call], most_s: float, now_s: float
) -> WaitTooLong | None:
    """Returns the error that ends a run that would wait too long, or None if the run continues.

    load: the load of the run's backend. in_hand: the calls of the rows that have begun, none of
    them in flight. most_s: the longest allowed wait, in seconds.
    """
    soonest_s = min((call.again_s for call in in_hand), default=-math.inf)
    wait_s = max(load.next_s, soonest_s) - now_s
    if wait_s <= most_s or not math.isfinite(wait_s):
        return None
    is_parked = load.parked_until_s >= load.next_s or soonest_s > load.next_s
    why = "the endpoint asked redline to wait" if is_parked else "a limit is used up"
    return WaitTooLong(
        f"{why}: no call can be sent for {duration(wait_s)}, which is longer than --longest-wait "
        f"({duration(most_s)})",
        wait_s=wait_s,
        hint="with -o, the same command continues the run after that time",
    )
