"""Turns failures into the error responses of the OpenAI API: a status, and `{"error": {...}}`.

  failure                                 status                         the openai SDK retries
  Rejected                                its own; 502 for a redirect,   no
                                          400 without a status
  OverLimit                               400                            no
  RateLimited                             429 and Retry-After            yes
  TimedOut                                504                            yes
  NoEndpoint, ServerFailed 503 and 529    503 and Retry-After            yes
  any other Retryable                     502                            yes
  Refused, Unpaid, BudgetSpent, Unpriced  502: not the client's fault    no

The SDK retries after 408, 409, 429 and 5xx, unless the response has `x-should-retry: false`, which
redline sends with final failures.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Collection, Mapping

import msgspec

from redline.apis import error_body
from redline.apis.messages import is_messages_path, messages_error
from redline.errors import (
    CallError,
    Final,
    NoEndpoint,
    OverLimit,
    RateLimited,
    Refused,
    Rejected,
    Retryable,
    TimedOut,
    Unpaid,
    nearest,
)
from redline.httpserver import JSON, Exchange, header_lines

# redline's own messages write a parameter as `this` or `this[0].that`, and as `this[...]` if the
# key between the brackets comes from the user.
_PARAMETER = re.compile(r"`([a-z]\w*(?:\[(?:\d+|\.{3})\]|\.\w+)*)`")
_LATEST_S = 86_400.0
# At most this many characters of a client's text are repeated in a message.
_LONGEST_ECHO = 200
# The connection is closed after these statuses: the rest of the request may still be arriving.
_CLOSING = frozenset({408, 413})


class Refusal(Exception):
    """An error response to a request, raised to refuse the request.

    message: for the client. status: the HTTP status, 400 to 599. code, param: as in OpenAI's
    errors. headers: sent in addition to the content type.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        kind = "server_error" if status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if status == 429 else kind
        self.body = error_body(message, kind, code=code, param=param)

    def send(self, exchange: Exchange, request_id: str = "") -> None:
        """Sends the error, in the shape of the Messages API if the request used that API.

        request_id: the id to send in the headers; if it is empty, none is sent, or a new one in the
        Messages API.
        """
        fields = JSON + header_lines(self.headers) if self.headers else JSON
        error = self.body
        if is_messages_path(exchange.path):
            request_id = request_id or new_request_id()
            param = error["error"]["param"]
            error = messages_error(self.status, str(self), request_id, param)
            fields += header_lines({"request-id": request_id})
        elif request_id:
            fields += header_lines({"x-request-id": request_id})
        exchange.respond(
            self.status, msgspec.json.encode(error), fields, is_last=self.status in _CLOSING
        )


def new_request_id() -> str:
    """Returns a new unique id."""
    return f"req_{uuid.uuid4().hex}"


def hinted(what: str, hint: str) -> str:
    """Returns `what` and the hint on one line; only `what` if the hint is empty."""
    return f"{what}: {hint}" if hint else what


def shortened(text: str) -> str:
    """Returns a client's text for use in a message, truncated after 200 characters."""
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}..."


def busy(message: str, code: str, *, wait_s: float | None = None) -> Refusal:
    """Returns a refusal with 503. wait_s: seconds until a retry may succeed; None if unknown."""
    return Refusal(message, status=503, code=code, headers=come_back(wait_s))


def no_model(name: str, known: Collection[str]) -> Refusal:
    """Returns a refusal with 404 for a model not in `known`; it suggests a similar name, if any."""
    return Refusal(
        hinted(f"The model `{shortened(name)}` does not exist", nearest(name, known)),
        status=404,
        code="model_not_found",
        param="model",
    )


def own_status(error: CallError | NoEndpoint) -> int | None:
    """Returns the status of the endpoint's error response, if the client should get that response.

    Returns None if there is no error response with a body, or if the gateway's own key or account
    is at fault.
    """
    if isinstance(error, NoEndpoint | Refused | Unpaid) or not error.body:
        return None
    return error.status if error.status is not None and error.status >= 400 else None


def retry_headers(error: CallError) -> dict[str, str]:
    """Returns the headers about retries, for a response that keeps the endpoint's own status.

    These are `x-should-retry: false` for a final failure, and Retry-After if the endpoint sent a
    time.
    """
    if isinstance(error, Final):
        return {"x-should-retry": "false"}
    if isinstance(error, Retryable) and error.retry_after_s:
        return {"retry-after": str(math.ceil(error.retry_after_s))}
    return {}


def refusal_of(error: CallError | NoEndpoint) -> Refusal:
    """Returns the error response for a failed call."""
    status = _status(error)
    message = error.what
    headers: dict[str, str] = {}
    param = None
    if isinstance(error, Final):
        headers["x-should-retry"] = "false"
        if error.status is None and (not error.where or isinstance(error, OverLimit)):
            # The error comes from the backend itself, not from a server behind it, whose errors
            # have a place. So its hint is useful to this client.
            message = hinted(message, error.hint)
            found = _PARAMETER.search(error.what)
            param = found[1] if found else None
    elif status in (429, 503):
        headers = come_back(error.retry_after_s if isinstance(error, Retryable) else None)
    return Refusal(
        message,
        status=status,
        code="rate_limit_exceeded" if status == 429 else error.kind,
        param=param,
        headers=headers,
    )


def _status(error: CallError | NoEndpoint) -> int:
    match error:
        case Rejected(status=None) | OverLimit():
            return 400
        case Rejected(status=int(status)):
            # A redirect is meant for the backend, not for the client.
            return status if 400 <= status < 600 else 502
        case RateLimited():
            return 429
        case TimedOut():
            return 504
        case NoEndpoint() | CallError(status=503 | 529):
            return 503
    return 502


def come_back(wait_s: float | None) -> dict[str, str]:
    """Returns the header Retry-After, in whole seconds, 1 to 86,400; 1 if the time is unknown."""
    return {"retry-after": str(max(1, math.ceil(min(wait_s or 1.0, _LATEST_S))))}
