"""Parses the lines of an output in any of its formats; formats and hashes their answers."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import msgspec

from redline.apis import replies
from redline.errors import RedlineError
from redline.journal import FAIL_ON

_NULL = msgspec.Raw(b"null")
_BATCH = b'{"id":"redline_'
# The path of the API that a batch line's answer comes from, by the answer's `object`. Answers with
# any other `object` are read as plain JSON.
_PATHS = {
    "chat.completion": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "list": "/v1/embeddings",
    "response": "/v1/responses",
}
_SORTED = msgspec.json.Encoder(order="sorted")
_encode = msgspec.json.Encoder().encode
# The number of elements of a vector that are shown.
_NUMBERS_SHOWN = 4


class Error(msgspec.Struct, frozen=True):
    """The error in a failure's line."""

    kind: str
    message: str = ""
    status: int | None = None
    where: str = ""
    hint: str = ""


class Line(msgspec.Struct, kw_only=True):
    """A result or a failure. error: None for a result. For the other fields, see docs/results.md.

    Only `redline eval` writes correct, verdict and judge_usage; only `redline tag` writes reasks;
    only `redline synth` writes dropped.
    """

    row: int = 0
    custom_id: str | None = None
    error: Error | None = None
    output: msgspec.Raw = _NULL
    tool_calls: msgspec.Raw = _NULL
    finish_reason: str | list[str | None] | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    endpoint: str = ""
    attempts: int = 0
    latency_s: float = 0.0
    cached: bool = False
    batched: bool = False
    input: msgspec.Raw = _NULL
    correct: Any = None
    verdict: Any = None
    judge_usage: dict[str, Any] | None = None
    reasks: Any = None
    dropped: Any = None

    @property
    def name(self) -> str:
        """The row's name: `row 17`, or `row 17 (greet)` if it has the custom_id `greet`."""
        return f"row {self.row:,}" + (f" ({self.custom_id})" if self.custom_id else "")

    @property
    def reason(self) -> str | None:
        """The finish reason; for several choices, each different reason, flaws first."""
        found = self.finish_reason
        if not isinstance(found, list):
            return found
        named = sorted(
            {each or "none" for each in found}, key=lambda one: (one not in FAIL_ON, one)
        )
        return " and ".join(named) or None

    @property
    def is_cut(self) -> bool:
        """Whether the answer, or one of its choices, was cut at the token limit."""
        found = self.finish_reason
        return found == "length" or (isinstance(found, list) and "length" in found)

    @property
    def has_input(self) -> bool:
        """Whether the line contains the row that was sent."""
        return self.input != _NULL

    @property
    def is_of_task(self) -> bool:
        """Whether the line has a field that only `redline eval`, `tag` or `synth` writes."""
        return not (self.verdict is self.reasks is self.dropped is None)

    def text(self) -> str:
        """Formats the answer for people to read, with its tool calls.

        One text is unchanged, several are numbered, other JSON is written on one line, and vectors
        are shortened.
        """
        parts = [_text(msgspec.json.decode(self.output))]
        if self.tool_calls != _NULL:
            parts.append(f"tool calls: {bytes(self.tool_calls).decode('utf-8', 'replace')}")
        return "\n".join(part for part in parts if part)

    def input_text(self) -> str:
        """Formats the row that was sent, as the function `input_text` does; empty without a row."""
        return input_text(self.input)

    def output_hash(self) -> int:
        """Returns a 64-bit hash of the answer, never 0: equal answers have equal hashes.

        Neither the order of an object's keys nor the ids and indices of tool calls matter.
        """
        hashed = blake2b(_canonical(self.output), digest_size=8)
        if self.tool_calls != _NULL:
            hashed.update(_SORTED.encode(_without_ids(msgspec.json.decode(self.tool_calls))))
        return int.from_bytes(hashed.digest(), "big") or 1


class _Response(msgspec.Struct):
    body: msgspec.Raw = _NULL


class _BatchLine(Line, kw_only=True):
    response: _Response | None = None


class _Kind(msgspec.Struct):
    object: Any = None


_LINE = msgspec.json.Decoder(Line)
_BATCH_LINE, _KIND = msgspec.json.Decoder(_BatchLine), msgspec.json.Decoder(_Kind)


def read_line(data: bytes) -> Line | None:
    """Parses a line of a results or failures file; returns None if it cannot be parsed.

    For instance, another version of redline wrote the line, or its JSON is nested too deeply.
    """
    try:
        if not data.startswith(_BATCH):
            return _LINE.decode(data)
        line = _BATCH_LINE.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    if line.response is not None:
        _read_body(line, bytes(line.response.body))
    return line


def _read_body(line: Line, body: bytes) -> None:
    """Sets the fields that lines in other formats have, from the response in a batch line."""
    try:
        kind = _KIND.decode(body).object
        reply = replies.read(_PATHS.get(kind, "/") if isinstance(kind, str) else "/", body)
    except (RedlineError, msgspec.DecodeError):
        # The answer is not an object: a user's function may return any JSON.
        line.output = msgspec.Raw(body)
        return
    line.output = msgspec.Raw(_encode(reply.output))
    if reply.tool_calls is not None:
        line.tool_calls = msgspec.Raw(_encode(reply.tool_calls))
    line.finish_reason, line.usage, line.model = reply.finish_reason, reply.usage, reply.model


def input_text(row: msgspec.Raw) -> str:
    """Formats a row for people to read; each column begins on a new line."""
    value = msgspec.json.decode(row)
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_text(each)}" for name, each in value.items())
    return _text(value)


def _canonical(output: msgspec.Raw) -> bytes:
    """Returns the JSON in a form in which equal answers are equal bytes: with sorted keys."""
    data = bytes(output)
    may_hold_objects = data[:1] != b'"' and b"{" in data
    return _SORTED.encode(msgspec.json.decode(data)) if may_hold_objects else data


def _without_ids(calls: Any, lists: int = 2) -> Any:
    """Returns tool calls without their ids and indices.

    calls: the list of an answer's tool calls, or a list of such lists, one for each choice.
    """
    if isinstance(calls, list) and lists:
        return [_without_ids(call, lists - 1) for call in calls]
    if isinstance(calls, dict):
        return {name: value for name, value in calls.items() if name not in ("id", "index")}
    return calls


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return "\n".join(f"[{number}] {each}" for number, each in enumerate(value, 1))
        if all(_is_vector(each) for each in value):
            return "\n".join(f"[{number}] {_text(each)}" for number, each in enumerate(value, 1))
        if _is_vector(value):
            shown = ", ".join(f"{each:.4g}" for each in value[:_NUMBERS_SHOWN])
            return f"[{shown}, ...] {len(value):,} numbers"
    return json.dumps(value, ensure_ascii=False)


def _is_vector(value: Any) -> bool:
    """Whether the value is a list of numbers that is too long to be shown in full."""
    if not isinstance(value, list) or len(value) <= _NUMBERS_SHOWN:
        return False
    return all(type(each) in (int, float) for each in value)
