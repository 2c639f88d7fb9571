"""Reads the facts that the strategy needs about each call."""

from __future__ import annotations

from redline.calls import TokenEstimator
from redline.calls.tokens import prefixes_of
from redline.route.balance import Asked, Figures
from redline.waist import Backend, Call, Outcome, Request, Sink


class CallFacts:
    """Reads the facts of a pool's calls, and learns from answers how many tokens calls use.

    needs: see Strategy.
    """

    def __init__(self, needs: frozenset[str]) -> None:
        self._estimator = TokenEstimator() if "tokens" in needs else None
        self._has_blocks = "blocks" in needs
        self._has_room = "room" in needs

    def of(self, request: Request) -> Asked:
        """Returns the facts of a call."""
        estimator = self._estimator
        return Asked(
            tokens=0.0 if estimator is None else estimator.estimate(request).tokens,
            blocks=prefixes_of(request) if self._has_blocks else (),
            request=request if self._has_room else None,
        )

    async def send(
        self,
        backend: Backend,
        figures: Figures,
        asked: Asked,
        request: Request,
        call: Call,
        sink: Sink | None,
    ) -> Outcome:
        """Sends the call. Until it ends, its tokens count in the endpoint's figures."""
        estimator = self._estimator
        if estimator is None:
            return await backend.send(request, call, sink)
        sending, outcome = estimator.begin(request), None
        figures.tokens += asked.tokens
        try:
            outcome = await backend.send(request, call, sink)
        finally:
            figures.tokens -= asked.tokens
            reply = None if outcome is None else outcome.reply
            took_s = 0.0 if outcome is None else outcome.latency_s
            estimator.end(sending, reply, took_s)
        if reply is not None:
            used = (reply.input_tokens or 0) + (reply.output_tokens or 0)
            # If the server reports no usage, the estimate counts.
            figures.drained(used if used > 0 else asked.tokens, took_s)
        return outcome
