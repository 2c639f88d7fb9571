"""Takes one batch from its creation to its end: checks it, runs its job, and writes its files.

Each step is durable before the next one begins, and may be repeated: after a restart, the batch
continues with the step that its record names. The job's own journal records the completed lines.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from redline.apis import Problem
from redline.clock import Clock
from redline.errors import ConfigError, JournalError, RedlineError
from redline.job import Parts, execute
from redline.job.settings import Job
from redline.job.work import Runner, Tally
from redline.limits import Limits
from redline.observe import AlertSettings
from redline.serve.batches.checking import Checked, check_file
from redline.serve.batches.disk import Disk
from redline.serve.batches.files import Files
from redline.serve.batches.output import Folder, Written
from redline.serve.batches.records import BatchRecord, Outputs
from redline.serve.batches.settings import BatchSettings
from redline.serve.batches.shelf import Shelf, new_id
from redline.serve.batches.turns import Shared, Turns

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class World(msgspec.Struct, frozen=True):
    """The objects that all batches share.

    folder: holds the folders of unfinished batches. checks: lets one file at a time be checked.
    starts: lets batches run in turn, by tenant.
    """

    settings: BatchSettings
    backend: Shared
    files: Files
    shelf: Shelf[BatchRecord]
    folder: Path
    clock: Clock
    disk: Disk
    checks: asyncio.Semaphore
    starts: Turns


class _StoppedError(Exception):
    """The server is shutting down; the batch continues at its next start."""


class Life:
    """An unfinished batch. trouble: the reason why it makes no progress; empty if it does."""

    def __init__(self, record: BatchRecord, world: World) -> None:
        self.record = record
        self._world = world
        self.folder = Folder(world.folder / record.id)
        self._before = (0, 0)
        self._tally: Tally | None = None
        self._runner: Runner | None = None
        self._abort: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._wait: asyncio.Timeout | None = None
        self._is_stopping = False
        self.trouble = ""

    def look(self) -> None:
        """Updates the record's counts of lines from the running job."""
        if self._tally is not None:
            total = self.record.shown.request_counts["total"]
            done, failed = self._before
            tally = self._tally
            self.record.count(total, done + tally.succeeded, failed + tally.failed)

    async def live(self) -> None:
        """Runs the batch to its end, or until `stop`."""
        try:
            await self._live()
        except _StoppedError:
            return
        except FileNotFoundError as error:
            # No line has been sent: the batch's folder, which only this server should touch, is
            # gone.
            self._blame(f"its files cannot be read: {error.strerror}")
            self.record.become("failed", self._wall_s)
            await self._saved()

    async def cancel(self) -> None:
        """Cancels the batch, and returns once this is durable. The batch must not be finalizing."""
        self.record.become("cancelling", self._wall_s)
        self._interrupt()
        await self._save()

    def stop(self) -> None:
        """Stops the batch at a shutdown, without changing its status.

        Calls in flight get `grace_s` seconds to end.
        """
        self._is_stopping = True
        self._interrupt()

    # Steps.

    async def _live(self) -> None:
        record = self.record
        if not record.is_checked and record.status == "validating":
            await self._check()
        if not record.is_over and record.outputs is None:
            ending = await self._ending()
            output_id, error_id = new_id("file-"), new_id("file-")
            outputs = Outputs(ending=ending, output_id=output_id, error_id=error_id)
            record.finalize(outputs, self._wall_s)
            await self._saved()
        if not record.is_over:
            await self._write()
        # Only an unfinished batch needs its folder.
        await asyncio.to_thread(shutil.rmtree, self.folder.path, ignore_errors=True)

    async def _check(self) -> None:
        """Checks the lines of the file; an invalid line fails the batch."""
        record = self.record
        checked = await self._insist(self._checked)
        self._go_on()
        if record.status != "validating":
            # The batch was cancelled meanwhile.
            return
        if checked.problems:
            record.fail(checked.problems, self._wall_s)
        else:
            record.is_checked = True
            record.count(checked.lines, 0, 0)
        await self._saved()

    async def _checked(self) -> Checked:
        record, world = self.record, self._world
        async with world.checks:
            self._go_on()
            return await asyncio.to_thread(
                check_file, self.folder.input, record.shown.endpoint, world.settings.most_lines
            )

    async def _ending(self) -> str:
        """Runs the job and returns the final status of the batch."""
        record, starts = self.record, self._world.starts
        if record.status == "cancelling":
            return "cancelled"
        if not await self._in_time(starts.acquire(record.tenant)):
            return self._cut_short()
        try:
            if record.status == "validating":
                record.become("in_progress", self._wall_s)
                await self._saved()
            return await self._run()
        finally:
            starts.release(record.tenant)

    async def _run(self) -> str:
        pause_s = _FIRST_PAUSE_S
        while not (self._is_interrupted or self._left_s <= 0):
            error = await self._run_job()
            if self.record.shown.errors is not None:
                return "failed"
            if error is not None:
                self.trouble = error.what
                await self._in_time(asyncio.sleep(pause_s))
                self.trouble = ""
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            elif not self._is_cancelled:
                return "completed"
        return self._cut_short()

    async def _run_job(self) -> RedlineError | None:
        """Runs the job until it ends. Returns None if every line has its outcome.

        Otherwise, returns the error that stopped the job.
        """
        world = self._world
        try:
            # An interrupt before the runner exists takes effect when the runner starts.
            self._before = await asyncio.to_thread(self.folder.counts)
            self._tally = Tally()
            parts = Parts(backend=world.backend, tally=self._tally, on_start=self._started)
            report = await execute(self._job(), parts)
        except JournalError as error:
            return error
        except OSError as error:
            return RedlineError(f"its files cannot be used: {error}")
        except ConfigError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or isinstance(cause, FileNotFoundError):
                # The files have been changed since the job wrote them: another attempt would fail.
                self._blame(error.what)
            return error
        finally:
            self._runner = None
            for timer in (self._end, self._abort):
                if timer is not None:
                    timer.cancel()
            self.look()
            self._tally = None
        if report.is_complete:
            return None
        return report.stopped or RedlineError("its job was interrupted")

    def _job(self) -> Job:
        record, settings = self.record, self._world.settings
        return Job(
            rows=self.folder.input,
            output=self.folder.results,
            limits=Limits(
                concurrency=min(max(1, record.shown.request_counts["total"]), settings.in_flight)
            ),
            retry=settings.retry,
            alerts=AlertSettings(rules=()),
            # Every line of a batch gets an outcome, since its client cannot correct the file.
            ends_if_hopeless=False,
            priority=settings.priority,
            tenant=record.tenant,
        )

    def _blame(self, why: str) -> None:
        """Records why the batch cannot continue."""
        self.record.blame([Problem("internal_error", f"The batch cannot continue: {why}.")])

    async def _write(self) -> None:
        """Writes the output and error files, and ends the batch."""
        record, outputs = self.record, self.record.outputs
        assert outputs is not None
        self._go_on()
        written = await self._insist(lambda: self._store(outputs))
        record.count(
            max(record.shown.request_counts["total"], written.completed + written.failed),
            written.completed,
            written.failed,
        )
        ids = (
            outputs.output_id if written.output_bytes else None,
            outputs.error_id if written.error_bytes else None,
        )
        record.end(ids, written.usage, self._wall_s)
        await self._saved()

    async def _store(self, outputs: Outputs) -> Written:
        """Writes both files, and stores those that are not empty."""
        record, folder = self.record, self.folder
        written = await asyncio.to_thread(folder.write, outputs.ending)
        for source, file_id, what, size_bytes in (
            (folder.output, outputs.output_id, "output", written.output_bytes),
            (folder.errors, outputs.error_id, "error", written.error_bytes),
        ):
            if size_bytes:
                await self._world.files.adopt(
                    source,
                    file_id,
                    record.tenant,
                    f"{record.id}_{what}.jsonl",
                    size_bytes,
                    record.output_s,
                )
        return written

    # Interrupts.

    @property
    def _is_cancelled(self) -> bool:
        return self.record.status == "cancelling"

    @property
    def _wall_s(self) -> float:
        return self._world.clock.wall_s()

    @property
    def _left_s(self) -> float:
        """Seconds until the completion window ends."""
        return self.record.shown.expires_at - self._wall_s

    def _cut_short(self) -> str:
        """Returns the final status after an interrupt. Raises _StoppedError at a shutdown."""
        self._go_on()
        return "cancelled" if self._is_cancelled else "expired"

    def _go_on(self) -> None:
        if self._is_stopping:
            raise _StoppedError

    @property
    def _is_interrupted(self) -> bool:
        return self._is_stopping or self._is_cancelled

    async def _in_time(self, waiting: Awaitable[object]) -> bool:
        """Returns whether `waiting` completed before the window ended or an interrupt came."""
        return await self._within(0.0 if self._is_interrupted else self._left_s, waiting)

    async def _within(self, most_s: float, waiting: Awaitable[object]) -> bool:
        """Returns whether `waiting` completed within `most_s` seconds and before an interrupt."""
        self._wait = wait = asyncio.timeout(most_s)
        try:
            async with wait:
                await waiting
        except TimeoutError:
            return False
        finally:
            self._wait = None
        return True

    def _started(self, runner: Runner) -> None:
        self._runner = runner
        if self._is_interrupted:
            self._interrupt()
        # The job's own deadline is not used, since it cancels calls in flight.
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(max(0.0, self._left_s), self._interrupt)

    def _interrupt(self) -> None:
        """Ends a wait, or the job; its calls in flight get time to end, since they are paid for."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0.0)
        if self._runner is not None:
            self._runner.drain()
            if self._abort is not None:
                self._abort.cancel()
            settings = self._world.settings
            self._abort = asyncio.get_running_loop().call_later(
                settings.grace_s if self._is_stopping else settings.cancel_s, self._runner.abort
            )

    async def _save(self) -> None:
        await self._world.disk.whole(self._world.shelf.save(self.record))

    async def _saved(self) -> None:
        await self._insist(self._save)

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeats the step until the disk lets it read and write, and returns its result.

        Raises FileNotFoundError if a file is missing while the job has not ended, because the input
        is then gone for good. Raises _StoppedError at a shutdown.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                result = await step()
                self.trouble = ""
                return result
            except (JournalError, OSError) as error:
                if isinstance(error, FileNotFoundError) and self.record.outputs is None:
                    raise
                self.trouble = f"its files cannot be used: {error}"
            # Retries also after the window has ended, since files remain to be written.
            await self._within(pause_s, asyncio.Event().wait())
            self._go_on()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
