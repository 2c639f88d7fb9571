"""Writes results as rows finish, syncs them in groups, and acknowledges each group once synced.

A row's line goes through: taken -> written -> synced -> acknowledged. Lines that are taken in one
turn of the event loop are written together, before any slot sends another request, so if the
process dies at any moment, only the calls in flight and the lines of that turn are lost. The fsync,
which may take long, runs in a thread; at most one is in progress, and lines written meanwhile make
up the next group, so a slow disk makes larger groups. While too much is unsynced, the run begins no
new rows.

Before a group is acknowledged, it is read back from the file with the output's name. If that file
was removed, moved, replaced or truncated, the run must end: lines of calls in flight are still
written to the open file, which gets a name at the end if it has none; only then are they
acknowledged.

Files, for an output `labels.jsonl`:
  labels.jsonl          one line per success
  labels.failed.jsonl   one line per failure, created with the first failure
  labels.redline/       manifest.json (settings that later runs must share), lock,
                        spent (account.py)
A row with a line in both files is a success if both are for the same content: it was retried, and
the failure has not been removed yet.

A named row that has changed since it was answered is sent again. Its old line answers a different
request, so at the end of the run that line is moved to the first free file of the form
labels.redline/labels.outdated-N.jsonl, whether the row has succeeded or failed this time. If a row
has two lines for different contents, the later one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from time import monotonic

from redline.errors import JournalError, Rejected
from redline.journal.flaws import Answers
from redline.journal.identity import KeySet, is_other
from redline.journal.lines import (
    UNWRITABLE,
    Brief,
    Result,
    failure_writer,
    line_writer,
    without_halves,
)
from redline.journal.output import Output
from redline.journal.results_file import ResultsFile, ResultsLost
from redline.journal.rewrite import drop_mended
from redline.journal.sound_lines import Stretch
from redline.process import Changes, DaemonThreads, make_like

# How long a group waits for more rows before it is synced. A power loss then costs the results of
# about this interval and of one sync, and rows do not need a thread switch and an fsync each.
GROUP_S = 0.05
_GROUP_ROWS = 1000
MOST_UNSYNCED_BYTES = 64 * 1024 * 1024
# Lines that wait for the end of a turn are copied once more, to be written together; the saved
# system call costs as much as copying some 100 KB. Longer lines are therefore written at once.
_LARGE_LINE_BYTES = 64 * 1024
# The memory that a row takes until it is synced, estimated high.
KEPT_ROW_BYTES = 512


class _Group:
    """Rows that are synced together. begin_bytes: the size of the files before their lines."""

    def __init__(self, begin_bytes: int) -> None:
        self.rows: list[Brief] = []
        self.begin_bytes = begin_bytes
        self.is_acknowledged = False


class Journal:
    """The files of one output; the caller holds its lock.

    The caller ends with `close`, or with `let_go` if the run has not begun. The constructor blocks
    while it reads existing files, and needs no event loop; it raises JournalError. acknowledge:
    called on the event loop with each group that has become durable.
    """

    def __init__(self, output: Output, acknowledge: Callable[[list[Brief]], None]) -> None:
        self.output = output
        # Rows that had succeeded before this run; rows that had failed or have changed since, and
        # succeeded in this run.
        self.succeeded = KeySet()
        self._made_good = KeySet()
        # The successes of earlier runs that are still in the file.
        self.answers = Answers()
        self.failed = KeySet()
        # Rows whose content has changed since they succeeded.
        self._outdated: set[int] = set()
        self._line_of = line_writer(output)
        self._failure_of = failure_writer(output)
        self._acknowledge = acknowledge
        # Notified when `is_behind` may have changed, when a group was synced, and on a failure.
        self.changes = Changes()
        self._syncing: _Group | None = None
        self._wake = asyncio.Event()
        self._is_closing = False
        self._error: JournalError | None = None
        # The error after which lines are written but no longer acknowledged, and those lines' rows.
        self._lost: ResultsLost | None = None
        self._unplaced: list[Brief] = []
        self._before_sync: Callable[[], None] | None = None
        self.sync_s = 0.0  # total time of the fsyncs, in their thread
        self._is_flush_due = False  # whether a flush is scheduled in this turn of the loop
        self._has_lines = False  # whether there are lines to flush
        self._has_woken = False  # whether the syncer was woken for the current group
        self._syncer: asyncio.Task[None] | None = None
        self._failures: ResultsFile | None = None
        self._has_mended = False  # whether some failures were superseded by a later line
        # A separate thread, because user functions may fill the default pool.
        self._disk = DaemonThreads(1, "redline-journal")
        self._results = ResultsFile(output.path, self._on_successes)
        try:
            # An earlier run died before it had moved its outdated lines out.
            self._drop_outdated(lambda _: True)
            if output.failed_path.exists():
                self._open_failures()
                # A full disk or a death in the first write leaves a file without a line.
                if self._has_mended or not self.failed:
                    self._drop_mended()
        except BaseException:
            self.let_go()
            raise
        # Rows with a failure from an earlier run.
        self.failed_before = self.failed
        # Whether rows may have lines that have to be replaced.
        self._may_replace = len(self.succeeded) + len(self.failed) > 0
        self._group = _Group(self._written_bytes())

    def start(self, before_sync: Callable[[], None] | None = None) -> None:
        """Starts the task that syncs; needs a running event loop.

        before_sync: called in the sync thread before each sync, to make durable what must be
        durable before the results are.
        """
        self._before_sync = before_sync
        self._syncer = asyncio.create_task(self._sync_groups(), name="redline journal")

    @property
    def write_s(self) -> float:
        """The seconds that the event loop has waited for writes."""
        return sum(file.write_s for file in self._files())

    @property
    def is_behind(self) -> bool:
        """Whether too many bytes are unsynced for new rows to begin. Thread-safe."""
        group = self._group
        lines_bytes = self._written_bytes() - group.begin_bytes
        return lines_bytes + len(group.rows) * KEPT_ROW_BYTES >= MOST_UNSYNCED_BYTES

    def has_succeeded(self, key: int, mark: int = 0) -> bool:
        """Whether the row with this key and this mark succeeded in an earlier run.

        A success in this run counts only if the row had a line of an earlier run.
        """
        if key in self._made_good:
            return True
        return key not in self._outdated and self.succeeded.matches(key, mark)

    def outdate(self, key: int, *, has_failed: bool = False) -> None:
        """Marks the success of this key as outdated: the content of its row has changed since.

        has_failed: whether this run has already written a failure for the row's former content.
        """
        self._outdated.add(key)
        self._may_replace = True
        self._has_mended |= has_failed

    @property
    def failure(self) -> JournalError | None:
        """The error after which nothing is acknowledged any more; None if there was none."""
        return self._error or self._lost

    def append(self, result: Result) -> None:
        """Takes one finished row.

        Its line is written by the next `flush`, at the latest in the next turn of the event loop; a
        long line is written at once. A success whose output cannot be written as JSON becomes a
        failure. Raises JournalError if an earlier write has failed, or the failures file cannot be
        created; nothing is acknowledged from then on.
        """
        if self._error is not None:
            raise self._error
        outcome = result.outcome
        if outcome.error is None:
            try:
                line = self._line_of(result)
            except UNWRITABLE:
                line = self._add_unusual(result)
            else:
                self._results.add(line)
        else:
            line = self._add_failure(result)
        if self._may_replace:
            self._note(result)
        if not self._has_lines:
            self._has_lines = True
            if not self._is_flush_due:
                self._is_flush_due = True
                asyncio.get_running_loop().call_soon(self._flush_turn)
        if len(line) >= _LARGE_LINE_BYTES:
            self.flush()
        self._group.rows.append(result.in_brief())

    def flush(self) -> None:
        """Writes the lines taken. Call it before sending; a later `append` raises its error."""
        if self._has_lines:
            self._has_lines = False
            try:
                self._results.flush()
                if self._failures is not None:
                    self._failures.flush()
            except JournalError as error:
                self._fail(error)

    def _flush_turn(self) -> None:
        """Writes the lines of this turn of the loop, unless a send has already flushed them."""
        self._is_flush_due = False
        if self._has_lines:
            self.flush()
        if not self._has_woken:
            self._has_woken = True
            self._wake.set()

    async def saved(self) -> None:
        """Waits until all rows that were taken are acknowledged. Raises JournalError."""
        last = self._group if self._group.rows else self._syncing
        if last is not None:
            await self.changes.wait_for(lambda: last.is_acknowledged or self.failure is not None)
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Syncs and acknowledges all lines taken, then closes the files.

        Before it closes the files, unless an error has occurred, it removes failures of rows that
        have succeeded since, and moves outdated lines to another file. Raises JournalError if any
        write or sync has failed, or if a file was removed or changed by another program.
        """
        self._is_closing = True
        self._wake.set()
        is_synced = False
        try:
            if self._syncer is not None:
                await self._syncer
            is_synced = True
        finally:
            self._disk.shutdown()
            try:
                # Failures may be removed only once the successes that replace them are durable.
                # After a cancellation they stay, and the next run removes them.
                if is_synced and self.failure is None:
                    if self._has_mended:
                        self._drop_mended()
                    self._drop_outdated(self._made_good.__contains__)
            except JournalError as error:
                self._fail(error)
            finally:
                self.let_go()
        if self.failure is not None:
            raise self.failure

    def let_go(self) -> None:
        """Closes the files as they are, without a last sync. `append` then raises JournalError."""
        self._line_of = self._failure_of = _refuse
        self._has_lines = False
        self._results.close()
        if self._failures is not None:
            self._failures.close()

    def _fail(self, error: JournalError) -> None:
        self._error = self._error or error
        self._wake.set()
        self.changes.notify()

    def _note(self, result: Result) -> None:
        """Records that a row may also have a line of an earlier run."""
        key = result.key
        has_failed = key in self.failed
        if self.succeeded.has_marks and is_other(result.mark, self.succeeded.mark_of(key)):
            self._outdated.add(key)
        self._has_mended |= has_failed
        if result.outcome.is_success and (has_failed or key in self._outdated):
            # Other successes need not be remembered: this run does not read their rows again.
            self._made_good.add(key)

    def _add_unusual(self, result: Result) -> bytes:
        """Adds a success with halves of surrogate pairs, or a failure if its output is not JSON."""
        try:
            line = self._line_of(without_halves(result))
        except UNWRITABLE as error:
            outcome = result.outcome
            outcome.status, outcome.reply = "rejected", None
            outcome.error = Rejected(f"the output cannot be written as JSON: {error}")
            return self._add_failure(result)
        self._results.add(line)
        return line

    def _add_failure(self, result: Result) -> bytes:
        """Adds a failure to the failures file; returns its line. Raises JournalError."""
        line = self._failure_of(result)
        try:
            (self._failures or self._open_failures()).add(line)
        except JournalError as error:
            self._fail(error)
            raise
        return line

    async def _sync_groups(self) -> None:
        while True:
            await self._wake.wait()
            if not self._is_closing and len(self._group.rows) < _GROUP_ROWS:
                await asyncio.sleep(GROUP_S)
            self._wake.clear()
            self.flush()
            was_behind = self.is_behind
            self._has_woken = False
            group, self._group = self._group, _Group(self._written_bytes())
            if group.rows:
                self._syncing = group
            if was_behind:
                self.changes.notify()
            if self._error is not None:
                return
            try:
                if group.rows:
                    await self._sync_group(group)
                if self._is_closing and not self._group.rows:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._disk, self._check_end)
                    self._acknowledge(self._unplaced)
                    return
            except JournalError as error:
                self._fail(error)
                return

    async def _sync_group(self, group: _Group) -> None:
        """Syncs the group, and acknowledges it if the file still has its name and all lines."""
        loop = asyncio.get_running_loop()
        for file in self._files():
            file.end_group()
        try:
            await loop.run_in_executor(self._disk, self._sync)
        except ResultsLost as lost:
            self._lost = lost
        if self._lost is None:
            self._acknowledge(group.rows)
            group.is_acknowledged = True
        else:
            self._unplaced += group.rows
        self.changes.notify()

    def _sync(self) -> None:
        begun_s = monotonic()
        if self._before_sync is not None:
            self._before_sync()
        files = self._files()
        for file in files:
            file.sync()
        self.sync_s += monotonic() - begun_s
        if self._lost is None:
            for file in files:
                file.check()

    def _check_end(self) -> None:
        """Checks the finished files, and rescues lost ones. Raises JournalError if that fails."""
        lost: list[ResultsFile] = []
        for file in self._files():
            try:
                file.check_end()
            except ResultsLost as error:
                self._lost = self._lost or error
                lost.append(file)
        if self._lost is not None:
            for file in lost or [self._results]:
                file.rescue(self._lost)

    def _written_bytes(self) -> int:
        """Returns the total size of the lines in the files, in bytes."""
        failures = self._failures
        return self._results.size_bytes + (0 if failures is None else failures.size_bytes)

    def _files(self) -> list[ResultsFile]:
        return [self._results] if self._failures is None else [self._results, self._failures]

    def _open_failures(self) -> ResultsFile:
        self.failed = KeySet()
        make_like(self.output.failed_path, self.output.path)
        self._failures = ResultsFile(self.output.failed_path, self._on_failures)
        return self._failures

    def _drop_mended(self) -> None:
        if self._failures is not None:
            self._failures.close()
            self._failures = None
        self._has_mended = False
        failed, self.failed = self.failed, KeySet()

        def has_succeeded(key: int) -> bool:
            return self.has_succeeded(key, failed.mark_of(key))

        if drop_mended(self.output.failed_path, has_succeeded):
            self._open_failures()

    def _drop_outdated(self, keeps_last: Callable[[int], bool]) -> None:
        if self._outdated:
            aside = self.output.state_path / self.output.path.name
            moved = self._results.drop(self._outdated, keeps_last, aside)
            if moved is not None:
                self.answers.take_out(moved)
            self._outdated.clear()

    def _on_successes(self, found: Stretch) -> None:
        repeated, changed = self.succeeded.add_marked(found.keys, found.marks())
        self.succeeded.foresee(found.share)
        self.answers.add(found.lines)
        self._outdated.update(found.keys[place] for place in changed)
        for place in repeated:
            offset = next(islice(found.offsets(), place, None))
            raise JournalError(
                f"row {found.row(place)} occurs twice in {self.output.path}",
                where=f"byte {offset:,}",
                hint="`redline repair` on the results file moves the second one out; or start over "
                "with --restart",
            )

    def _on_failures(self, found: Stretch) -> None:
        marks = found.marks()
        repeated = self.failed.add_each(found.keys)
        self.failed.mark(found.keys, marks)
        self._has_mended |= bool(repeated) or any(map(self.has_succeeded, found.keys, marks))


def _refuse(result: Result) -> bytes:
    """Raises JournalError: the row finished after the run had ended."""
    raise JournalError("the results are closed: the run has ended")


class NotKept:
    """Replaces the journal in a run without an output: acknowledges each row at once."""

    failure: JournalError | None = None

    def __init__(self, acknowledge: Callable[[list[Brief]], None]) -> None:
        self.changes = Changes()
        self._acknowledge = acknowledge

    def append(self, result: Result) -> None:
        """Acknowledges the row."""
        self._acknowledge([result.in_brief()])
