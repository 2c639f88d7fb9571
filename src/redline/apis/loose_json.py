"""Reads JSON that does not follow RFC 8259, and numbers that some servers write as strings.

  a byte order mark             is skipped
  NaN, Infinity, 1e999          become null
  half of a surrogate pair      becomes U+FFFD

These readers take ten times as long as msgspec, so they get only data that msgspec has refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

BOM = b"\xef\xbb\xbf"


def parsed(data: bytes) -> Any:
    """Parses JSON; strings may contain lone surrogates. Raises ValueError or RecursionError."""
    return json.loads(data.removeprefix(BOM).decode())


def mended(data: bytes) -> bytes:
    """Converts the data to proper JSON. Raises ValueError or RecursionError."""
    return json.dumps(clean(parsed(data)), ensure_ascii=False).encode()


def decoded(data: bytes) -> Any:
    """Decodes JSON, proper or not, and applies `clean`. Raises ValueError or RecursionError."""
    try:
        return msgspec.json.decode(data)
    except ValueError:
        return clean(parsed(data))


def decoded_or_text(data: bytes) -> Any:
    """Decodes as `decoded` does, but returns data that is not JSON at all as text."""
    try:
        return decoded(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def encoded(value: Any) -> bytes:
    """Encodes a value as proper JSON, even if its strings contain lone surrogates."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(clean(value))


def clean(value: Any) -> Any:
    """Returns the value with everything replaced that proper JSON cannot contain; see the table."""
    if isinstance(value, str):
        return paired(value)
    if isinstance(value, dict):
        return {paired(name): clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def paired(text: str) -> str:
    """Returns the text with surrogate pairs joined and single halves replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class PairJoiner:
    """Joins surrogate pairs that were cut between two pieces of one text."""

    def __init__(self) -> None:
        # The first half of a pair whose second half may begin the next piece; otherwise empty.
        self._half = ""

    def add(self, text: str) -> str:
        """Returns the next piece of text; half a pair at its end is kept for the piece after it."""
        if self._half:
            text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text if text.isascii() else paired(text)

    def end(self) -> str:
        """Returns the rest after the last piece: U+FFFD for half a pair, otherwise nothing."""
        half, self._half = self._half, ""
        return "\ufffd" if half else ""


def number(value: Any) -> int | None:
    """Returns `value` as a whole number, rounded up; None if it is not a number.

    Many servers accept "4" and 4.0 as 4, as pydantic does by default.
    """
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return math.ceil(value) if isinstance(value, float) and math.isfinite(value) else None
