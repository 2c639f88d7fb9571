"""Sends a failed interactive call to another endpoint at once, or returns its failure.

if an attempt failed            the call
with an error that is not       ends with that error
Retryable
before its answer had begun     goes to another working endpoint, at most MOST times, while its
                                deadline and the retry budget allow it; otherwise ends with the
                                failed attempt's error
and no other endpoint works     ends with the failed attempt's error
after its answer had begun      ends
after the endpoints changed     is withdrawn, since its model may be at other endpoints now
"""

from __future__ import annotations

from redline.calls.client import RetryBudget, RetryPolicy
from redline.clock import SYSTEM
from redline.errors import Retryable, Withdrawn
from redline.route import MOVED, Pool
from redline.waist import Around, Call, Outcome, Request, Sink, failed

MOST = 2


class Failover(Around):
    """A backend that sends a failed call again without waiting.

    pool: adds a failed endpoint to `Call.avoid` if another one works. failovers: how many times
    calls were sent again so far.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.pool = pool
        self._budget = RetryBudget(RetryPolicy(max_retries=MOST))
        self._calls = 0
        self.failovers = 0

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self._calls += 1
        call.attempts += 1
        moves = self.pool.moves
        outcome = await self.pool.send(request, call, sink)
        if outcome.error is None:
            return outcome
        for _ in range(MOST):
            if not self._may_repeat(outcome, call):
                break
            tried = outcome.tried
            if moves != self.pool.moves:
                outcome = failed(Withdrawn(MOVED))
            else:
                self.failovers += 1
                call.attempts += 1
                outcome = await self.pool.send(request, call, sink)
            outcome.tried = tried + outcome.tried
        outcome.attempts = call.attempts
        return outcome

    def _may_repeat(self, outcome: Outcome, call: Call) -> bool:
        """Whether to try another endpoint: one works, and deadline and retry budget allow it."""
        if call.committed or not isinstance(outcome.error, Retryable):
            return False
        now_s = SYSTEM.now_s()
        is_elsewhere = outcome.endpoint in call.avoid
        return is_elsewhere and now_s < call.deadline_s and self._budget.take(now_s, self._calls)
