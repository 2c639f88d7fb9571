"""The retry table: what each answer that is no success means, and why.

  status               error         tried again   reason
  (no connection)      Disconnected  yes           a server restarts, or a socket was stale
  (a clock ran out)    TimedOut      yes           one slow answer says nothing about the next
  400                  Rejected      no            the request is malformed and stays so
  401                  Refused       no            the key is wrong for every row: ends the run
  402                  Unpaid        no            no credit for any row: ends the run
  403                  Rejected      no            the key may not do this
  404                  Rejected      no            no such path or model
  408                  ServerFailed  yes           the server gave up waiting, often under load
  409                  ServerFailed  yes           a lock conflict, which passes
  413                  Rejected      no            the row is too large and stays so
  422                  Rejected      no            the request is well-formed but invalid
  425                  ServerFailed  yes           too early: asked to repeat
  429                  RateLimited   yes           over a limit; Retry-After parks the endpoint
  429 with code
   insufficient_quota  Unpaid        no            a 429 in name only: the account is out of credit
  5xx with code
   engine_failed       NoEndpoint    no            a local engine is lost for any row: ends the run
  5xx, 529             ServerFailed  yes           overload and restarts pass
  other 3xx, 4xx       Rejected      no            not understood by the endpoint, so not repeated
  200, unreadable      BadReply      twice         a cut or garbled body; more often a wrong URL

`x-should-retry: true|false` decides instead, where a provider sends it, except for a refused key
and an unpaid account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from redline.errors import (
    CallError,
    NoEndpoint,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    Unpaid,
)
from redline.limits.headers import retry_after_s

ENGINE_FAILED = "engine_failed"
_RETRIED = frozenset({408, 409, 425, 429})
_LONGEST_QUOTE = 300

_REDIRECT_HINT = "give the address it leads to as --base-url; a key is not sent on by itself"
_HINTS = {
    400: "compare the row with the API's documentation; --dry-run shows the request",
    403: "the key may not use this model or path",
    404: "check --model, --url, and that --base-url ends in the API's /v1",
    413: "shorten this row's prompt",
    422: "compare the row with the API's documentation; --dry-run shows the request",
}


def judge(
    status: int, headers: Mapping[str, str], body: bytes, wall_s: float
) -> CallError | NoEndpoint:
    """The error that an HTTP answer other than 2xx stands for.

    headers: looked up in lower case. wall_s: the time now, for dates in Retry-After.
    """
    message, codes = _read_error(body)
    what = f"HTTP {status}" + (f": {message}" if message else "")
    if status == 401:
        return Refused(
            f"the endpoint refused the key: {what}",
            hint="set OPENAI_API_KEY or --api-key-env, then run the same command again",
            status=status,
        )
    if status == 402 or (status == 429 and "insufficient_quota" in codes):
        return Unpaid(
            f"the account has no credit left: {what}",
            hint="add credit or use another key, then run the same command again",
            status=status,
        )
    if status >= 500 and ENGINE_FAILED in codes:
        return lost(message)
    if not _may_pass(status, headers):
        hint = _REDIRECT_HINT if 300 <= status < 400 else _HINTS.get(status, "")
        return Rejected(f"the endpoint rejected the request: {what}", hint=hint, status=status)
    wait_s = retry_after_s(headers, wall_s, body if status == 429 else b"")
    if status == 429:
        return RateLimited(f"over the rate limit: {what}", status=status, retry_after_s=wait_s)
    return ServerFailed(f"the server failed: {what}", status=status, retry_after_s=wait_s)


def lost(message: str) -> NoEndpoint:
    """The error of a local engine that has failed, in its own words."""
    hint = "mend what it names, then run the same command again"
    return NoEndpoint(f"the model cannot be asked any more: {_quote(message)}", hint=hint)


def _may_pass(status: int, headers: Mapping[str, str]) -> bool:
    wish = headers.get("x-should-retry", "").lower()
    if wish in ("true", "false"):
        return wish == "true"
    return status in _RETRIED or status >= 500


class _ErrorBody(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None


def _read_error(body: bytes) -> tuple[str, tuple[Any, Any]]:
    """The message, and the code and type, of an error body in any of the usual shapes."""
    try:
        parsed = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _quote(body.decode("utf-8", "replace")), (None, None)
    error = parsed.error if parsed.error is not None else parsed.message or parsed.detail
    if isinstance(error, dict):
        codes = (error.get("code"), error.get("type"))
        return _quote(str(error.get("message", error))), codes
    return _quote(str(error or "")), (parsed.code, parsed.type)


def _quote(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 3] + "..."
