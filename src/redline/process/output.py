"""Formats and prints text for people; a failure to print affects neither work nor exit status.

`printable` makes text from outside safe to print: the text can then neither move the cursor nor
change the direction of other text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO, cast

# Control sequences of terminals (ECMA-48, 5.4 and 5.6): CSI with its parameters, control strings up
# to their terminator, and short escape sequences.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
# Other control characters except line feed and tab; the directional marks, embeddings, overrides
# and isolates of Unicode (UAX 9); zero-width characters; and tag characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# The same characters in the UTF-8 of JSON, which already escapes control characters below 32.
_HIDDEN_IN_JSON = re.compile(_HIDDEN.pattern.replace("\x00-\x08\x0b-\x1f", ""))
# Maximum characters of a list of names in a message: a table may have thousands of columns.
_LONGEST_LIST = 500


class _Lasting:
    """A stream that drops text it cannot write, for example after its terminal was closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            # ValueError: the stream was closed.
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


def lasting(stream: TextIO) -> TextIO:
    """Wraps `stream` so that errors while writing to it are ignored."""
    return stream if isinstance(stream, _Lasting) else cast("TextIO", _Lasting(stream))


def counted(number: int, one: str, many: str = "") -> str:
    """Formats a count: `1 row`, `2,000 rows`. many: the plural; by default, `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def clipped(text: str, longest: int) -> str:
    """Returns the text, cut to at most `longest` characters; a cut text ends with `...`."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def listed(names: Iterable[str]) -> str:
    """Joins names for a message: `text, label`, clipped if very long; `none` if there are none."""
    return clipped(", ".join(names) or "none", _LONGEST_LIST)


def duration(seconds: float) -> str:
    """Formats a duration: `under 0.1 s`, `4.2 s`, `42 s`, `3 m 05 s`, `2 h 07 m`, `3 d 04 h`."""
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02} h"


def three_digits(value: float) -> str:
    """Formats a value of 0 or more with at least three digits: `0.120`, `44.1` or `9,312`."""
    return f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}"


def cells(text: str) -> int:
    """Returns the number of terminal columns that the text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def printable(text: str) -> str:
    """Removes control sequences, and most control, zero-width and direction characters.

    Line feeds, tabs, and the joiners that some scripts and emoji need are kept.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub("", _SEQUENCES.sub("", text))


def printable_json(data: bytes) -> bytes:
    """Escapes the characters in JSON that `printable` would remove."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return _HIDDEN_IN_JSON.sub(_escaped, data.decode("utf-8", "surrogatepass")).encode()


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
