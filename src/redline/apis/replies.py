"""Reads the replies of every API, and plain JSON from all other paths.

The end of the request's path determines the API. `read` raises BadReply for a body that does not
match the API's format, so that the call is retried. For a body that contains an error, `read`
raises that error.

  an answer                                    raises
  with an `error`                              an error, judged by the status inside
  with a choice that broke off                 the choice's `error`, or ServerFailed
  with more or fewer choices than `asked`      BadReply
  a response that has failed or has not ended  its `error`, or BadReply
  of nothing but blank lines                   ServerFailed

Plain JSON counts as an error only if its `object` or `type` is `error`, or if it has an `error`
and only fields that errors have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec

from redline.apis import chat, completions, embeddings, loose_json, responses
from redline.apis.api import Api
from redline.apis.error_inside import ErrorInside, is_error, judge_choice, judge_error
from redline.apis.usage import stated_tokens
from redline.errors import BadReply, Rejected, ServerFailed
from redline.waist import Reply

_LONGEST_QUOTE = 120


def _read_plain(
    body: bytes, asked: dict[str, Any] | None, output_path: tuple[str | int, ...] = ()
) -> Reply:
    whole = msgspec.json.decode(body)
    _check_plain(whole)
    value = whole
    for step in output_path:
        try:
            value = value[str(step) if isinstance(value, dict) else step]
        except (KeyError, IndexError, TypeError):
            path = ".".join(map(str, output_path))
            # Status 200 marks it as an answer, which may have been billed.
            raise Rejected(
                f"--output-path {path} finds no `{step}` in the answer, which begins {quote(body)}",
                hint="check --output-path",
                status=200,
            ) from None
    fields = whole if isinstance(whole, dict) else {}
    model = fields.get("model")
    return Reply(
        output=value,
        usage=fields.get("usage"),
        model=model if isinstance(model, str) else None,
    )


def _check_plain(whole: Any) -> None:
    """Raises the error that the JSON contains, or the error of the first choice that broke off."""
    if is_error(whole, of_any_api=True):
        raise ErrorInside(whole)
    found = whole.get("choices") if isinstance(whole, dict) else None
    for index, choice in enumerate(found if isinstance(found, list) else ()):
        if isinstance(choice, dict):
            error = judge_choice(index, choice.get("error"), choice.get("finish_reason"))
            if error is not None:
                raise error


# For paths that belong to no API: JSON in, JSON out. Anthropic's messages have a separate `system`:
# https://platform.claude.com/docs/en/api/messages
PLAIN = Api(path="", texts=("system",), read=_read_plain)
# The longer of two endings comes first: both match the path of chat.
APIS = (chat.API, completions.API, embeddings.API, responses.API)


@lru_cache(maxsize=1024)
def api_of(url: str) -> Api:
    """Returns the API to which the path of `url`, without its query, belongs; PLAIN if none."""
    path = f"/{_path_of(url)}"
    return next((api for api in APIS if path.endswith(api.ending)), PLAIN)


def read(
    url: str,
    body: bytes,
    output_path: tuple[str | int, ...] = (),
    asked: Any = None,
    headers: Mapping[str, str] | None = None,
    wall_s: float = 0.0,
) -> Reply:
    """Reads the reply in `body`, the body of a successful response to a request to `url`.

    output_path: selects the answer in the JSON, for any API. asked: the request's body, which says
    how many answers were requested; None if that is unknown. headers: those of the response.
    wall_s: the current wall time in seconds, to judge an error inside. Raises CallError, and
    NoEndpoint if a local engine is lost.
    """
    if headers is None:
        headers = {}
    api = api_of(url)
    if not output_path:
        read_usual = api.read_usual
        reply = read_usual(body, asked, headers)
        if reply is not None:
            return reply
    asked = asked if isinstance(asked, dict) else None
    read_body = partial(_read_plain, output_path=output_path) if output_path else api.read
    try:
        try:
            reply = read_body(body, asked)
        except msgspec.DecodeError as error:
            # The body is either improper JSON, or JSON in another format.
            body, value = _loose(body, error)
            if is_error(value, of_any_api=api is PLAIN):
                raise ErrorInside(value) from error
            reply = read_body(body, asked)
    except ErrorInside as found:
        raise judge_error(found.value, headers, wall_s) from found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if body.isspace():
            # DeepSeek and OpenRouter send blank lines while a request waits for its model.
            raise ServerFailed("the answer ended before its first character") from error
        raise BadReply(
            f"the answer does not match the format of {_path_of(url)}: {error}; "
            f"it begins {quote(body)}",
            hint=_page_hint(body),
        ) from error
    if isinstance(reply.usage, dict):
        reply.input_tokens, reply.output_tokens = stated_tokens(reply.usage)
    else:
        reply.usage = None  # PHP, for example, writes an empty object as []
    reply.body, reply.headers = body, headers
    return reply


def _loose(body: bytes, error: msgspec.DecodeError) -> tuple[bytes, Any]:
    """Returns the body as proper JSON, and its value. Raises `error` if the body is not JSON."""
    try:
        return body, msgspec.json.decode(body)
    except ValueError:
        pass
    try:
        body = loose_json.mended(body)
        return body, msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise error from None


def _path_of(url: str) -> str:
    return url.partition("?")[0].rstrip("/")


def quote(body: bytes) -> str:
    """Returns the beginning of a body, at most 120 characters on one line, for a message."""
    line = " ".join(body[: 2 * _LONGEST_QUOTE].decode("utf-8", "replace").split())
    cut = line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 3] + "..."
    return f"`{cut}`" if cut else "`` (an empty text)"


def _page_hint(body: bytes) -> str:
    if body.lstrip()[:1] == b"<":
        return "this is a web page; check the path and the base URL, which usually ends in /v1"
    return "check the base URL and the path"
