"""Finds the JSON in a model's reply, whatever prose or fences surround it.

Only strict JSON (RFC 8259) is accepted, and nothing is repaired, since a repaired guess would look
like an answer: a trailing comma, a comment, single quotes, NaN or a missing end breaks a value.
Values inside a broken object are not accepted either: they are only parts of an answer.

If a reply has several values, fenced values are preferred, and then the last: a reply that shows an
example, or that corrects itself, ends with its answer.

A reasoning tag or an end-of-turn tag inside a JSON string is data (synthesized training data has
them): it is escaped before the reasoning is removed.

Each token is read once, and a broken string twice: if a value is broken, every value around it is
broken at the same place, so none is retried. Therefore time is linear. (The standard library's
`raw_decode` takes longer, since it counts the lines of the whole text before each error.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Literal

from redline.tasks.answers.reasoning import spoken

Kind = Literal["object", "array"]

_MOST_DEPTH = 200  # deeper nesting is not an answer, and would exhaust the parser's stack
_OPEN = re.compile(r"[\[{]")
_BRACKET = re.compile(r"[\[\]{}]")
_CLOSE_OF = {"{": "}", "[": "]"}
_S = r"[ \t\n\r]*+"
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_STRINGS = re.compile(_STRING)
_KEY = re.compile(rf"{_STRING}{_S}:{_S}")
_VALUE = re.compile(
    rf"(?:(?P<open>[\[{{])|{_STRING}"
    r"|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![0-9A-Za-z_.])"
    rf"|(?:true|false|null)(?!\w)){_S}"
)
_SIGN = re.compile(rf"([,\]}}]){_S}")
_FENCE = re.compile(r"(?:```|~~~)[ \t]*([\w+.-]{0,16})\s{0,10}$")
_FENCE_END = re.compile(r"\s{0,8}(?:```|~~~)")
_NEAR = 40
# Each tag that `spoken` knows begins with one of these.
_TAG_BEGINS = re.compile("[<[◁]")


def find_json(reply: str, kind: Kind | None = None) -> dict[str, object] | list[object] | None:
    """Returns the object or array in the reply, or None if it has no complete one.

    kind: accepts only an object, or only an array. If a key occurs twice, the later value counts.
    JSON in `<think>` does not count. Time is linear in the reply's length. Never raises.
    """
    said = reply.removeprefix("\ufeff")
    text = spoken(said)
    if text != said:
        text = spoken(_with_data_escaped(said))
    wanted = "{[" if kind is None else "{" if kind == "object" else "["
    found = [
        (_is_fenced(text, start, end), start, end)
        for start, end in _values(text)
        if text[start] in wanted
    ]
    for _, start, end in sorted(found, reverse=True):
        try:
            parsed: dict[str, object] | list[object] = json.loads(
                text[start:end], parse_float=_finite
            )
        except ValueError:  # a number with more digits or a larger exponent than Python takes
            continue
        return parsed
    return None


def _with_data_escaped(text: str) -> str:
    """Escapes each character that could begin a tag inside a string of a complete JSON value."""

    def escaped(string: re.Match[str]) -> str:
        return _TAG_BEGINS.sub(lambda sign: f"\\u{ord(sign[0]):04x}", string[0])

    parts: list[str] = []
    done = 0
    for start, end in _values(text):
        parts += text[done:start], _STRINGS.sub(escaped, text[start:end])
        done = end
    return "".join([*parts, text[done:]])


def _values(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each outermost complete value."""
    ends: dict[int, int] | None = None
    at = 0
    while opened := _OPEN.search(text, at):
        start = opened.start()
        is_whole, at = _read(text, start)
        if is_whole:
            yield start, at
        elif text[start + 1 : at].strip():  # broken JSON, not a bracket in prose
            ends = _ends(text) if ends is None else ends
            at = max(at, ends.get(start, at))
        at = max(at, start + 1)


def _read(text: str, start: int) -> tuple[bool, int]:
    """Returns whether the value that opens at `start` is complete, and where it ends or breaks."""
    closing: list[str] = []
    at = start
    while True:
        value = _VALUE.match(text, at)
        if value is None or (value["open"] and len(closing) >= _MOST_DEPTH):
            return False, at
        at = value.end()
        if value["open"]:
            closing.append(_CLOSE_OF[value["open"]])
        is_complete = not value["open"] or text.startswith(closing[-1], at)
        while is_complete:
            sign = _SIGN.match(text, at)
            if sign is None or sign[1] not in (",", closing[-1]):
                return False, at
            is_complete = sign[1] != ","
            if is_complete:
                closing.pop()
                if not closing:
                    return True, sign.end(1)
            at = sign.end()
        if closing[-1] == "}":
            key = _KEY.match(text, at)
            if key is None:
                return False, at
            at = key.end()


def _ends(text: str) -> dict[int, int]:
    """Returns the end of each bracket pair by its start, judged by the brackets alone."""
    ends: dict[int, int] = {}
    open_at: list[int] = []
    for found in _BRACKET.finditer(text):
        if found[0] in _CLOSE_OF:
            open_at.append(found.start())
        elif open_at:
            ends[open_at.pop()] = found.end()
    return ends


def _is_fenced(text: str, start: int, end: int) -> bool:
    before = _FENCE.search(text[max(0, start - _NEAR) : start])
    return before is not None and bool(before[1] or _FENCE_END.match(text, end))


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond what a float holds")
    return value
