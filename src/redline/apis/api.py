"""Defines the properties of an API that redline needs to call it and to read its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from redline.waist import Reply


class Envelope(msgspec.Struct, kw_only=True):
    """The fields of an answer besides its choices, vectors or items."""

    usage: Any = None
    model: str | None = None
    id: Any = None
    error: Any = None

    @property
    def request_id(self) -> str | None:
        """The answer's `id`; None if it is missing or not a string."""
        return self.id if isinstance(self.id, str) else None


def no_usual(body: bytes, asked: Any, headers: Mapping[str, str]) -> Reply | None:
    """Returns None: the default of `read_usual`, for an API that has no faster reader."""
    return None


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """One API of an endpoint.

    path: the path of its requests; a URL belongs to the API if its path ends with `ending`, and
    not with a longer one of another API. prompt: the field of a request that holds the prompt.
    texts: all fields whose strings the model reads. as_json: fields that become part of the prompt
    as JSON, names included. output_limits: fields that bound the output tokens of one answer.
    has_system: whether a request may have a system message. has_output: whether answers have
    generated tokens. is_streamed: whether answers may be streamed.
    read: parses a response body. Its second argument is the request's body, which says how many
    answers were requested, or None if that is unknown. Raises msgspec.DecodeError if the body has
    another format, and ErrorInside, CallError or NoEndpoint if it contains an error.
    read_usual: a faster `read` for answers in the most common form; its third argument is the
    response's headers. Returns None for any other answer.
    """

    path: str
    prompt: str = "prompt"
    texts: tuple[str, ...] = ()
    as_json: tuple[str, ...] = ()
    output_limits: tuple[str, ...] = ()
    has_system: bool = False
    has_output: bool = True
    is_streamed: bool = False
    read: Callable[[bytes, dict[str, Any] | None], Reply]
    read_usual: Callable[[bytes, Any, Mapping[str, str]], Reply | None] = no_usual

    @property
    def ending(self) -> str:
        """The part of `path` after `/v1`."""
        return self.path.removeprefix("/v1")
