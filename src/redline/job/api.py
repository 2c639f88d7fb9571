"""Provides the Python API: `run` and `arun` process all rows; `stream` yields each outcome."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Unpack

import msgspec

from redline.calls import Outcome
from redline.errors import ConfigError
from redline.events import Listener
from redline.job.execution import execute
from redline.job.interrupts import GIVE_UP_S, Interrupts
from redline.job.parts import Parts
from redline.job.settings import Job, Keywords, lists_options, make_job
from redline.job.show import (
    Display,
    NotebookProgress,
    PlainProgress,
    Report,
    TerminalProgress,
    can_redraw,
    is_notebook,
)
from redline.job.work import OnFailure, OnResult, Runner
from redline.journal import Result, json_of
from redline.process import DaemonThreads, is_in_loop, lasting

# As many threads as asyncio's default executor has.
_THREADS = min(32, (os.cpu_count() or 1) + 4)

# How far a run may be ahead of the reader of its stream, in outcomes and in bytes of answers: this
# allows many small answers, or a few of 10 MB.
_STREAM_AHEAD = 256
_STREAM_AHEAD_BYTES = 32 * 1024 * 1024


@lists_options
def run(rows: object, **options: Unpack[Keywords]) -> Report:
    """Sends every row and returns the report. A failed row is an outcome, not an exception.

    rows: a path, a URL such as s3://bucket/rows.jsonl, or an iterable or async iterable of dicts or
    strings, of which "hello" means {"prompt": "hello"}.
    Without `output`, the report holds all outcomes in memory, in input order. Works in scripts and
    notebooks; in other code with a running event loop, it raises ConfigError: use
    `await redline.arun(...)`. In the main thread, the first Ctrl-C lets calls in flight finish;
    the second cancels them. Raises ConfigError or JournalError if the run cannot begin; an error
    that ends the run early is in the report's `stopped`.
    """
    _refuse_to_block()
    report = run_job(_job_of(rows, options), display=_display(options))
    if report.abandoned and sys.stderr is not None:
        # Abandoned work is reported even if no progress is shown.
        lasting(sys.stderr).write(f"abandoned: {'; '.join(report.abandoned)}\n")
    return report


@lists_options
async def arun(rows: object, **options: Unpack[Keywords]) -> Report:
    """Sends every row, as `run` does, in the running event loop: `await redline.arun(...)`.

    Installs no signal handlers. If the awaiting task is cancelled, calls in flight are cancelled
    too. With `output`, finished rows are then on disk, and `arun` with the same arguments resumes
    the job. Raises as `run` does.
    """
    job = _job_of(rows, options)
    return await _run_in_loop(job, Parts(display=_display(options), on_metrics=_print_metrics))


def run_job(
    job: Job,
    *,
    display: Display | None = None,
    on_result: OnResult | None = None,
    on_failure: OnFailure | None = None,
    on_metrics: Callable[[str], None] | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Report:
    """Runs an existing job and returns its report, as `run` does.

    on_result, on_failure: called with the result of each row that has ended, and of each that has
    failed; with on_result, the report has no outcomes. on_metrics: called with the URL of the
    metrics page; None to print the URL on stderr. listeners: notified of the run's events.
    """
    interrupts = Interrupts()
    parts = Parts(
        display=display,
        on_start=interrupts.watch,
        on_result=on_result,
        on_failure=on_failure,
        on_upload=interrupts.watch_upload,
        on_metrics=on_metrics or _print_metrics,
        listeners=listeners,
    )
    return _in_own_loop(job, parts, interrupts)


@lists_options
def stream(rows: object, **options: Unpack[Keywords]) -> OutcomeStream:
    """Returns an async iterator of the outcomes of all rows, in the order of completion.

        async with redline.stream(rows, model="m") as outcomes:
            async for outcome in outcomes:
                ...

    rows and options: as for `run`. A slow consumer slows the run down. With `output`, an outcome is
    yielded once its line is safe on disk. The run ends when the `async with` block is left, for any
    reason; rows without an outcome stay unfinished. Without the block, the run ends at `aclose`, or
    once nothing refers to the stream: leaving a loop early does not end the run while a variable
    refers to the stream. Raises ConfigError for invalid settings. The iteration raises ConfigError
    or JournalError if the run cannot begin, and, after the last outcome, the error that stopped the
    run, if any.
    """
    return OutcomeStream(_job_of(rows, options))


class OutcomeStream:
    """The outcomes of one run, which begins when the first outcome is requested.

    A wait for the next outcome may be cancelled, for instance by `asyncio.wait_for`: the run
    continues, and no outcome is lost.
    """

    def __init__(self, job: Job) -> None:
        self._handover = _Handover(holds=job.output is not None)
        # A generator, because the event loop closes it once nothing refers to the stream.
        self._run = _running(job, self._handover)
        self._has_begun = False
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> OutcomeStream:
        return self

    async def __anext__(self) -> Outcome:
        if self._closing is None:
            if not self._has_begun:
                self._has_begun = True
                await anext(self._run)
            # Not awaited in the generator, which a cancelled wait would end.
            if (outcome := await self._handover.next()) is not None:
                return outcome
        if self._closing is not None:
            await asyncio.shield(self._closing)
        else:
            await anext(self._run)
        raise StopAsyncIteration

    async def __aenter__(self) -> OutcomeStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the run and waits until the run has ended, even if this wait is cancelled once.

        May be called repeatedly, and by any task.
        """
        if self._closing is None:
            # This also ends the loop of another task that waits for the next outcome.
            self._handover.end()
            self._closing = asyncio.create_task(self._close(), name="redline stream's end")
        try:
            # Shielded, because other tasks may be waiting for `_closing` as well.
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            # For instance by a timeout around the block. The output is locked until the run ends.
            await asyncio.wait([self._closing])
            raise

    async def _close(self) -> None:
        await self._run.aclose()


async def _running(job: Job, handover: _Handover) -> AsyncGenerator[None, None]:
    """Begins a run of the job and yields once; closing the generator ends the run.

    The generator is resumed after the last outcome, and then raises the error that stopped the run,
    if any.
    """
    parts = Parts(
        on_start=handover.start,
        on_result=handover.hold if handover.holds else handover.put,
        on_saved=handover.release if handover.holds else None,
        on_metrics=_print_metrics,
    )
    task = asyncio.create_task(execute(job, parts), name="redline stream")
    task.add_done_callback(handover.finish)
    try:
        yield
        report = await task
        if report.stopped is not None:
            raise report.stopped
    finally:
        await handover.leave(task)


class _Handover:
    """Passes outcomes from a run's workers to the reader of a stream.

    holds: whether outcomes are held until their lines are on disk.
    """

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        # In the order of their lines. The journal bounds how much is not on disk yet.
        self._held: deque[Outcome] = deque()
        # Not bounded: an answer is handed over at once, and only then does its worker wait, so that
        # an abort loses no answer.
        self._outcomes: asyncio.Queue[tuple[Outcome, int] | None] = asyncio.Queue()
        self._ahead_bytes = 0
        self._has_room = asyncio.Event()
        self._runner: Runner | None = None
        self._is_finished = False
        self.is_left = False

    def start(self, runner: Runner) -> None:
        """Records the runner as the run begins; aborts the run if the reader has already left."""
        self._runner = runner
        if self.is_left:
            runner.abort()

    def put(self, result: Result) -> Awaitable[None] | None:
        """Hands over a result; returns an awaitable if its worker must wait for the reader.

        Drops the result if the reader has left.
        """
        if self.is_left:
            return None
        self._hand_over(result.outcome)
        return self._room() if self._is_full() else None

    def hold(self, result: Result) -> Awaitable[None] | None:
        """Keeps a result until its line is on disk; apart from that, does the same as `put`."""
        if self.is_left:
            return None
        self._held.append(result.outcome)
        return self._room() if self._is_full() else None

    def release(self, rows: int) -> None:
        """Hands over the oldest `rows` results that are held: their lines are on disk now."""
        if self.is_left:
            return
        for _ in range(rows):
            self._hand_over(self._held.popleft())

    def _hand_over(self, outcome: Outcome) -> None:
        size_bytes = _size_bytes(outcome)
        self._ahead_bytes += size_bytes
        self._outcomes.put_nowait((outcome, size_bytes))

    def _is_full(self) -> bool:
        return self._ahead_bytes >= _STREAM_AHEAD_BYTES or self._outcomes.qsize() > _STREAM_AHEAD

    async def _room(self) -> None:
        while self._is_full() and not self.is_left:
            self._has_room.clear()
            await self._has_room.wait()

    async def next(self) -> Outcome | None:
        """Returns the next outcome; None after the last. A cancelled wait loses nothing."""
        if self._is_finished and self._outcomes.empty():
            return None
        handed = await self._outcomes.get()
        if handed is None:
            # Other readers that are waiting need the None as well.
            self._outcomes.put_nowait(None)
            return None
        outcome, size_bytes = handed
        self._ahead_bytes -= size_bytes
        if not self._is_full():
            self._has_room.set()
        return outcome

    def finish(self, _: object) -> None:
        """Records that the run has ended: a reader that waits for the next outcome gets None."""
        self._is_finished = True
        if self._outcomes.empty():
            self._outcomes.put_nowait(None)

    def end(self) -> None:
        """Ends the stream: drops unread outcomes; a reader that is waiting for one gets None."""
        self.is_left = True
        while not self._outcomes.empty():
            self._outcomes.get_nowait()
        self._outcomes.put_nowait(None)

    async def leave(self, task: asyncio.Task[Report]) -> None:
        """Aborts the run, because the reader has left, and waits until it has ended."""
        self.is_left = True
        self._has_room.set()
        if self._runner is not None:
            self._runner.abort()
        # Workers that wait for room give up now. A finished task is not awaited: during the wait,
        # another reader or `aclose` would find the generator running.
        if not task.done():
            await asyncio.wait([task])


def _size_bytes(outcome: Outcome) -> int:
    reply = outcome.reply
    # The output of a function has no body.
    return 0 if reply is None else len(reply.body) or len(json_of(reply.output) or b"")


def _job_of(rows: object, options: Keywords) -> Job:
    """Returns the job with these options.

    The path of its output is made absolute, because the working folder may change during the run.
    """
    job = make_job(rows, options, os.environ)
    if job.output is None:
        return job
    return msgspec.structs.replace(job, output=job.output.anchored())


async def _run_in_loop(job: Job, parts: Parts) -> Report:
    """Runs the job; the report has the outcomes unless the output or `on_result` receives them."""
    outcomes: list[Outcome] = []
    if job.output is None and parts.on_result is None:

        def keep(result: Result) -> None:
            outcomes.append(result.outcome)

        parts = msgspec.structs.replace(parts, on_result=keep)
    report = await execute(job, parts)
    report.outcomes = sorted(outcomes, key=lambda outcome: outcome.row or 0)
    return report


def _print_metrics(url: str) -> None:
    """Prints the URL of the metrics page, because redline may have chosen its port."""
    if sys.stderr is not None:
        lasting(sys.stderr).write(f"metrics: {url}\n")


def _refuse_to_block() -> None:
    """Raises ConfigError if an event loop is running, except in a notebook's cell.

    A cell is meant to block; a coroutine that blocks holds up all others in its event loop.
    """
    if not is_in_loop():
        return
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if shell is None or shell() is None:
        raise ConfigError(
            "redline.run would block the running event loop until all rows are done",
            hint="use `report = await redline.arun(...)` with the same arguments",
        )


def _in_own_loop(job: Job, parts: Parts, interrupts: Interrupts) -> Report:
    """Runs the job in a new event loop; in a new thread if a loop is running in this thread."""
    if not is_in_loop():
        return _run_loop(job, parts, interrupts)
    thread = DaemonThreads(1, "redline")
    ending = thread.submit(_run_loop, job, parts, interrupts)
    thread.shutdown(wait=False)
    left_s: float | None = None
    while True:
        try:
            return ending.result(left_s)
        except KeyboardInterrupt:
            # A notebook's stop button reaches this thread; the run continues in its own.
            interrupts.interrupt_from_outside()
            left_s = GIVE_UP_S if interrupts.count > 1 else None
        except TimeoutError:
            if ending.done():
                raise
            raise interrupts.given_up() from None


def _run_loop(job: Job, parts: Parts, interrupts: Interrupts) -> Report:
    """Runs the job as asyncio.run would, but waits only briefly for remaining tasks and threads."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        threads = DaemonThreads(_THREADS, "redline-thread")
        loop.set_default_executor(threads)
        main = loop.create_task(_run_in_loop(job, parts))
        with interrupts.handled(loop, main):
            try:
                return loop.run_until_complete(main)
            finally:
                if interrupts.count < 2:
                    _end_tasks(loop)
                    threads.shutdown(wait=False)
                    threads.join(GIVE_UP_S)
    finally:
        asyncio.set_event_loop(None)
        # Abandoned tasks must not be reported when they are garbage-collected.
        loop.set_exception_handler(lambda loop, context: None)
        loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels the tasks that are still running, and waits up to GIVE_UP_S for their end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    pending: set[asyncio.Task[Any]] = set()
    if tasks:
        _, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=GIVE_UP_S))
    if not pending:
        loop.run_until_complete(loop.shutdown_asyncgens())


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns a new uvloop event loop."""
    import uvloop  # takes longer than most other imports

    return uvloop.new_event_loop()


def _display(options: Keywords) -> Display | None:
    """Returns the display for stderr or for a notebook cell; None if no progress is shown.

    Without the option `progress`, progress is shown on a terminal and in a notebook.
    """
    is_shown, is_cell = options.get("progress"), is_notebook()
    if is_shown is None:
        is_shown = can_redraw(sys.stderr) or is_cell
    if not is_shown or sys.stderr is None:
        return None
    if is_cell:
        return NotebookProgress()
    return (TerminalProgress if can_redraw(sys.stderr) else PlainProgress)(sys.stderr)
