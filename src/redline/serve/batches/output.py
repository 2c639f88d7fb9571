"""Writes the output and error files of a batch from the job's results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from redline.apis import (
    UNFINISHED,
    answer_object,
    error_body,
    response_usage,
    result_object,
    stated_tokens,
)
from redline.journal import Output
from redline.serve.batches.checking import BREATH_LINES, breathe, custom_ids

_BUFFER_BYTES = 2**20
_encode = msgspec.json.Encoder().encode


class Written(msgspec.Struct, frozen=True):
    """Counts of the lines, tokens and bytes in the written files.

    completed, failed: the numbers of lines with an answer and with an error. usage: the sum of the
    tokens that answers report, in the API's format.
    """

    completed: int
    failed: int
    usage: dict[str, Any]
    output_bytes: int
    error_bytes: int


class _Answer(msgspec.Struct):
    status_code: int
    request_id: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Success(msgspec.Struct):
    hash: str
    custom_id: str
    response: _Answer


class _Error(msgspec.Struct):
    kind: str
    message: str
    status: int | None = None


class _Failure(msgspec.Struct):
    hash: str
    error: _Error
    custom_id: str | None = None
    response: _Answer | None = None


class _Used(msgspec.Struct):
    usage: Any = None


_SUCCESS = msgspec.json.Decoder(_Success)
_FAILURE = msgspec.json.Decoder(_Failure)
_USED = msgspec.json.Decoder(_Used)


class Folder:
    """The folder of one unfinished batch, with its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.input = path / "input.jsonl"
        self.results = Output(path=path / "results.jsonl", format="batch")
        self.output = path / "output.jsonl"
        self.errors = path / "errors.jsonl"
        # Of the ids of result lines; the folder has the name of its batch.
        self._prefix = f"batch_req_{path.name.removeprefix('batch_')}_"

    def counts(self) -> tuple[int, int]:
        """Returns how many lines have an answer so far, and how many have an error. Blocks."""
        return _count(self.results.path), _count(self.results.failed_path)

    def write(self, ending: str) -> Written:
        """Writes the output and error files durably, replacing earlier ones. Blocks.

        ending: the final status of the batch, which decides the error of unfinished lines.
        """
        done: set[str] = set()
        used = [0, 0]
        # If the folder has been removed, the batch ends without results.
        self.path.mkdir(exist_ok=True)
        with self.output.open("wb", _BUFFER_BYTES) as output:
            for raw in _lines(self.results.path):
                found = _SUCCESS.decode(raw)
                done.add(found.custom_id)
                _add(used, found.response.body)
                answer = found.response
                _put(
                    output,
                    self._prefix + found.hash,
                    found.custom_id,
                    answer_object(answer.status_code, answer.request_id, answer.body),
                )
            output_bytes = _synced(output)
        completed = len(done)
        with self.errors.open("wb", _BUFFER_BYTES) as errors:
            for raw in _lines(self.results.failed_path):
                failure = _FAILURE.decode(raw)
                name = failure.custom_id
                if name is not None and name not in done:
                    done.add(name)
                    _put(errors, self._prefix + failure.hash, name, *_why(failure))
            if ending in UNFINISHED:
                self._add_unfinished(errors, done, ending)
            error_bytes = _synced(errors)
        failed = len(done) - completed
        return Written(completed, failed, response_usage(*used), output_bytes, error_bytes)

    def _add_unfinished(self, errors: BinaryIO, done: set[str], ending: str) -> None:
        code, message = UNFINISHED[ending]
        for number, name in enumerate(custom_ids(self.input), 1):
            if name not in done:
                done.add(name)
                error = {"code": code, "message": message}
                _put(errors, f"{self._prefix}{number:016x}", name, None, error)


def _why(failure: _Failure) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Returns the fields `response` and `error` of a failed line.

    If the endpoint's response made the line fail, `error` is None; otherwise `response` is.
    """
    answer, error = failure.response, failure.error
    if answer is not None:
        return answer_object(answer.status_code, answer.request_id, answer.body), None
    if error.status is not None and error.status >= 400:
        body = error_body(
            error.message,
            "server_error" if error.status >= 500 else "invalid_request_error",
            code=error.kind,
        )
        return answer_object(error.status, None, body), None
    return None, {"code": error.kind, "message": error.message}


def _put(file: BinaryIO, line_id: str, custom_id: str, response: Any, error: Any = None) -> None:
    file.write(_encode(result_object(line_id, custom_id, response, error)) + b"\n")


def _add(used: list[int], body: msgspec.Raw) -> None:
    """Adds the tokens that an answer reports. used: input and output tokens."""
    try:
        usage = _USED.decode(body).usage
    except msgspec.DecodeError:
        return
    if isinstance(usage, dict):
        read, written = stated_tokens(usage)
        used[0] += read or 0
        used[1] += written or 0


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the complete lines of a file; nothing if the file does not exist."""
    if not path.exists():
        return
    with path.open("rb", _BUFFER_BYTES) as file:
        for number, raw in enumerate(file):
            if number % BREATH_LINES == 0:
                breathe()
            if raw.endswith(b"\n"):
                yield raw


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BUFFER_BYTES), b""))


def _synced(file: BinaryIO) -> int:
    """Syncs the file and returns its size in bytes."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()
