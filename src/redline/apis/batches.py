"""POST /v1/files, POST /v1/batches: files of requests go up, files of results come down.

https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

from typing import Any

import msgspec

from redline.apis import loose_json
from redline.apis.loose_json import number
from redline.errors import BadReply

FILES, BATCHES = "/v1/files", "/v1/batches"
# The window that the API knows; other servers take none or another one, and read this as theirs.
WINDOW = "24h"
# The statuses of a batch that does not change any more.
ENDED = frozenset(("failed", "completed", "expired", "cancelled"))


class BatchRequest(msgspec.Struct):
    """The body of POST /v1/batches. endpoint: the url of all its lines."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class RequestLine(msgspec.Struct):
    """One line of the file that goes up."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class Problem(msgspec.Struct):
    """Why a batch failed. line: of its file, from 1; None if the reason concerns all of it."""

    code: str | None = None
    message: str | None = None
    line: int | None = None


class Batch(msgspec.Struct):
    """A batch as the provider shows it. created_at: wall time, 0 if it is not known.

    finished: lines that the provider says have an answer or an error, 0 if it does not say.
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
        # What redline can do without must not make the rest unreadable.
        is_time = isinstance(self.created_at, int | float)
        self.created_at = float(self.created_at) if is_time else 0.0
        self.metadata = self.metadata if isinstance(self.metadata, dict) else {}

    @property
    def is_over(self) -> bool:
        """It does not change any more."""
        return self.status in ENDED

    @property
    def files(self) -> list[str]:
        """Its files of results and of errors, as far as they can be seen."""
        found = (self.output_file_id, self.error_file_id)
        return list(dict.fromkeys(name for name in found if name and isinstance(name, str)))

    @property
    def finished(self) -> int:
        counts = self.request_counts if isinstance(self.request_counts, dict) else {}
        return sum(number(counts.get(name)) or 0 for name in ("completed", "failed"))

    @property
    def problems(self) -> list[Problem]:
        found = self.errors.get("data") if isinstance(self.errors, dict) else self.errors
        try:
            return msgspec.convert(found or [], list[Problem])
        except msgspec.ValidationError:
            return [Problem(message=str(found))]


class _Response(msgspec.Struct):
    status_code: Any = None
    request_id: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Error(msgspec.Struct):
    code: Any = None
    message: Any = None


class ResultLine(msgspec.Struct):
    """One line of a file of results or errors. problem: why the rest of it cannot be read."""

    custom_id: str
    response: _Response | None = None
    error: _Error | None = None
    problem: str = ""


class _Named(msgspec.Struct):
    custom_id: str


_LINE = msgspec.json.Decoder(ResultLine)
_NAMED = msgspec.json.Decoder(_Named)


def read_line(raw: bytes) -> ResultLine:
    """Raises BadReply for what names no row."""
    try:
        return _LINE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    try:
        raw = loose_json.mended(raw)
        return _LINE.decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        name = _NAMED.decode(raw).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReply(
            f"a line of the results is not what the Batch API promises: {error}",
            hint="look at the batch at the provider; the same command reads it again",
        ) from error
    return ResultLine(custom_id=name, problem=problem)


def result_object(
    name: str, custom_id: str, response: dict[str, Any] | None, error: Any = None
) -> dict[str, Any]:
    """One line of a file of results or errors. name: its id. response: from `answer_object`."""
    return {"id": name, "custom_id": custom_id, "response": response, "error": error}


def answer_object(status_code: int, request_id: str | None, body: Any) -> dict[str, Any]:
    """The answer to one request, as its line holds it."""
    return {"status_code": status_code, "request_id": request_id, "body": body}
