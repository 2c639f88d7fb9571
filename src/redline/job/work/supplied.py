"""Adapts a caller's own backend and results, so that one job can use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redline.calls import Call, Outcome, Request, Sink
from redline.clock import SYSTEM, Clock
from redline.errors import JournalError
from redline.job.work.runner import Results
from redline.journal import Brief, Result
from redline.waist import Around, Attempts

# Called with rows that are durable, or that were passed on to the caller.
Acknowledge = Callable[[list[Brief]], None]


@dataclass(eq=False, repr=False)
class SuppliedBackend(Around):
    """Wraps a caller's backend, which several jobs may share, and counts this job's attempts.

    before_write: called before each write of one of this job's requests.
    """

    _before_write: Callable[[], None]
    _attempts: Attempts
    _clock: Clock = SYSTEM

    async def aclose(self) -> None:
        """Does nothing: the owner closes the backend."""

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outer, sent_s = call.on_write, None
        outcome: Outcome | None = None

        def on_write() -> None:
            nonlocal sent_s
            if outer is not None:
                outer()
            self._before_write()
            if sent_s is not None:
                # The request is written again, because its earlier connection failed.
                self._end(sent_s, None, "disconnected")
            if call.attempts > 1 and sent_s is None:
                self._attempts.retried()
            self._attempts.started()
            sent_s = self._clock.now_s()

        call.on_write = on_write
        try:
            outcome = await self._inner.send(request, call, sink)
        finally:
            call.on_write = outer
            if sent_s is not None:
                self._end(sent_s, outcome, "cancelled")
        return outcome

    def _end(self, sent_s: float, outcome: Outcome | None, kind: str) -> None:
        """Counts the end of an attempt. kind: the error's kind, if there is no outcome."""
        now_s, input_tokens, output_tokens = self._clock.now_s(), 0, 0
        error: str | None = kind
        if outcome is not None:
            error = None if outcome.error is None else outcome.error.kind
            if (reply := outcome.reply) is not None:
                input_tokens, output_tokens = reply.input_tokens or 0, reply.output_tokens or 0
        self._attempts.ended(now_s, now_s - sent_s, error, input_tokens, output_tokens)


@dataclass(eq=False, repr=False)
class SuppliedResults:
    """Passes results to a caller's own receiver, and acknowledges each row once it is taken."""

    _results: Results
    _acknowledge: Acknowledge

    def __post_init__(self) -> None:
        self.changes = self._results.changes

    @property
    def failure(self) -> JournalError | None:
        return self._results.failure

    def append(self, result: Result) -> None:
        result.name_outcome()
        self._results.append(result)
        self._acknowledge([result.in_brief()])
