"""A backend that records the calls through it."""

from __future__ import annotations

import asyncio
from typing import Any

from redline.calls.tokens import prefixes_of
from redline.clock import SYSTEM, Clock
from redline.timeline.records import CallEnded, CallsDropped, Record, RunBegan, Tried
from redline.timeline.writer import TraceFile
from redline.waist import Attempt, Backend, Call, Load, Outcome, Request, Sink

# The number of records that a killed process may lose, and that are encoded at once: about a
# millisecond of work.
_GROUP_S = 1.0
_GROUP = 256
# If the disk is this many records behind, further ones are dropped: about 64 MB.
_MOST = 65_536
_MICROS = 1e6

_Ended = tuple[float, float, int, tuple[int, ...], str, Any, Any, tuple[Any, ...]]


class Recorder:
    """A backend that records the calls of another in `file`, in groups and in a thread.

    began: start of the run. If the file can no longer be written, calls continue without it, and
    `failure` states why. `aclose` writes what remains; the owner closes the file.
    """

    def __init__(
        self, inner: Backend, file: TraceFile, began: RunBegan, *, clock: Clock = SYSTEM
    ) -> None:
        self._inner = inner
        self._file = file
        self._clock = clock
        self._begun_s = clock.now_s()
        self._head: list[Record] = [began]
        self._ended: list[_Ended] = []
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self.failure: OSError | None = None

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._inner.load(now_s, request)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        arrived_s = self._clock.now_s()
        outcome = None
        try:
            outcome = await self._inner.send(request, call, sink)
            return outcome
        finally:
            if self.failure is None:
                self._add(arrived_s, request, call, outcome)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            while self._writing is not None:
                await asyncio.wait([self._writing])
            if self._timer is not None:
                self._timer.cancel()
            while self._head or self._ended or self._dropped:
                await asyncio.to_thread(self._write, *self._taken())

    def _add(self, arrived_s: float, request: Request, call: Call, outcome: Outcome | None) -> None:
        """Keeps the record of an ended call. outcome: None if it was cancelled."""
        ended = self._ended
        if len(ended) >= _MOST:
            self._dropped += 1
            return
        kind = "cancelled"
        tried: tuple[Any, ...] = ()
        input_tokens = output_tokens = None
        if outcome is not None:
            error, reply = outcome.error, outcome.reply
            if reply is not None:
                input_tokens, output_tokens = reply.input_tokens, reply.output_tokens
            kind = "succeeded" if error is None else error.kind
            tried = tuple(map(_times, outcome.tried))
        blocks, now_s = prefixes_of(request), self._clock.now_s()
        priority = call.priority
        ended.append((arrived_s, now_s, priority, blocks, kind, input_tokens, output_tokens, tried))
        if len(ended) >= _GROUP:
            self._begin()
        elif self._timer is None and self._writing is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_GROUP_S, self._begin)

    def _begin(self) -> None:
        """Starts a write of the kept records, unless one is in progress."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None and self.failure is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, self._write, *self._taken())
            self._writing.add_done_callback(self._wrote)

    def _wrote(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if self._ended and self._timer is None and self.failure is None:
            wait_s = 0.0 if len(self._ended) >= _GROUP else _GROUP_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin)

    def _taken(self) -> tuple[list[Record], list[_Ended], int]:
        """Hands over the records to be written next."""
        head, self._head = self._head, []
        ended, self._ended = self._ended, []
        dropped, self._dropped = self._dropped, 0
        return head, ended, dropped

    def _write(self, head: list[Record], ended: list[_Ended], dropped: int) -> None:
        """Encodes and writes the records; runs in a thread."""
        if self.failure is not None:
            return
        records = [*head, *map(self._record, ended)]
        if dropped:
            records.append(CallsDropped(dropped))
        try:
            self._file.write(records)
        except OSError as error:
            self.failure = error

    def _record(self, ended: _Ended) -> CallEnded:
        arrived_s, done_s, priority, blocks, kind, input_tokens, output_tokens, tried = ended
        return CallEnded(
            arrived_s=self._since(arrived_s),
            done_s=self._since(done_s),
            outcome=kind,
            priority=priority,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            blocks=blocks,
            tried=tuple(map(self._tried, tried)),
        )

    def _tried(self, times: tuple[Any, ...]) -> Tried:
        endpoint, error, done_s, *marks_s = times
        queued_s, sent_s, first_byte_s = (s if s is None else self._since(s) for s in marks_s)
        return Tried(
            endpoint=endpoint,
            done_s=self._since(done_s),
            queued_s=queued_s,
            sent_s=sent_s,
            first_byte_s=first_byte_s,
            error=error,
        )

    def _since(self, at_s: float) -> float:
        # Rounded to microseconds; `round` would take several times as long.
        return int((at_s - self._begun_s) * _MICROS + 0.5) / _MICROS


def _times(tried: Attempt) -> tuple[Any, ...]:
    """An attempt without its error, which may hold an answer of any length."""
    kind = "" if tried.error is None else tried.error.kind
    times = tried.complete_s, tried.eligible_s, tried.sent_s, tried.first_byte_s
    return tried.endpoint, kind, *times
