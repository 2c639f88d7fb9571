"""Parses request bodies to types, or refuses them with the simulated provider's error texts."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from redline.apis import Inputs

MAX_DIMENSIONS = 4096
MAX_INPUTS = 2048


class BadCall(Exception):
    """The request itself is invalid; becomes an HTTP reply in OpenAI's error shape."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


Body = TypeVar("Body")


def decode(decoder: msgspec.json.Decoder[Body], raw: bytes) -> Body:
    """Parses a body. Raises a BadCall that states what is invalid and where."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadCall(f"The body of the request is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCall(f"The body of the request could not be read as JSON: {error}") from None


def texts(given: Inputs, name: str) -> list[tuple[str, int | None]]:
    """Returns the inputs, each with its number of tokens if it came as tokens, otherwise None.

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
