"""The JSON that stands in a model's reply, whatever prose or fences stand around it.

Only strict JSON is taken (RFC 8259) and nothing is repaired: a trailing comma, a comment, single
quotes, NaN or a missing end make it broken, since a repaired guess would look like an answer. What
a broken object holds inside is not taken either: it is a part, and not the reply.

Of several values the one in a fence goes first, then the last: a reply that shows an example, or
that corrects itself, ends with what it means.

States of the scanner, by what it expects next:

| state   | in an object      | in an array         | then                                       |
|---------|-------------------|---------------------|--------------------------------------------|
| `first` | a key, or the end | a value, or the end | as after `key` or `value`                  |
| `key`   | a string          |                     | `colon`                                    |
| `colon` | `:`               |                     | `value`                                    |
| `value` | a value           | a value             | `next`, or `first` within what it opens    |
| `next`  | `,` or the end    | `,` or the end      | `key`, `value`, or `next` around its end   |

Each token is read once, and a broken string twice: where a value breaks, all that it stands in
break at the same place, so none of them is tried again. Hence time is linear.
"""

from __future__ import annotations

import json
import math
import re
from typing import Literal, NamedTuple

from redline.tasks.answers.sections import spoken

Kind = Literal["object", "array"]

_MOST_DEPTH = 200  # deeper is no answer, and would exhaust the parser's stack
_SPACE = re.compile(r"[ \t\n\r]*+")
_TOKEN = re.compile(
    r'[\[\]{},:]|"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
    r"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![0-9A-Za-z_.])"
    r"|(?:true|false|null)(?!\w)"
)
_OPEN = re.compile(r"[\[{]")
_BRACKET = re.compile(r"[\[\]{}]")
_CLOSE_OF = {"{": "}", "[": "]"}
_FENCE_BEFORE = re.compile(r"(?:```|~~~)[ \t]*([\w+.-]{0,16})[ \t]*\n?\s{0,8}$")
_FENCE_AFTER = re.compile(r"\s{0,8}(?:```|~~~)")
_NEAR = 40


class _Value(NamedTuple):
    """A complete value of the text, and whether it stands in a fence."""

    start: int
    end: int
    is_fenced: bool


class _Scan(NamedTuple):
    """Where a value ends, or None, and where the reading stopped.

    has_begun: something of it was read, so that it is broken JSON and no bracket of prose.
    """

    end: int | None
    at: int
    has_begun: bool


def find_json(reply: str, kind: Kind | None = None) -> dict[str, object] | list[object] | None:
    """The object or array that the reply holds, or None where it holds none that is whole.

    kind: only an object, or only an array. Of a key that stands twice the later value counts.
    Reasoning in `<think>` is no part of the reply. Time is linear in the reply's length. Never
    raises.
    """
    text = spoken(reply.removeprefix("\ufeff"))
    wanted = "{[" if kind is None else "{" if kind == "object" else "["
    values = [value for value in _values(text) if text[value.start] in wanted]
    for value in sorted(values, key=lambda value: (value.is_fenced, value.start), reverse=True):
        try:
            parsed: dict[str, object] | list[object] = json.loads(
                text[value.start : value.end], parse_float=_finite
            )
        except ValueError:  # a number with more digits or a larger exponent than Python takes
            continue
        return parsed
    return None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond what a float holds")
    return value


def _values(text: str) -> list[_Value]:
    """Every object and array of the text that stands in no other, in order."""
    found: list[_Value] = []
    ends: dict[int, int] | None = None
    at = 0
    while opened := _OPEN.search(text, at):
        start = opened.start()
        scan = _scan(text, start)
        if scan.end is not None:
            found.append(_Value(start, scan.end, _is_fenced(text, start, scan.end)))
            at = scan.end
            continue
        at = max(scan.at, start + 1)
        if scan.has_begun:
            ends = _bracket_ends(text) if ends is None else ends
            at = max(at, ends.get(start, at))
    return found


def _scan(text: str, start: int) -> _Scan:
    """Reads the one value that opens at `start`."""
    stack = [text[start]]
    at, expected, has_begun = start + 1, "first", False
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        found = _TOKEN.match(text, at)
        if found is None:
            return _Scan(None, at, has_begun)
        token, is_object = found[0], stack[-1] == "{"
        if token == _CLOSE_OF[stack[-1]] and expected in {"first", "next"}:
            stack.pop()
            if not stack:
                return _Scan(found.end(), found.end(), True)
            expected = "next"
        elif expected in {"next", "colon"}:
            if token != ("," if expected == "next" else ":"):
                return _Scan(None, at, has_begun)
            expected = "key" if expected == "next" and is_object else "value"
        elif is_object and expected != "value":
            if token[0] != '"':
                return _Scan(None, at, has_begun)
            expected = "colon"
        elif token in _CLOSE_OF:
            if len(stack) == _MOST_DEPTH:
                return _Scan(None, at, True)
            stack.append(token)
            expected = "first"
        elif token in {"]", "}", ",", ":"}:
            return _Scan(None, at, has_begun)
        else:
            expected = "next"
        has_begun = True
        at = found.end()


def _bracket_ends(text: str) -> dict[int, int]:
    """Where each bracket's partner ends, by brackets alone; one without a partner is left out."""
    ends: dict[int, int] = {}
    open_at: list[int] = []
    for found in _BRACKET.finditer(text):
        if found[0] in _CLOSE_OF:
            open_at.append(found.start())
        elif open_at:
            ends[open_at.pop()] = found.end()
    return ends


def _is_fenced(text: str, start: int, end: int) -> bool:
    before = _FENCE_BEFORE.search(text[max(0, start - _NEAR) : start])
    if before is None:
        return False
    return bool(before[1]) or _FENCE_AFTER.match(text, end) is not None
