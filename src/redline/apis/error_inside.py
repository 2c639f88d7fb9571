"""Finds errors inside responses with HTTP 200, and judges them by the status that they contain.

Gateways send such an error if the model behind them fails after the response has begun (see
OpenRouter's page on errors).

  the error contains                   it is judged as
  a status from 400 to 599             that status
  a code or type of the table below    the status beside it
  neither                              BadReply
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redline.apis.errors import judge
from redline.apis.loose_json import encoded, number
from redline.errors import BadReply, CallError, NoEndpoint, ServerFailed

_LONGEST_QUOTE = 300
# Finish reasons of choices that broke off: OpenRouter and Mistral send `error`, Z.ai
# `network_error`, DeepSeek `insufficient_system_resource`, vLLM and SGLang `abort`.
_BROKEN = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})

# Codes and types from OpenAI's and Anthropic's error pages, and from google.rpc.Code in lower case.
_CODES = {
    400: ("invalid_request_error", "invalid_argument", "invalid_prompt", "context_length_exceeded"),
    401: ("authentication_error", "invalid_api_key", "unauthenticated"),
    402: ("billing_error",),
    403: ("permission_error", "permission_denied"),
    404: ("not_found_error", "not_found"),
    413: ("request_too_large",),
    429: (
        *("rate_limit_error", "rate_limit_exceeded", "resource_exhausted", "insufficient_quota"),
        *("credit_balance_exhausted", "enforced_spend_limit_reached"),
    ),
    500: ("server_error", "api_error", "internal", "internal_server_error", "engine_failed"),
    503: ("unavailable", "overloaded"),
    504: ("timeout_error", "deadline_exceeded"),
    529: ("overloaded_error",),
}
_STATUS_OF = {code: status for status, codes in _CODES.items() for code in codes}
# The HTTP statuses for MiniMax's codes; any other code counts as 500.
# https://platform.minimax.io/docs/api-reference/errorcode
_MINIMAX = {
    **dict.fromkeys((1026, 1027, 1042, 2013), 400),
    **dict.fromkeys((1004, 2049), 401),
    1008: 402,
    **dict.fromkeys((1002, 1039, 1041, 2045, 2056), 429),
}
# The fields that JSON may have if it is nothing but an error.
_ENVELOPE = {
    *("code", "detail", "error", "id", "message", "object", "param", "request_id", "status"),
    *("status_code", "type", "user_id"),
}


class ErrorInside(Exception):
    """Raised if the JSON of a response is an error. value: the decoded JSON."""

    def __init__(self, value: Any) -> None:
        self.value = value


def is_error(value: Any, *, of_any_api: bool = False) -> bool:
    """Whether the JSON of a response is an error.

    of_any_api: True for a plain endpoint, whose answers may have fields such as `error`: JSON then
    counts as an error only if its `object` or `type` is `error`, or if it has an `error` and
    only fields that errors have.
    """
    value = _unwrapped(value)
    if not isinstance(value, dict):
        return False
    if _is_named(value):
        return True
    error = value.get("error")
    if of_any_api:
        return bool(error) and isinstance(error, dict | str) and value.keys() <= _ENVELOPE
    has_code = any(value.get(name) for name in ("code", "status", "status_code", "type"))
    return bool(error) or (has_code and isinstance(value.get("message"), str))


def error_event(event: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a stream's event in the form that most providers send; None if it is no error."""
    found: dict[str, Any] = _unwrapped(event)
    return found if _is_named(found) or found.get("error") else None


def _is_named(value: dict[str, Any]) -> bool:
    return "error" in (value.get("object"), value.get("type"))


def judge_error(value: Any, headers: Mapping[str, str], wall_s: float) -> CallError | NoEndpoint:
    """Returns the error that a response with HTTP 200 contains.

    value: the decoded JSON of the response: the error itself, or an object with the error in
    `error`. headers, wall_s: as for `judge`.
    """
    value = _unwrapped(value)
    error = value.get("error") if isinstance(value, dict) else value
    inner = error if isinstance(error, dict) else {}
    outer = value if isinstance(value, dict) else {}
    raw = encoded(value)
    status = _status_of(inner) or _status_of(outer)
    if status is None:
        found = inner.get("message") or error or outer.get("message") or outer
        text = " ".join((found if isinstance(found, str) else raw.decode()).split())
        return BadReply(f"the endpoint sent an error with HTTP 200: {text[:_LONGEST_QUOTE]}")
    judged = judge(status, headers, raw, wall_s)
    if isinstance(judged, CallError):
        judged.what += " (sent with HTTP 200)"
    return judged


def judge_part(what: str, error: Any, *, is_begun: bool = True) -> CallError | NoEndpoint:
    """Returns the error of an answer that broke off.

    what: the beginning of the message, such as `choice 1 broke off`. is_begun: whether a part of
    the answer has arrived. The error then has no status: a request refused with a status is not
    billed, but tokens that have arrived may be.
    """
    judged = judge_error({"error": error}, {}, 0.0)
    # NoEndpoint (the model is lost) has the same message whether or not an answer has begun.
    if isinstance(judged, CallError):
        judged.what = f"{what}: {judged.what}"
        if is_begun:
            judged.status = None
    return judged


def judge_choice(index: int, error: Any, finish_reason: Any) -> CallError | NoEndpoint | None:
    """Returns the error of a choice that broke off; None for any other choice."""
    if error:
        return judge_part(f"choice {index} broke off", error)
    if isinstance(finish_reason, str) and finish_reason.lower() in _BROKEN:
        return ServerFailed(f"choice {index} broke off with finish_reason `{finish_reason}`")
    return None


def _unwrapped(value: Any) -> Any:
    """Returns an error in the form that most providers send; any other value unchanged.

    Gemini's compatible API sends its error as the only item of a list, MiniMax in `base_resp`:
    https://github.com/CherryHQ/cherry-studio/issues/11287
    """
    if isinstance(value, list):
        return value[0] if len(value) == 1 else value
    base = value.get("base_resp") if isinstance(value, dict) else None
    if not isinstance(base, dict):
        return value
    code = base.get("status_code")
    if type(code) is not int or code == 0:
        return value
    message = f"{base.get('status_msg')} ({code})"
    rest = {name: item for name, item in value.items() if name != "base_resp"}
    return {**rest, "error": {"message": message, "status": _MINIMAX.get(code, 500)}}


def _status_of(error: dict[str, Any]) -> int | None:
    for name in ("status_code", "status", "http_status", "code"):
        status = number(error.get(name))
        if status is not None and 400 <= status <= 599:
            return status
    for name in ("code", "type", "status"):
        known = error.get(name)
        if isinstance(known, str) and known.lower() in _STATUS_OF:
            return _STATUS_OF[known.lower()]
    return None
