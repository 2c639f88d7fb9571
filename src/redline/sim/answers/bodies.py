"""Request bodies as the OpenAI API defines them, as far as they change the answer."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

_Count = Annotated[int, Meta(ge=1)]
_Choices = Annotated[int, Meta(ge=1, le=128)]
MAX_DIMENSIONS = 4096
MAX_INPUTS = 2048


class BadCall(Exception):
    """The request itself is wrong; becomes an HTTP reply in OpenAI's error shape."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


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


class JsonSchema(Struct):
    """The named schema of a `response_format`."""

    schema: dict[str, Any] = {}


class ResponseFormat(Struct):
    """`text`, `json_object` or `json_schema`. /v1/responses puts the schema beside the type."""

    type: str = "text"
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class StreamOptions(Struct):
    """Whether a stream ends with its usage."""

    include_usage: bool = False


class ChatBody(Struct):
    """POST /v1/chat/completions."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    n: _Choices | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    response_format: ResponseFormat | None = None


class CompletionBody(Struct):
    """POST /v1/completions. A prompt is text, tokens, or a list of either."""

    model: str
    prompt: str | list[str | int | list[int]]
    n: _Choices | None = None
    max_tokens: _Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None


class EmbeddingBody(Struct):
    """POST /v1/embeddings. An input is text, tokens, or a list of either."""

    model: str
    input: str | list[str | int | list[int]]
    dimensions: Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: str | None = None


class TextOptions(Struct):
    """Where /v1/responses keeps its response format."""

    format: ResponseFormat | None = None


class ResponseBody(Struct):
    """POST /v1/responses."""

    model: str
    input: str | Annotated[list[Message], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: _Count | None = None
    stream: bool | None = None
    text: TextOptions | None = None


Body = TypeVar("Body")


def decode(decoder: msgspec.json.Decoder[Body], raw: bytes) -> Body:
    """The typed body. Raises BadCall, which says what is wrong and where."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadCall(f"The body of the request is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(f"The body of the request could not be read as JSON: {error}") from None


def texts(given: str | list[str | int | list[int]], name: str) -> list[tuple[str, int | None]]:
    """The inputs, each with its number of tokens where it came as tokens, else None.

    Raises BadCall for an empty list, more than 2,048 inputs, or a mixture.
    """
    if isinstance(given, str):
        return [(given, None)]
    if not given:
        raise BadCall(f"'{name}' is an empty list.")
    if all(isinstance(item, int) for item in given):
        return [(" ".join(str(item) for item in given), len(given))]
    if len(given) > MAX_INPUTS:
        raise BadCall(f"'{name}' has {len(given)} items, and at most {MAX_INPUTS} are taken.")
    found: list[tuple[str, int | None]] = []
    for item in given:
        if isinstance(item, str):
            found.append((item, None))
        elif isinstance(item, list):
            found.append((" ".join(str(token) for token in item), len(item)))
        else:
            raise BadCall(f"'{name}' mixes text and tokens.")
    return found
