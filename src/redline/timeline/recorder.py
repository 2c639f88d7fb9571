"""Records the calls of a backend in a trace."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from redline.calls.tokens import prefixes_of
from redline.clock import SYSTEM, Clock
from redline.process import in_thread
from redline.timeline.records import CallEnded, CallsDropped, Record, RunBegan, Tried
from redline.timeline.writer import TraceFile
from redline.waist import Around, Attempt, Backend, Call, Outcome, Request, Sink

# The interval between writes: a killed process may lose the records of this many seconds.
_GROUP_S = 1.0
# The number of records that are encoded at once: about a millisecond of work.
_GROUP = 300
# If the disk is this many records behind (about 64 MB), further records are dropped.
_MOST = 65_536
_MICROS = 1e6


class Recorder(Around):
    """A backend that records the calls of another one; a thread writes them to `file` every second.

    began: the record of the run's start. If the file can no longer be written, calls continue
    unrecorded, and `failure` is the error. `aclose` writes the remaining records; the caller closes
    the file.
    """

    def __init__(
        self, inner: Backend, file: TraceFile, began: RunBegan, *, clock: Clock = SYSTEM
    ) -> None:
        super().__init__(inner)
        self._file = file
        self._clock = clock
        self._begun_s = clock.now_s()
        self._records: list[Record] = [began]
        self._dropped = 0
        self._writer: asyncio.Task[None] | None = None
        # The write in progress in a thread. A future rather than a task: a task can be cancelled.
        self._writing: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self.failure: OSError | None = None

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
            await super().aclose()
        finally:
            self._closing.set()
            if self._writer is not None:
                await asyncio.wait([self._writer])
            if self._writing is not None:
                await asyncio.wait([self._writing])
            await in_thread(self._write, self._taken())

    def _add(self, arrived_s: float, request: Request, call: Call, outcome: Outcome | None) -> None:
        """Keeps the record of an ended call. outcome: None if it was cancelled."""
        if len(self._records) >= _MOST:
            self._dropped += 1
            return
        kind, reply = "cancelled", None if outcome is None else outcome.reply
        tried: tuple[Attempt, ...] = ()
        if outcome is not None:
            kind = "succeeded" if outcome.error is None else outcome.error.kind
            tried = outcome.tried
        ended = CallEnded(
            arrived_s=self._since(arrived_s),
            done_s=self._since(self._clock.now_s()),
            outcome=kind,
            priority=call.priority,
            input_tokens=None if reply is None else reply.input_tokens,
            output_tokens=None if reply is None else reply.output_tokens,
            blocks=prefixes_of(request),
            tried=tuple(map(self._tried, tried)),
        )
        self._records.append(ended)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_each_second())

    async def _write_each_second(self) -> None:
        while self.failure is None and not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _GROUP_S)
            self._writing = in_thread(self._write, self._taken())
            await asyncio.wait([self._writing])

    def _taken(self) -> list[Record]:
        """Returns the records to be written next, and clears them."""
        taken, self._records = self._records, []
        if self._dropped:
            taken.append(CallsDropped(self._dropped))
            self._dropped = 0
        return taken

    def _write(self, records: list[Record]) -> None:
        """Encodes and writes the records; runs in a thread."""
        if self.failure is not None:
            return
        try:
            for begin in range(0, len(records), _GROUP):
                self._file.write(records[begin : begin + _GROUP])
        except OSError as error:
            self.failure = error

    def _tried(self, tried: Attempt) -> Tried:
        """Returns the record of an attempt, with only the kind of its error, which may be long."""
        marks_s = tried.eligible_s, tried.sent_s, tried.first_byte_s
        queued_s, sent_s, first_byte_s = (s if s is None else self._since(s) for s in marks_s)
        return Tried(
            endpoint=tried.endpoint,
            done_s=self._since(tried.complete_s),
            queued_s=queued_s,
            sent_s=sent_s,
            first_byte_s=first_byte_s,
            error="" if tried.error is None else tried.error.kind,
        )

    def _since(self, at_s: float) -> float:
        # Rounded to microseconds; `round` would take several times as long.
        return int((at_s - self._begun_s) * _MICROS + 0.5) / _MICROS
