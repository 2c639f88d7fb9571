"""Keeps the simulated provider's files and batches, without a clock: the time is an argument.

  status       meaning                                              next status
  validating   it was just created                                  any other but cancelled
  in_progress  its lines are answered, each after its own latency   any but validating, cancelled
  cancelling   a client cancelled it                                cancelled
  failed       its file was refused, or there is no room for its
               results; no line is answered
  completed    every line has its answer or its error
  expired      the window is over; lines without an answer by then have the error batch_expired
  cancelled    like expired, but with the error batch_cancelled

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
from redline.sim.settings import SimSettings

# The size of all files together; the server keeps them in memory.
_MOST_BYTES = 1024 * 1024 * 1024
# Beyond this number, the oldest batches that have ended are forgotten.
_MOST_BATCHES = 10_000
_MOST_LISTED = 100
_BYTES_PER_TOKEN = 4

_CREATION = msgspec.json.Decoder(BatchRequest)


class StoredFile(msgspec.Struct):
    """A file, uploaded or written by a batch. shown: the object that the API returns for it."""

    shown: FileObject
    data: bytes


class _Batch(msgspec.Struct):
    """A batch. shown: the object that the API returns for it.

    lines: the lines to answer; empty once the batch has ended, is being cancelled, or has failed.
    problems: the reasons why it fails. created_s: monotonic. ends_s: when the last line has its
    answer; monotonic. tokens: those of all lines. files: the ids of the output file and the error
    file, which are shown once the batch has ended; None for a file without lines.
    """

    shown: BatchObject
    lines: list[BatchLine]
    problems: list[Problem]
    created_s: float
    ends_s: float
    tokens: int
    files: tuple[str | None, str | None] = (None, None)

    @property
    def is_over(self) -> bool:
        return self.shown.status in ENDED

    def become(self, status: str, wall_s: float) -> None:
        times = {f"{status}_at": int(wall_s)}
        self.shown = msgspec.structs.replace(self.shown, status=status, **times)
        if status == "failed":
            self.shown.errors = errors_object(self.problems)
        elif self.is_over:
            self.shown.output_file_id, self.shown.error_file_id = self.files


class Batches:
    """Keeps files, processes batches according to the settings, and counts outcomes of lines."""

    def __init__(self, settings: SimSettings, answers: Answers) -> None:
        self._settings = settings
        self._answers = answers
        self.reader = LineReader(settings)
        # A separate generator, so that shuffling results does not change the draws for lines.
        self._order_rng = Random(f"{settings.seed} batch order")
        self._files: dict[str, StoredFile] = {}
        self._size_bytes = 0
        self._batches: dict[str, _Batch] = {}
        self._made: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()

    def as_dict(self, now_s: float, wall_s: float) -> dict[str, int]:
        """Returns counts for GET /sim/stats.

        files: uploaded files. created: batches created. cancels: batches cancelled. lines: those of
        all batches that did not fail, the sum of `answered`, `failed`, `unfinished` (because
        the batch expired or was cancelled) and `waiting`.
        """
        for batch_id in self._batches:
            self._looked(batch_id, now_s, wall_s)
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
        return _as_object(self._store(name, purpose, data, wall_s).shown)

    def file(self, file_id: str) -> StoredFile:
        """Returns a file. Raises BadCall if it does not exist."""
        if file_id not in self._files:
            raise BadCall(f"No such File object: {file_id}", status=404)
        return self._files[file_id]

    def files(self) -> Object:
        """Returns all files, the newest first."""
        shown = [_as_object(file.shown) for file in reversed(self._files.values())]
        return page_object(shown, list(reversed(self._files)), has_more=False)

    def delete(self, file_id: str) -> Object:
        """Deletes a file. Raises BadCall if it does not exist."""
        self._size_bytes -= len(self.file(file_id).data)
        del self._files[file_id]
        return deleted_object(file_id)

    def create(self, raw: bytes, now_s: float, wall_s: float) -> Object:
        """Creates a batch and returns it. Raises BadCall for an invalid body or a missing file."""
        asked = decode(_CREATION, raw)
        if asked.endpoint not in ENDPOINTS:
            raise BadCall(f"Batches do not support this endpoint: {asked.endpoint}")
        if asked.completion_window != WINDOW:
            raise BadCall(f"The completion_window must be {WINDOW}.")
        lines, errors = self.reader.read(self.file(asked.input_file_id).data, asked.endpoint)
        tokens = sum(len(line.body) // _BYTES_PER_TOKEN for line in lines)
        running = sum(each.tokens for each in self._batches.values() if not each.is_over)
        most = self._settings.batch_tokens
        if most is not None and running + tokens > most:
            text = f"Enqueued token limit reached. Limit: {most} enqueued tokens."
            lines, errors = [], [Problem("token_limit_exceeded", text)]
        shown = BatchObject(
            id=self._id("batch"),
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            completion_window=asked.completion_window,
            created_at=int(wall_s),
            expires_at=int(wall_s + self._settings.batch_window_s),
            request_counts=counts_object(len(lines)),
            metadata=asked.metadata,
            usage=response_usage(0, 0),
        )
        ends_s = now_s + max((line.latency_s for line in lines), default=0.0)
        batch = _Batch(shown, lines, errors, now_s, ends_s, tokens if lines else 0)
        self._batches[shown.id] = batch
        self._made["created"] += 1
        self._made["lines"] += len(lines)
        self._forget()
        return _as_object(batch.shown)

    def look(self, batch_id: str, now_s: float, wall_s: float) -> Object:
        """Returns the batch in its current state. Raises BadCall if it does not exist."""
        return _as_object(self._looked(batch_id, now_s, wall_s).shown)

    def cancel(self, batch_id: str, now_s: float, wall_s: float) -> Object:
        """Cancels a batch: it ends at the next query, or fails at once if its results do not fit.

        Raises BadCall if the batch has ended or does not exist.
        """
        batch = self._looked(batch_id, now_s, wall_s)
        if batch.is_over:
            raise BadCall(f"Cannot cancel a batch with status '{batch.shown.status}'.", status=409)
        if batch.shown.status != "cancelling":
            self._made["cancels"] += 1
            if self._finish(batch, now_s, "cancelled", wall_s):
                batch.become("cancelling", wall_s)
        return _as_object(batch.shown)

    def listed(self, query: Mapping[str, str], now_s: float, wall_s: float) -> Object:
        """Returns a page of batches, newest first, by `limit` and `after`.

        Raises BadCall for an invalid limit, or an `after` that is not the id of a batch.
        """
        text = query.get("limit", "20")
        is_whole = text.isascii() and text.isdigit() and len(text) < 10
        if not (is_whole and 1 <= int(text) <= _MOST_LISTED):
            raise BadCall(f"The limit must be 1 to {_MOST_LISTED}, not '{text}'.")
        newest = list(reversed(self._batches))
        if (after := query.get("after")) is not None:
            self._batch(after)
            newest = newest[newest.index(after) + 1 :]
        names = newest[: int(text)]
        page = [self.look(batch_id, now_s, wall_s) for batch_id in names]
        return page_object(page, names, has_more=len(newest) > len(page))

    def _store(self, name: str, purpose: str, data: bytes, wall_s: float) -> StoredFile:
        if self._size_bytes + len(data) > _MOST_BYTES:
            raise BadCall(f"All files together would exceed {_MOST_BYTES} bytes.", status=413)
        shown = FileObject(
            id=self._id("file"),
            bytes=len(data),
            created_at=int(wall_s),
            filename=name,
            purpose=purpose,
        )
        file = self._files[shown.id] = StoredFile(shown, data)
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

    def _looked(self, batch_id: str, now_s: float, wall_s: float) -> _Batch:
        """Returns the batch, updated to its current state."""
        batch = self._batch(batch_id)
        if batch.is_over:
            return batch
        expires_s = batch.created_s + self._settings.batch_window_s
        if batch.shown.status == "cancelling":
            batch.become("cancelled", wall_s)
        elif not batch.lines:
            batch.become("failed", wall_s)
        elif now_s >= min(batch.ends_s, expires_s):
            status = "completed" if batch.ends_s <= expires_s else "expired"
            if self._finish(batch, min(batch.ends_s, expires_s), status, wall_s):
                batch.become(status, wall_s)
        else:
            if batch.shown.status == "validating":
                batch.become("in_progress", wall_s)
            due = [line for line in batch.lines if batch.created_s + line.latency_s <= now_s]
            failed = sum(line.fault is not None for line in due)
            counts = counts_object(len(batch.lines), len(due) - failed, failed)
            batch.shown.request_counts = counts
        return batch

    def _finish(self, batch: _Batch, at_s: float, status: str, wall_s: float) -> bool:
        """Writes the results that are available at `at_s`, and errors for all other lines.

        Returns False, and fails the batch, if there is no room for these files.
        """
        results: list[bytes] = []
        errors: list[bytes] = []
        unfinished = read = said = 0
        for line in batch.lines:
            self._numbers["request"] += 1
            number = self._numbers["request"]
            if batch.created_s + line.latency_s > at_s:
                errors.append(unanswered(line, number, *UNFINISHED[status]))
                unfinished += 1
                continue
            code, result, tokens = answered(
                line, batch.shown.endpoint, self._answers, number, int(wall_s)
            )
            (results if code == 200 else errors).append(result)
            read, said = read + tokens[0], said + tokens[1]
        total = len(batch.lines)
        batch.lines = []
        if self._size_bytes + sum(map(len, results + errors)) > _MOST_BYTES:
            text = f"With its results, all files together would be larger than {_MOST_BYTES} bytes."
            batch.problems = [Problem("storage_limit_exceeded", text)]
            batch.shown.request_counts = counts_object(0)
            batch.become("failed", wall_s)
            self._made["lines"] -= total
            return False
        failed = len(errors) - unfinished
        self._made.update(answered=len(results), failed=failed, unfinished=unfinished)
        batch.shown.request_counts = counts_object(total, len(results), len(errors))
        batch.shown.usage = response_usage(read, said)
        # Providers do not guarantee any order.
        self._order_rng.shuffle(results)
        output_id = self._written(batch, "output", results, wall_s)
        batch.files = (output_id, self._written(batch, "error", errors, wall_s))
        return True

    def _written(self, batch: _Batch, what: str, lines: list[bytes], wall_s: float) -> str | None:
        if not lines:
            return None
        name = f"{batch.shown.id}_{what}.jsonl"
        return self._store(name, "batch_output", b"".join(lines), wall_s).shown.id


def _as_object(shown: FileObject | BatchObject) -> Object:
    found: Object = msgspec.to_builtins(shown)
    return found
