"""Reads and writes the objects and files of the Batch API: POST /v1/files and /v1/batches.

https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from redline.apis import loose_json
from redline.apis.loose_json import number
from redline.errors import BadReply

FILES, BATCHES = "/v1/files", "/v1/batches"
# The only window that OpenAI supports. Servers that have another window, or none, accept this value
# and use their own.
WINDOW = "24h"
# The final statuses of a batch.
ENDED = frozenset(("failed", "completed", "expired", "cancelled"))
# OpenAI's limits: bytes in one file, and lines in one batch.
MOST_FILE_BYTES = 200 * 1024 * 1024
MOST_LINES = 50_000
# The code and message of the error in a result line without an answer, by the batch's final status.
UNFINISHED = {
    "expired": ("batch_expired", "This request was not executed within the completion window."),
    "cancelled": ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
_MISSING = re.compile(r"missing required field `(\w+)`")
_WRONG = re.compile(r"`\$\.(\w+)")
# The fields that hold a prompt; they belong inside a line's `body`, not beside it.
_OUTSIDE = ("messages", "prompt", "input")


class ExpiresAfter(msgspec.Struct, frozen=True):
    """When a file expires: `seconds` after its `anchor`, which is `created_at`."""

    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct):
    """The body of POST /v1/batches. endpoint: the `url` of all lines of the input file."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class RequestLine(msgspec.Struct):
    """One line of an uploaded file of requests."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class Problem(msgspec.Struct):
    """A reason why a batch failed.

    line: the number of the line, from 1; None if the problem concerns the whole file.
    """

    code: str | None = None
    message: str | None = None
    line: int | None = None
    param: str | None = None


class LineChecker:
    """Reads and checks the lines of one file. endpoint: the `url` that every line must have."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._names: set[str] = set()

    def read(self, raw: bytes, line: int) -> RequestLine | Problem:
        """Returns the request on a line, or why the line is invalid. line: its number, from 1."""
        try:
            asked = _ASKED.decode(raw)
            found = msgspec.json.decode(raw)
        except msgspec.ValidationError as error:
            return _misshapen(str(error), line)
        except (ValueError, RecursionError) as error:
            return Problem("invalid_json_line", f"This line is not valid JSON: {error}", line)
        if not asked.custom_id:
            return _absent("custom_id", line)
        if asked.custom_id in self._names:
            text = f"The custom_id '{asked.custom_id}' occurs more than once."
            return Problem("duplicate_custom_id", text, line, "custom_id")
        self._names.add(asked.custom_id)
        if asked.method != "POST" or asked.url != self._endpoint:
            text = f"Each request must be a POST to {self._endpoint}, the endpoint of the batch."
            return Problem("invalid_url", text, line, "url")
        if type(found["body"]) is not dict:
            return Problem("invalid_type", "'body' must be an object.", line, "body")
        for name in _OUTSIDE:
            if name in found:
                text = f"Unknown parameter: '{name}'. It belongs in 'body'."
                return Problem("unknown_parameter", text, line, name)
        return asked


def _misshapen(reason: str, line: int) -> Problem:
    """Returns why a line that is JSON is not a request. reason: msgspec's message."""
    if missing := _MISSING.search(reason):
        return _absent(missing[1], line)
    wrong = _WRONG.search(reason)
    param = wrong[1] if wrong else None
    return Problem("invalid_type", f"This line is not a request: {reason}", line, param)


def _absent(name: str, line: int) -> Problem:
    return Problem(
        "missing_required_parameter", f"Missing required parameter: '{name}'.", line, name
    )


class Batch(msgspec.Struct):
    """A batch as the provider reports it. created_at: wall time in seconds, 0 if unknown.

    finished: the number of lines that have an answer or an error; 0 if the provider does not say.
    """

    id: str
    status: str
    created_at: Any = 0.0
    output_file_id: Any = None
    error_file_id: Any = None
    errors: Any = None
    metadata: Any = None
    request_counts: Any = None

    def __post_init__(self) -> None:
        # Novita writes statuses in upper case.
        self.status = self.status.lower()
        # Fields that redline does not need must not make the rest unreadable.
        try:
            is_time = isinstance(self.created_at, int | float)
            self.created_at = float(self.created_at) if is_time else 0.0
        except OverflowError:
            self.created_at = 0.0
        self.metadata = self.metadata if isinstance(self.metadata, dict) else {}

    @property
    def is_over(self) -> bool:
        """Whether the batch's status is final."""
        return self.status in ENDED

    @property
    def files(self) -> list[str]:
        """The ids of the result file and the error file, if they exist, without repeats."""
        found = (self.output_file_id, self.error_file_id)
        return list(dict.fromkeys(name for name in found if name and isinstance(name, str)))

    @property
    def finished(self) -> int:
        counts = self.request_counts if isinstance(self.request_counts, dict) else {}
        return sum(number(counts.get(name)) or 0 for name in ("completed", "failed"))

    @property
    def problems(self) -> list[Problem]:
        """The reasons why the batch failed.

        If they cannot be parsed, all of them are the message of one Problem without code and line.
        """
        found = self.errors.get("data") if isinstance(self.errors, dict) else self.errors
        try:
            return msgspec.convert(found or [], list[Problem])
        except msgspec.ValidationError:
            return [Problem(message=str(found))]


class FileObject(msgspec.Struct, kw_only=True):
    """A file as redline's servers report it.

    bytes: its size. created_at, expires_at: wall times in whole seconds.
    """

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch as redline's servers report it; times are wall times in whole seconds."""

    id: str
    object: str = "batch"
    endpoint: str
    errors: dict[str, Any] | None = None
    input_file_id: str
    completion_window: str
    status: str = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: dict[str, int]
    metadata: dict[str, str] | None = None
    usage: dict[str, Any] | None = None


def errors_object(problems: Sequence[Problem]) -> dict[str, Any]:
    """Returns the `errors` of a batch that has failed."""
    return {"object": "list", "data": [msgspec.to_builtins(problem) for problem in problems]}


def counts_object(total: int, completed: int = 0, failed: int = 0) -> dict[str, int]:
    """Returns the `request_counts` of a batch. total: the number of its requests."""
    return {"total": total, "completed": completed, "failed": failed}


def page_object(items: Sequence[Any], names: Sequence[str], *, has_more: bool) -> dict[str, Any]:
    """Returns one page of a list of files or batches. names: the items' ids, in the same order."""
    return {
        "object": "list",
        "data": items,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
        "has_more": has_more,
    }


def deleted_object(file_id: str) -> dict[str, Any]:
    """Returns the body of the response to a DELETE of a file."""
    return {"id": file_id, "object": "file", "deleted": True}


class _Response(msgspec.Struct):
    status_code: Any = None
    request_id: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Error(msgspec.Struct):
    code: Any = None
    message: Any = None


class ResultLine(msgspec.Struct):
    """One line of a result or error file. problem: why its result is unreadable; "" if readable."""

    custom_id: str
    response: _Response | None = None
    error: _Error | None = None
    problem: str = ""


class _Named(msgspec.Struct):
    custom_id: str


_ASKED = msgspec.json.Decoder(RequestLine)
_LINE = msgspec.json.Decoder(ResultLine)
_NAMED = msgspec.json.Decoder(_Named)


def read_line(raw: bytes) -> ResultLine:
    """Parses a line of a result or error file. Raises BadReply if it has no readable custom_id."""
    try:
        return _LINE.decode(raw)
    except (ValueError, RecursionError) as error:
        problem = str(error)
    try:
        raw = loose_json.mended(raw)
        return _LINE.decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        name = _NAMED.decode(raw).custom_id
    except (ValueError, RecursionError) as error:
        raise BadReply(
            f"a line of the batch's results does not match the Batch API's format: {error}",
            hint="inspect the batch's result files at the provider",
        ) from error
    return ResultLine(custom_id=name, problem=problem)


def result_object(
    name: str, custom_id: str, response: dict[str, Any] | None, error: Any = None
) -> dict[str, Any]:
    """Returns one line of a result or error file. name: its `id`. response: see `answer_object`."""
    return {"id": name, "custom_id": custom_id, "response": response, "error": error}


def answer_object(status_code: int, request_id: str | None, body: Any) -> dict[str, Any]:
    """Returns the `response` of a result line. body: the decoded JSON of the answer."""
    return {"status_code": status_code, "request_id": request_id, "body": body}
