"""Judges unsuccessful responses: which error each is, whether it is retried, and why.

  status               error         tried again   reason
  (no connection)      Disconnected  yes           a server restarts, or a socket was stale
  (attempt timed out)  TimedOut      yes           one slow answer says nothing about the next
  400                  Rejected      no            the request is malformed and stays so
  400, invalid answer  BadReply      twice         the model's answer lacks the requested format
  401                  Refused       no            the key is wrong for every row: ends the run
  402                  Unpaid        no            no credit for any row: ends the run
  402 with Retry-After RateLimited   yes           calls in flight have reserved the credit
  403                  Rejected      no            the key may not do this
  403 with Retry-After RateLimited   yes           a quota is used up for that time
  404                  Rejected      no            no such path or model
  408                  ServerFailed  yes           the server gave up waiting, often under load
  409                  ServerFailed  yes           a lock conflict, which passes
  413                  Rejected      no            the row is too large and stays so
  422                  Rejected      no            the request is well-formed but invalid
  424                  ServerFailed  yes           the model behind the endpoint failed
  425                  ServerFailed  yes           too early: the client has to repeat it
  429                  RateLimited   yes           over a limit; Retry-After parks the endpoint
  499                  ServerFailed  yes           cancelled, but not by redline
  5xx with code
   engine_failed       NoEndpoint    no            a local engine is lost: ends the run
  other 5xx            ServerFailed  yes           overload and restarts pass
  other 3xx, 4xx       Rejected      no            not understood by the endpoint, so not repeated
  200, unreadable      BadReply      twice         a cut or garbled body; more often a wrong URL
  200, wrong path      Rejected      no            --output-path selects a field that answers lack

If there are several endpoints, the run ends only once none of them is left.

A provider's code or text takes precedence over the status: `provider_errors` has that table. For an
account without credit, providers send 400, 402, 403 or 429.

If a provider sends `x-should-retry: true|false`, that header decides whether to retry. It is
ignored for engine_failed, 401, 402 without Retry-After, and the errors in that table other than
rate limits.
"""

from __future__ import annotations

from collections.abc import Mapping

from redline.apis.errors.error_object import read_error
from redline.apis.errors.provider_errors import WAIT, meaning_of
from redline.errors import CallError, NoEndpoint, RateLimited, Rejected, ServerFailed
from redline.limits.server import retry_after_s

ENGINE_FAILED = "engine_failed"
_RETRIED = frozenset({408, 409, 424, 425, 499})
_LONGEST_QUOTE = 300

_REDIRECT_HINT = (
    "set the base URL to the target of the redirect; redline does not follow it, to protect the key"
)
_HINTS = {
    400: "compare the request with the API's documentation; --dry-run shows the first one",
    403: "check that the key may use this model and path",
    404: "check the model, the path, and that the base URL ends in the API's /v1",
    413: "shorten this row's prompt",
    422: "compare the request with the API's documentation; --dry-run shows the first one",
}


def judge(
    status: int, headers: Mapping[str, str], body: bytes, wall_s: float
) -> CallError | NoEndpoint:
    """Returns the error for an HTTP response with a status other than 2xx.

    headers: keyed by lower-case name. wall_s: the current wall time in seconds, for dates in
    Retry-After.
    """
    said = read_error(body)
    message = _quote(said.message)
    what = f"HTTP {status}" + (f": {message}" if message else "")
    if 300 <= status < 400 and (target := headers.get("location")):
        what += f", a redirect to {_quote(target)}"
    if status >= 500 and ENGINE_FAILED in said.codes:
        hint = "fix the cause named in that message, then run the same command again"
        return NoEndpoint(f"the model is no longer available: {message}", hint=hint)
    meaning = meaning_of(status, said)
    is_limited = meaning is not None and meaning.error is RateLimited
    wait_s = retry_after_s(headers, wall_s, body if is_limited else b"")
    if wait_s is not None and (status == 402 or (status == 403 and meaning is None)):
        meaning, is_limited = WAIT, True
    if meaning is not None and not is_limited:
        return meaning.error(f"{meaning.what}: {what}", hint=meaning.hint, status=status)
    if not _may_pass(status, headers, is_limited=is_limited):
        hint = _REDIRECT_HINT if 300 <= status < 400 else _HINTS.get(status, "")
        return Rejected(f"the endpoint rejected the request: {what}", hint=hint, status=status)
    if meaning is not None:
        return RateLimited(f"{meaning.what}: {what}", status=status, retry_after_s=wait_s)
    return ServerFailed(f"the server failed: {what}", status=status, retry_after_s=wait_s)


def _may_pass(status: int, headers: Mapping[str, str], *, is_limited: bool) -> bool:
    wish = headers.get("x-should-retry", "").lower()
    if wish in ("true", "false"):
        return wish == "true"
    return is_limited or status in _RETRIED or status >= 500


def _quote(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 3] + "..."
