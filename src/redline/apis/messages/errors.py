"""Writes errors in the format of the Messages API, with a `type` for each status.

https://platform.claude.com/docs/en/api/errors
"""

from __future__ import annotations

from typing import Any

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_messages_path(path: str) -> bool:
    """Whether responses to requests for this path have the formats of the Messages API."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def messages_error(
    status: int, message: str, request_id: str, param: str | None = None
) -> dict[str, Any]:
    """Returns the body of an error response with this HTTP status, or a stream's error event.

    param: the field at fault, if known.
    """
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = {"type": kind, "message": message}
    if param == "thread":
        # The SDK's tool runner then repeats the turn with the whole conversation.
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": [param]}
    return {"type": "error", "error": error, "request_id": request_id}
