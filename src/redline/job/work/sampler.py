"""Samples a run ten times a second, and makes a window of each second.

A sample reads attributes and takes about 50 microseconds. The windows are written to the job's
timeline in a thread. If a sample is late, the part of the delay that CPU time and writes do not
explain counts as time in which the process was stopped, unless it is shorter than _LEAST_STOP_S. If
the process was stopped for a second or more, the time without samples becomes a window of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from redline.calls.cost import Metered
from redline.clock import SYSTEM, Clock
from redline.job.work.endpoints import Endpoints
from redline.job.work.feed import Feed
from redline.job.work.holding import Moment, holder_of
from redline.job.work.runner import Runner
from redline.job.work.tally import Tally
from redline.journal import Journal
from redline.observe import Setting, expected, setting_of
from redline.process import end_tasks, in_thread
from redline.timeline import (
    NO_USE,
    WINDOW_S,
    Counters,
    Ending,
    Gatherer,
    RunEnd,
    RunFacts,
    Sample,
    TimelineFile,
    Totals,
    Window,
    coarsened,
    rounded,
)

SAMPLE_S = 0.1
# Shorter unexplained delays of a sample do not count: a merely busy event loop is not stopped.
_LEAST_STOP_S = 0.25
# The event loop was blocked if a sample has an unexplained delay of at least this length. Other
# threads may delay the loop by about 5 ms, after which Python passes its lock (the GIL) on.
_LEAST_BLOCK_S = 0.007
# The most windows in memory: half an hour of them, or more once older neighbours are merged. A
# merged window is at most as long as this share of its age.
_MOST_WINDOWS = 1_800
_SHARE = 1 / 600


@dataclass(kw_only=True, eq=False, repr=False)
class Sampler:
    """Samples one run, and makes the run's windows.

    journal: None without an output. metered: None without a budget. gatherer: records calls that
    have ended. file: the job's timeline; None keeps the windows only in memory. is_fixed: the
    limits and the concurrency are configured rather than searched for, so that earlier runs can
    predict the speed of this run. windows: the windows of this run so far, with older ones merged.
    slots: the most calls in flight allowed at the last sample; 0 if there is no bound.
    """

    facts: RunFacts
    gatherer: Gatherer
    runner: Runner
    feed: Feed
    tally: Tally
    endpoints: Endpoints
    journal: Journal | None = None
    metered: Metered | None = None
    file: TimelineFile | None = None
    clock: Clock = SYSTEM
    is_fixed: bool = False

    def __post_init__(self) -> None:
        self.windows: list[Window] = []
        self.slots = 0
        self._thread_time = _ThreadTime()
        self._begun_s = self._closed_s = self._sampled_s = 0.0
        self._counters = Counters()
        self._stopped_s = self._worked_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._totals: Callable[[], Totals] = Totals
        self._on_window: Callable[[Window], None] | None = None
        self._new: list[Window] = []
        self._is_begun = False
        self._setting: Setting | None = None
        self._writing: asyncio.Future[None] | None = None

    @property
    def failure(self) -> str | None:
        """Why the timeline is no longer written; None while it is written, or without a file."""
        return None if self.file is None else self.file.failure

    def start(
        self, totals: Callable[[], Totals], on_window: Callable[[Window], None] | None = None
    ) -> None:
        """Starts sampling; needs a running event loop.

        totals: returns the whole job's current totals. on_window: called with each window when it
        ends.
        """
        self._totals = totals
        self._on_window = on_window
        self._thread_time.open()
        self._begun_s = self._closed_s = self._sampled_s = self.clock.now_s()
        self._counters = self._count()
        self.gatherer.begin(self._begun_s, self._counters)
        if self.is_fixed:
            self._setting = self._stated(self._begun_s)
        self._task = asyncio.create_task(self._sample_on(), name="redline sampler")
        self._write_on()

    async def finish(self, how: Ending, what: str = "") -> None:
        """Ends the sampling and the run's timeline.

        how: how the run ended. what: the error that stopped the run. If `finish` is cancelled, the
        file is closed without a record of the run's end.
        """
        if self._task is None:
            return
        try:
            await end_tasks(self._task)
            now_s = self.clock.now_s()
            self.gatherer.sample(self._state(now_s, 0.0, 0.0))
            self._close(now_s)
            while self._writing is not None:
                await asyncio.wait([self._writing])
        except BaseException:
            self._abandon()
            raise
        finally:
            self._thread_time.close()
        at = self.clock.wall_s()
        end = RunEnd(at_s=rounded(now_s - self._begun_s), how=how, what=what, at=at)
        if self.file is not None:
            await in_thread(self._end, self.file, end)

    def _abandon(self) -> None:
        """Stops writing; the file is closed once no thread writes to it."""
        file, self.file = self.file, None
        if file is not None and self._writing is not None:
            self._writing.add_done_callback(lambda _: file.close())
        elif file is not None:
            file.close()

    def _stated(self, now_s: float) -> Setting:
        """Returns the setting that the run begins with: its slots and limits."""
        endpoints = self.endpoints
        loads, _ = endpoints.loads(now_s)
        slots = endpoints.slots(loads)
        return setting_of(slots, list(endpoints.uses(now_s)), len(self.facts.endpoints))

    async def _sample_on(self) -> None:
        due_s = self.clock.now_s()
        while True:
            due_s = max(due_s + SAMPLE_S, self.clock.now_s())
            await asyncio.sleep(due_s - self.clock.now_s())
            now_s = self.clock.now_s()
            self._sample(now_s, max(0.0, now_s - due_s))

    def _sample(self, now_s: float, late_s: float) -> None:
        blocked_s = self._blocked_s(now_s, late_s)
        stopped_s = self._stopped_for_s(late_s) if late_s >= _LEAST_STOP_S else 0.0
        if stopped_s >= WINDOW_S:
            # Two windows: the sampled time so far, and the time without samples.
            self._close(now_s - late_s)
            self._stopped_s = stopped_s
            self._close(now_s)
            return
        self._stopped_s += stopped_s
        self.gatherer.sample(self._state(now_s, late_s, blocked_s))
        if now_s - self._closed_s >= WINDOW_S - SAMPLE_S / 2:
            self._close(now_s)

    def _blocked_s(self, now_s: float, late_s: float) -> float:
        """Returns the seconds since the last sample if something blocked the loop; 0 otherwise.

        The loop's own work and the writes since the last sample explain a part of `late_s`.
        """
        before_s, worked_s = self._sampled_s, self._worked_s
        self._sampled_s, self._worked_s = now_s, self._thread_time.read_s()
        if self.journal is not None:
            self._worked_s += self.journal.write_s
        is_blocked = late_s - (self._worked_s - worked_s) >= _LEAST_BLOCK_S
        return now_s - before_s if is_blocked else 0.0

    def _stopped_for_s(self, late_s: float) -> float:
        """Returns for how many seconds the process was stopped while a sample was late.

        CPU time and writes since the last window explain the rest of `late_s`. Returns 0 if less
        than _LEAST_STOP_S is left.
        """
        before, now = self._counters, self._count()
        worked_s = max(now.thread_s - before.thread_s, now.cpu_s - before.cpu_s)
        stopped_s = late_s - worked_s - (now.write_s - before.write_s)
        return stopped_s if stopped_s >= _LEAST_STOP_S else 0.0

    def _close(self, now_s: float) -> None:
        """Ends the current window, unless it has no duration."""
        if now_s <= self._closed_s:
            return
        self._closed_s = now_s
        self._counters = self._count()
        endpoints = self.endpoints
        if error := self.tally.take_error():
            self.gatherer.note_error(error)
        stopped_s, self._stopped_s = self._stopped_s, 0.0
        window = self.gatherer.window(
            now_s,
            self._counters,
            self._totals(),
            limits=endpoints.uses(now_s),
            endpoints=endpoints.states(now_s),
            parked_s=endpoints.parked_s(now_s),
            stopped_s=stopped_s,
        )
        self.windows.append(window)
        if len(self.windows) > _MOST_WINDOWS:
            self.windows = coarsened(self.windows, window.end_s, _SHARE)
        if self._on_window is not None:
            self._on_window(window)
        if self.file is not None:
            self._new.append(window)
            self._write_on()

    def _state(self, now_s: float, late_s: float, blocked_s: float) -> Sample:
        """Returns a sample of the run's current state.

        late_s: how many seconds the sample is late. blocked_s: the result of `_blocked_s`.
        """
        runner, feed, load, tally = self.runner, self.feed, self.runner.load, self.tally
        loads, limits = self.endpoints.loads(now_s)
        in_hand = max(0, runner.offered - runner.ended)
        metered, batches = self.metered, tally.batches
        is_starved, is_behind = feed.is_starved, load.is_behind
        moment = Moment(
            now_s=now_s,
            loads=loads,
            queued=self.endpoints.queued,
            is_full_together=self.endpoints.is_full,
            is_starved=is_starved,
            is_over=feed.is_over,
            has_ready=feed.has_ready,
            is_full=is_starved and load.is_full,
            is_behind=is_behind,
            is_ending=runner.is_draining,
            waits_for_budget=metered is not None and metered.waiting > 0,
            has_batches=batches is not None and batches.running > 0,
            handing=runner.handing,
            in_hand=in_hand,
            in_flight=tally.in_flight,
            retrying=tally.retrying,
        )
        held = holder_of(moment)
        self.slots = self.endpoints.slots(loads)
        return Sample(
            held=held,
            limits=limits if held == "limit" else (),
            in_flight=tally.in_flight,
            in_hand=in_hand,
            slots=self.slots,
            waiting=sum(load.waiting - load.queued for load in loads),
            retrying=tally.retrying,
            is_feed_empty=is_starved,
            is_journal_full=is_behind,
            lag_s=late_s,
            blocked_s=blocked_s,
        )

    def _count(self) -> Counters:
        tally, journal, embedded = self.tally, self.journal, self.runner.job.embedded
        return Counters(
            sent=tally.attempts,
            retries=tally.retries,
            failovers=tally.failovers,
            errors=dict(tally.errors),
            calls=self.runner.ended,
            done=tally.succeeded,
            failed=tally.failed,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            thread_s=self._thread_time.read_s(),
            cpu_s=time.process_time(),
            write_s=0.0 if journal is None else journal.write_s,
            sync_s=0.0 if journal is None else journal.sync_s,
            server=(None if embedded is None else embedded.use()) or NO_USE,
        )

    def _write_on(self) -> None:
        """Writes new windows in a thread, unless a thread is already writing."""
        if self.file is None or self._writing is not None:
            return
        new, self._new = self._new, []
        self._writing = in_thread(self._write, self.file, new)
        self._writing.add_done_callback(self._wrote)

    def _wrote(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if self._new:
            self._write_on()

    def _write(self, file: TimelineFile, windows: list[Window]) -> None:
        if not self._is_begun:
            self._is_begun = True
            earlier = file.begin(self.facts)
            if self._setting is not None:
                prediction = expected(earlier, self._setting, self.facts)
                if prediction is not None:
                    file.predict(prediction)
        if windows:
            file.add(windows, self.clock.wall_s())

    def _end(self, file: TimelineFile, end: RunEnd) -> None:
        self._write(file, self._new)
        file.end(end)
        file.close()


class _ThreadTime:
    """Measures how long the event loop's thread ran, or was ready to run but had no CPU."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> None:
        """Starts measuring the calling thread."""
        # Linux reports how long the thread has waited for a CPU; on other systems it is unknown.
        # The file is kept open: if only some readings included the wait, time could run backwards.
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read_s(self) -> float:
        """Returns the seconds for which the thread has run or waited; call it in that thread."""
        waited_ns = 0
        if self._fd >= 0:
            fields = os.pread(self._fd, 100, 0).split()
            waited_ns = int(fields[1]) if len(fields) > 1 else 0
        return time.thread_time() + waited_ns / 1e9

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
