"""The simulated provider's files and batches: plain objects that take the time as an argument.

  status       meaning                                              turns to
  validating   it was just created                                  failed, or as in_progress
  in_progress  its lines are answered, each after its own latency   any but validating
  cancelling   a client cancelled it                                cancelled
  failed       its file was refused, or there is no room for its
               results; no line is answered
  completed    every line has its answer or its error
  expired      the window is over; lines without an answer by then have the error batch_expired
  cancelled    as expired, with the error batch_cancelled

Nothing runs in the background: the state of a batch is computed when a client queries it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from random import Random

import msgspec

from redline.apis import (
    ENDED,
    MOST_FILE_BYTES,
    UNFINISHED,
    WINDOW,
    BatchObject,
    BatchRequest,
    FileObject,
    Problem,
    counts_object,
    deleted_object,
    errors_object,
    page_object,
    response_usage,
)
from redline.sim.answers import ENDPOINTS, Answers, BadCall, Object, decode
from redline.sim.batches.lines import BatchLine, LineReader, answered, unanswered
from redline.sim.faults import Faults
from redline.sim.settings import SimSettings

# All files together; the server keeps them in memory.
_MOST_BYTES = 1024 * 1024 * 1024
# Beyond this, the oldest that have ended are forgotten.
_MOST_BATCHES = 10_000
_MOST_LISTED = 100
_BYTES_PER_TOKEN = 4
_TIMES = ("in_progress", "completed", "failed", "expired", "cancelling", "cancelled")


_CREATION = msgspec.json.Decoder(BatchRequest)


class StoredFile(msgspec.Struct):
    """A file, uploaded or written by a batch. created_s: wall time."""

    id: str
    name: str
    purpose: str
    data: bytes
    created_s: int

    def shown(self) -> Object:
        """Returns the file as the API shows it."""
        shown: Object = msgspec.to_builtins(
            FileObject(
                id=self.id,
                bytes=len(self.data),
                created_at=self.created_s,
                filename=self.name,
                purpose=self.purpose,
            )
        )
        return shown


class _Batch(msgspec.Struct):
    """A batch. created_s: monotonic. ends_s: when the last line has its answer; monotonic.

    lines: those to answer; empty once it has ended, is being cancelled, or has failed. times: wall
    times, by their names in the API. tokens: those of its lines. usage: input and output tokens.
    """

    id: str
    asked: BatchRequest
    lines: list[BatchLine]
    errors: list[Problem]
    created_s: float
    times: dict[str, int]
    status: str = "validating"
    ends_s: float = 0.0
    tokens: int = 0
    counts: dict[str, int] = {}
    usage: tuple[int, int] = (0, 0)
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status in ENDED

    def become(self, status: str, wall_s: float) -> None:
        self.status = status
        self.times[f"{status}_at"] = int(wall_s)

    def shown(self) -> Object:
        """Returns the batch as the API shows it."""
        asked = self.asked
        times: Object = {f"{name}_at": self.times.get(f"{name}_at") for name in _TIMES}
        shown: Object = msgspec.to_builtins(
            BatchObject(
                id=self.id,
                endpoint=asked.endpoint,
                errors=errors_object(self.errors) if self.status == "failed" else None,
                input_file_id=asked.input_file_id,
                completion_window=asked.completion_window,
                status=self.status,
                output_file_id=self.output_file_id if self.is_over else None,
                error_file_id=self.error_file_id if self.is_over else None,
                created_at=self.times["created_at"],
                expires_at=self.times["expires_at"],
                request_counts=self.counts or counts_object(len(self.lines)),
                metadata=asked.metadata,
                usage=response_usage(*self.usage),
                **times,
            )
        )
        return shown


class Batches:
    """Keeps files, processes batches as the settings state, and counts the outcomes of lines."""

    def __init__(self, settings: SimSettings, answers: Answers) -> None:
        self._settings = settings
        self._answers = answers
        self._reader = LineReader(settings)
        # A generator of its own, so that the order of results does not change the draws for lines.
        self._order_rng = Random(f"{settings.seed} batch order")
        self._files: dict[str, StoredFile] = {}
        self._size_bytes = 0
        self._batches: dict[str, _Batch] = {}
        self._made: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()

    def disturb(self, faults: Faults) -> None:
        """Injects these faults into the lines of new batches."""
        self._reader.disturb(faults)

    def as_dict(self, now_s: float, wall_s: float) -> dict[str, int]:
        """Returns counts for GET /sim/stats.

        files: uploaded ones. created, cancels: batches. lines: those of all batches that did not
        fail, which are the sum of `answered`, `failed`, `unfinished` (by an expiry or a cancel) and
        `waiting`.
        """
        for batch in self._batches.values():
            self._look(batch, now_s, wall_s)
        names = ("files", "created", "cancels", "lines", "answered", "failed", "unfinished")
        counts = {name: self._made[name] for name in names}
        waiting = counts["lines"] - sum(counts[name] for name in names[4:])
        return {**counts, "waiting": waiting}

    def upload(self, name: str, purpose: str, data: bytes, wall_s: float) -> Object:
        """Stores a file and returns it. Raises BadCall if it cannot be stored."""
        if purpose != "batch":
            raise BadCall(f"The purpose must be 'batch' here, not '{purpose}'.")
        if not data:
            raise BadCall("The file is empty.")
        if len(data) > MOST_FILE_BYTES:
            raise BadCall(f"The file is larger than {MOST_FILE_BYTES} bytes.", status=413)
        self._made["files"] += 1
        return self._store(name, purpose, data, wall_s).shown()

    def file(self, file_id: str) -> StoredFile:
        """Returns a file. Raises BadCall if it does not exist."""
        if file_id not in self._files:
            raise BadCall(f"No such File object: {file_id}", status=404)
        return self._files[file_id]

    def files(self) -> Object:
        """Returns all files, the newest first."""
        newest = [*reversed(self._files.values())]
        shown = [file.shown() for file in newest]
        return page_object(shown, [file.id for file in newest], has_more=False)

    def delete(self, file_id: str) -> Object:
        """Deletes a file. Raises BadCall if it does not exist."""
        file = self.file(file_id)
        del self._files[file_id]
        self._size_bytes -= len(file.data)
        return deleted_object(file_id)

    def create(self, raw: bytes, now_s: float, wall_s: float) -> Object:
        """Creates a batch and returns it. Raises BadCall for an invalid body or a missing file."""
        asked = decode(_CREATION, raw)
        if asked.endpoint not in ENDPOINTS:
            raise BadCall(f"The endpoint is not one for batches: {asked.endpoint}")
        if asked.completion_window != WINDOW:
            raise BadCall(f"The completion_window must be {WINDOW}.")
        lines, errors = self._reader.read(self.file(asked.input_file_id).data, asked.endpoint)
        tokens = sum(len(line.body) // _BYTES_PER_TOKEN for line in lines)
        running = sum(each.tokens for each in self._batches.values() if not each.is_over)
        most = self._settings.batch_tokens
        if most is not None and running + tokens > most:
            text = f"Enqueued token limit reached. Limit: {most} enqueued tokens."
            lines, errors = [], [Problem("token_limit_exceeded", text)]
        window_s = self._settings.batch_window_s
        times = {"created_at": int(wall_s), "expires_at": int(wall_s + window_s)}
        batch = _Batch(self._id("batch"), asked, lines, errors, now_s, times)
        batch.ends_s = now_s + max((line.latency_s for line in lines), default=0.0)
        batch.tokens = tokens if lines else 0
        self._batches[batch.id] = batch
        self._made["created"] += 1
        self._made["lines"] += len(lines)
        self._forget()
        return batch.shown()

    def look(self, batch_id: str, now_s: float, wall_s: float) -> Object:
        """Returns the batch in its present state. Raises BadCall if it does not exist."""
        batch = self._batch(batch_id)
        self._look(batch, now_s, wall_s)
        return batch.shown()

    def cancel(self, batch_id: str, now_s: float, wall_s: float) -> Object:
        """Cancels a batch, which ends at the next query; at once if its results have no room.

        Raises BadCall if it has ended or does not exist.
        """
        batch = self._batch(batch_id)
        self._look(batch, now_s, wall_s)
        if batch.is_over:
            raise BadCall(f"A batch with the status '{batch.status}' cannot be cancelled.")
        if batch.status != "cancelling":
            self._made["cancels"] += 1
            if self._finish(batch, now_s, "cancelled", wall_s):
                batch.become("cancelling", wall_s)
        return batch.shown()

    def listed(self, query: Mapping[str, str], now_s: float, wall_s: float) -> Object:
        """Returns a page of batches, newest first, by `limit` and `after`. Raises BadCall."""
        text = query.get("limit", "20")
        is_whole = text.isascii() and text.isdigit() and len(text) < 10
        if not (is_whole and 1 <= int(text) <= _MOST_LISTED):
            raise BadCall(f"The limit must be 1 to {_MOST_LISTED}, not '{text}'.")
        newest = list(reversed(self._batches))
        if (after := query.get("after")) is not None:
            newest = newest[newest.index(self._batch(after).id) + 1 :]
        page = [self.look(batch_id, now_s, wall_s) for batch_id in newest[: int(text)]]
        names = [batch["id"] for batch in page]
        return page_object(page, names, has_more=len(newest) > len(page))

    def _store(self, name: str, purpose: str, data: bytes, wall_s: float) -> StoredFile:
        if self._size_bytes + len(data) > _MOST_BYTES:
            raise BadCall(f"All files together are larger than {_MOST_BYTES} bytes.", status=413)
        file = StoredFile(self._id("file"), name, purpose, data, int(wall_s))
        self._files[file.id] = file
        self._size_bytes += len(data)
        return file

    def _id(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}-sim{self._numbers[kind]}"

    def _batch(self, batch_id: str) -> _Batch:
        if batch_id not in self._batches:
            raise BadCall(f"No such batch: {batch_id}", status=404)
        return self._batches[batch_id]

    def _forget(self) -> None:
        surplus = max(0, len(self._batches) - _MOST_BATCHES)
        over = (batch_id for batch_id, batch in self._batches.items() if batch.is_over)
        for batch_id in list(islice(over, surplus)):
            del self._batches[batch_id]

    def _look(self, batch: _Batch, now_s: float, wall_s: float) -> None:
        """Brings the batch's state up to date."""
        if batch.is_over:
            return
        expires_s = batch.created_s + self._settings.batch_window_s
        if batch.status == "cancelling":
            batch.become("cancelled", wall_s)
        elif not batch.lines:
            batch.become("failed", wall_s)
        elif now_s >= min(batch.ends_s, expires_s):
            status = "completed" if batch.ends_s <= expires_s else "expired"
            if self._finish(batch, min(batch.ends_s, expires_s), status, wall_s):
                batch.become(status, wall_s)
        else:
            if batch.status == "validating":
                batch.become("in_progress", wall_s)
            batch.counts = _so_far(batch, now_s)

    def _finish(self, batch: _Batch, at_s: float, status: str, wall_s: float) -> bool:
        """Writes the results available at `at_s`, and errors for the other lines.

        Returns False if there is no room for these files; the batch has then failed.
        """
        results: list[bytes] = []
        errors: list[bytes] = []
        made: Counter[str] = Counter()
        read = said = 0
        for line in batch.lines:
            self._numbers["request"] += 1
            number = self._numbers["request"]
            if batch.created_s + line.latency_s > at_s:
                errors.append(unanswered(line, number, *UNFINISHED[status]))
                made["unfinished"] += 1
                continue
            code, result, tokens = answered(
                line, batch.asked.endpoint, self._answers, number, int(wall_s)
            )
            (results if code == 200 else errors).append(result)
            made["answered" if code == 200 else "failed"] += 1
            read, said = read + tokens[0], said + tokens[1]
        total = len(batch.lines)
        batch.lines = []
        if self._size_bytes + sum(map(len, results)) + sum(map(len, errors)) > _MOST_BYTES:
            text = f"With its results all files together are larger than {_MOST_BYTES} bytes."
            batch.errors, batch.counts = [Problem("storage_limit_exceeded", text)], {}
            batch.become("failed", wall_s)
            self._made["lines"] -= total
            return False
        self._made.update(made)
        batch.counts = counts_object(total, len(results), len(errors))
        batch.usage = (read, said)
        # Providers promise no order.
        self._order_rng.shuffle(results)
        batch.output_file_id = self._written(batch, "output", results, wall_s)
        batch.error_file_id = self._written(batch, "error", errors, wall_s)
        return True

    def _written(self, batch: _Batch, what: str, lines: list[bytes], wall_s: float) -> str | None:
        if not lines:
            return None
        name = f"{batch.id}_{what}.jsonl"
        return self._store(name, "batch_output", b"".join(lines), wall_s).id


def _so_far(batch: _Batch, now_s: float) -> dict[str, int]:
    """Counts the lines of a running batch that have their answer or injected fault."""
    due = [line for line in batch.lines if batch.created_s + line.latency_s <= now_s]
    failed = sum(line.fault is not None for line in due)
    return counts_object(len(batch.lines), len(due) - failed, failed)
