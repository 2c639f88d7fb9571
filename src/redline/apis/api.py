"""What redline must know about an API to call it and to read its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from redline.waist import Reply


class Envelope(msgspec.Struct, kw_only=True):
    """The fields beside the choices, vectors or items of an answer."""

    usage: dict[str, Any] | None = None
    model: str | None = None
    id: Any = None
    error: Any = None

    @property
    def request_id(self) -> str | None:
        """The id that the answer names, if it is one."""
        return self.id if isinstance(self.id, str) else None


def no_usual(body: bytes, asked: Any, headers: Mapping[str, str]) -> Reply | None:
    """Returns None, for an API without a quick reader."""
    return None


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """One API of an endpoint.

    path: of its requests; a url belongs to the API if it ends with the part of `path` after `/v1`.
    prompt: the field of a request that holds the prompt. texts: all fields whose strings the model
    reads. as_json: fields that become a part of the prompt as JSON, with their names.
    output_limits: fields that bound the tokens of one answer. has_system: whether a request may
    have a system message. has_output: whether answers have generated tokens. is_streamed: whether
    they may be streamed. read: parses the reply in a body; asked: the request's body, which states
    the number of answers, or None if it is not known. Raises msgspec.DecodeError for another shape,
    and the error that the body contains. read_usual: the same, quicker, for an answer of the most
    common form, with its headers; returns None for any other.
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
        return self.path.removeprefix("/v1")
