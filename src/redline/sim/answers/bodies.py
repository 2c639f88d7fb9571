"""Parses request bodies into types, or refuses them with the simulated provider's error texts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from redline.apis import Inputs

BYTES_PER_TOKEN = 4
MAX_INPUTS = 2048


class BadCall(Exception):
    """The request itself is invalid; this error becomes an HTTP reply in OpenAI's error shape."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


Body = TypeVar("Body")


def decode(decoder: msgspec.json.Decoder[Body], raw: bytes) -> Body:
    """Parses a body. Raises BadCall, whose message says what is invalid and where."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadCall(f"The body of the request is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(f"The body of the request could not be read as JSON: {error}") from None


def count_tokens(text: str) -> int:
    """Returns the number of tokens of a text: its UTF-8 bytes divided by four, rounded up.

    Usage and limits count prompts and answers this way.
    """
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def texts(given: Inputs, name: str) -> list[tuple[str, int]]:
    """Returns (text, number of tokens) for each input; token ids become a text of their numbers.

    Raises BadCall for an empty list, more than 2,048 inputs, or a mixture of text and token ids.
    """
    if not given and not isinstance(given, str):
        raise BadCall(f"'{name}' is an empty list.")
    items: list[Any] = given if isinstance(given, list) else [given]
    if all(isinstance(item, int) for item in items):
        items = [items]
    if len(items) > MAX_INPUTS:
        raise BadCall(f"'{name}' has {len(items)} items; at most {MAX_INPUTS} are accepted.")
    found = []
    for item in items:
        if isinstance(item, str):
            found.append((item, count_tokens(item)))
        elif isinstance(item, list):
            found.append((" ".join(map(str, item)), len(item)))
        else:
            raise BadCall(f"'{name}' mixes text and tokens.")
    return found
