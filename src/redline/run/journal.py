"""Results on disk: appended as they finish, synced in groups, acknowledged only then.

A row's line goes through: queued -> written -> synced -> acknowledged. At most one group is being
written; what arrives meanwhile makes up the next, so a slow disk makes larger groups and not a
longer queue. Appending waits while too much is unwritten.

Files, for an output `labels.jsonl`:
  labels.jsonl          one line a success
  labels.failed.jsonl   one line a failure, made on the first
  labels.redline/       manifest.json (what makes results comparable), lock
A row that stands in both is a success: it was retried, and the run ended before the failure was
taken out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from redline.errors import JournalError
from redline.run.identity import KeySet
from redline.run.record import Entry, Result, failure_line, result_line
from redline.run.results_file import ResultsFile
from redline.run.rewrite import drop_mended
from redline.run.settings import Output

# A group is written this long after its first row: at most so much is done again after a power
# loss. A slower disk makes larger groups by itself.
GROUP_S = 0.05
_GROUP_ROWS = 1000
_MOST_QUEUED_ROWS = 10_000
_MOST_QUEUED_BYTES = 64 * 1024 * 1024


class _Queue:
    """Rows on their way to the disk."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.success_lines: list[bytes] = []
        self.failure_lines: list[bytes] = []
        self.size_bytes = 0

    def add(self, result: Result, output: Output) -> None:
        if result.outcome.is_success:
            line = result_line(result, output)
            self.success_lines.append(line)
        else:
            line = failure_line(result)
            self.failure_lines.append(line)
        self.results.append(result)
        self.size_bytes += len(line)

    @property
    def is_full(self) -> bool:
        return len(self.results) >= _MOST_QUEUED_ROWS or self.size_bytes >= _MOST_QUEUED_BYTES


class Journal:
    """The files of one output; the caller holds its lock.

    Opening blocks while it reads what is there, and needs no event loop. acknowledge: told, on the
    event loop, of each group that has become durable.
    Raises JournalError.
    """

    def __init__(self, output: Output, acknowledge: Callable[[list[Result]], None]) -> None:
        self.output = output
        self.succeeded = KeySet()
        self.failed = KeySet()
        self._acknowledge = acknowledge
        self._queue = _Queue()
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_closing = False
        self._error: JournalError | None = None
        self._writer: asyncio.Task[None] | None = None
        self._failures: ResultsFile | None = None
        self._failure_lines = 0
        self._mended = 0
        # A thread of its own: user functions may fill the default pool.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="redline-journal")
        self._results = ResultsFile(output.path, self._on_success)
        if output.failed_path.exists():
            self._open_failures()
            if self._has_mended():
                self._drop_mended()

    def start(self) -> None:
        """Begins to write; needs a running event loop."""
        self._writer = asyncio.create_task(self._write_groups(), name="redline journal")

    async def append(self, result: Result) -> None:
        """Queues one row; returns before it is durable, and waits while too much is queued.

        Raises JournalError once the file could not be written; nothing is acknowledged then.
        """
        while not self._has_room.is_set() and self._error is None:
            await self._has_room.wait()
        if self._error is not None:
            raise self._error
        self._queue.add(result, self.output)
        self._wake.set()
        if self._queue.is_full:
            self._has_room.clear()

    async def close(self) -> None:
        """Writes and acknowledges what is queued, then closes the files.

        Raises JournalError where that failed.
        """
        self._is_closing = True
        self._wake.set()
        try:
            if self._writer is not None:
                await self._writer
        finally:
            self._disk.shutdown()
            if self._error is None and self._has_mended():
                self._drop_mended()
            self._results.close()
            if self._failures is not None:
                self._failures.close()
        if self._error is not None:
            raise self._error

    @property
    def syncs(self) -> int:
        """Calls of fsync so far."""
        return self._results.syncs + (self._failures.syncs if self._failures else 0)

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if not self._is_closing and len(self._queue.results) < _GROUP_ROWS:
                await asyncio.sleep(GROUP_S)
            self._wake.clear()
            group, self._queue = self._queue, _Queue()
            self._has_room.set()
            if group.results:
                try:
                    await loop.run_in_executor(self._disk, self._write, group)
                except JournalError as error:
                    self._error = error
                    self._has_room.set()
                    return
                self._acknowledge(group.results)
            if self._is_closing and not self._queue.results:
                return

    def _write(self, group: _Queue) -> None:
        if group.success_lines:
            self._results.append(b"".join(group.success_lines))
        if group.failure_lines:
            failures = self._failures or self._open_failures()
            failures.append(b"".join(group.failure_lines))
            self._failure_lines += len(group.failure_lines)
        for result in group.results:
            self._mended += result.outcome.is_success and result.key in self.failed
            (self.succeeded if result.outcome.is_success else self.failed).add(result.key)

    def _open_failures(self) -> ResultsFile:
        self.failed = KeySet()
        self._failure_lines = 0
        self._failures = ResultsFile(self.output.failed_path, self._on_failure)
        return self._failures

    def _has_mended(self) -> bool:
        """Some failures succeeded since, or failed again."""
        return self._mended > 0 or self._failure_lines > len(self.failed)

    def _drop_mended(self) -> None:
        if self._failures is not None:
            self._failures.close()
            self._failures = None
        self._mended = 0
        if drop_mended(self.output.failed_path, self.succeeded):
            self._open_failures()
        else:
            self.failed = KeySet()
            self._failure_lines = 0

    def _on_success(self, entry: Entry, offset: int) -> None:
        if not self.succeeded.add(entry.key):
            raise JournalError(
                f"row {entry.row} stands twice in {self.output.path}",
                where=f"byte {offset:,}",
                hint="take one of the two lines out, or start over with --restart",
            )

    def _on_failure(self, entry: Entry, offset: int) -> None:
        self._failure_lines += 1
        self.failed.add(entry.key)
        self._mended += entry.key in self.succeeded
