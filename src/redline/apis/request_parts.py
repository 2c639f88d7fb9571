"""Defines the parts of requests that several APIs share, as far as redline's servers read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
# A string, or a list of strings, of token ids, or of lists of token ids.
Inputs = str | list[str | int | list[int]]


class ContentPart(Struct):
    """One part of a message. Parts without text, such as images, count as empty."""

    text: str = ""


class Message(Struct):
    """One message, or one input item of /v1/responses, which may have no role."""

    role: str = ""
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The text of all parts, one per line."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or ())


Messages = Annotated[list[Message], Meta(min_length=1)]


class JsonSchema(Struct, frozen=True):
    """The named schema of a `response_format`."""

    schema: dict[str, Any] | None = None


class ResponseFormat(Struct, frozen=True):
    """The required form of an answer. /v1/responses puts `schema` directly beside `type`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class StreamOptions(Struct, frozen=True):
    """Whether a stream ends with its usage."""

    include_usage: bool | None = None
