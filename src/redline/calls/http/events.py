"""Streamed answers: server-sent events in, chunks out, one reply at the end.

The format is text/event-stream (WHATWG HTML, 9.2): fields by line, events by blank line; the API
ends a stream with `data: [DONE]`, and what follows that is not a part of the answer.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import msgspec

from redline.apis import judge_choice, judge_part, loose_json, text_of
from redline.apis import replies as apis
from redline.calls.http.masking import NO_SECRETS, Mask
from redline.errors import BadReply, BadRow, CallError, Disconnected, NoEndpoint
from redline.waist import Call, Chunk, Reply, Request, Sink

_LONGEST_EVENT_BYTES = 8 * 1024 * 1024
# What servers that are lenient about types take for true.
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_PARTIAL = frozenset({"stream", "background"})
_API = re.compile(r"/(completions|embeddings|responses)/?(\?|$)").search


def streaming(request: Request) -> Request:
    """The same request, asking for a stream that ends with its usage."""
    body = request.body
    if (
        request.url.endswith("/completions")
        and isinstance(body, dict)
        and "stream_options" not in body
    ):
        return request.with_fields(stream=True, stream_options={"include_usage": True})
    return request.with_fields(stream=True)


def refuse_partial(request: Request) -> None:
    """Raises BadRow for a request whose answer would not come whole, before it is sent."""
    body = request.body
    if not isinstance(body, dict) or _PARTIAL.isdisjoint(body):
        return
    if "stream" in body and _is_true(body["stream"], request.url):
        raise BadRow(
            "the row asks for a stream, and answers are written when they are whole",
            hint="leave `stream` out of it; redline.Client.stream reads answers as they come",
        )
    if "background" in body and _is_true(body["background"], request.url):
        raise BadRow(
            "the row asks for an answer in the background, which is not whole when it comes",
            hint="leave `background` out of it",
        )


def _is_true(value: Any, url: str) -> bool:
    """A plain endpoint may have a field of the same name for something else."""
    return value is True or (str(value).lower() in _TRUE and _API(url) is not None)


class ErrorData(bytes):
    """The data of an event that is named `error`."""


class EventParser:
    """Bytes in, the data of whole events out, wherever the bytes were cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True
        self._ends_with_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes, as ErrorData for errors.

        Raises BadReply for an endless event.
        """
        if self._is_first:
            data, self._rest = self._rest + data, b""
            if loose_json.BOM.startswith(data):
                self._rest = data
                return []
            data = data.removeprefix(loose_json.BOM)
            self._is_first = False
        if data:
            # A line ends with CR, LF or both, which may come apart.
            is_second_half = self._ends_with_cr and data.startswith(b"\n")
            self._ends_with_cr = data.endswith(b"\r")
            data = data[1:] if is_second_half else data
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > _LONGEST_EVENT_BYTES:
            raise BadReply(f"a streamed event is longer than {_LONGEST_EVENT_BYTES:,} bytes")
        return [found for event in events if (found := _data_of(event)) is not None]

    def rest(self) -> bytes | None:
        """The data of an event that the stream's end has cut short; None for none."""
        return _data_of(self._rest)


def _data_of(event: bytes) -> bytes | None:
    lines = event.split(b"\n")
    parts = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    if names[-1:] == [b"error"]:
        return ErrorData(b"\n".join(parts))
    return b"\n".join(parts) if parts else None


class _Spoken:
    """One choice of a streamed answer, as far as it has come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.tools: dict[int, dict[str, Any]] = {}
        self.finish_reason: str | int | None = None
        # The first half of a surrogate pair, whose other half may come with the next event.
        self._half = ""

    def add(self, choice: dict[str, Any]) -> str:
        """The text that `choice` adds. Raises AttributeError or TypeError where misshapen."""
        delta = choice.get("delta") or {}
        content = choice.get("text") if delta.get("content") is None else delta["content"]
        text = self._paired(_checked(text_of(content)))
        if text:
            self.texts.append(text)
        if refusal := _checked(delta.get("refusal")):
            self.refusals.append(refusal)
        for call in delta.get("tool_calls") or []:
            _merge(self.tools.setdefault(_index(call), {}), call)
        reason = choice.get("finish_reason")
        self.finish_reason = (
            reason if type(reason) is int else _checked(reason) or self.finish_reason
        )
        return text

    def _paired(self, text: str) -> str:
        """The text without half a surrogate pair at its end, which is kept for the next one."""
        if self._half:
            text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text if text.isascii() else loose_json.paired(text)

    def as_choice(self, index: int) -> dict[str, Any]:
        """The choice as an unstreamed answer would hold it."""
        if self._half:
            self.texts.append("\ufffd")
        message = {
            "role": "assistant",
            "content": "".join(self.texts) if self.texts or not self.is_other else None,
            "refusal": "".join(self.refusals) or None,
            "tool_calls": [_unnumbered(self.tools[index]) for index in sorted(self.tools)] or None,
        }
        return {"index": index, "message": message, "finish_reason": self.finish_reason}

    @property
    def is_other(self) -> bool:
        """It says something that is not content."""
        return bool(self.refusals or self.tools)


def _index(part: dict[str, Any]) -> int:
    index = part.get("index")
    if index is not None and type(index) is not int:
        raise TypeError
    return index or 0


def _checked(text: Any) -> str:
    if text is not None and not isinstance(text, str):
        raise TypeError
    return text or ""


def _merge(whole: dict[str, Any], part: dict[str, Any]) -> None:
    """Adds a tool call's next piece: names come once, `arguments` in pieces."""
    for name, value in part.items():
        if isinstance(value, dict):
            _merge(whole.setdefault(name, {}), value)
        elif name == "arguments" and isinstance(value, str):
            whole[name] = whole.get(name, "") + value
        elif value is not None:
            whole[name] = value


def _unnumbered(tool_call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool_call.items() if name != "index"}


class StreamReader:
    """Hands the chunks of one stream to a sink and puts the whole reply together.

    asked: the request's body, by which the choices are counted. mask: hides secrets in errors.
    """

    def __init__(self, sink: Sink, call: Call, asked: Any = None, mask: Mask = NO_SECRETS) -> None:
        self._sink = sink
        self._call = call
        self._asked = asked
        self._mask = mask
        self._parser = EventParser()
        self._choices: dict[int, _Spoken] = {}
        self._is_done = False
        self._known: dict[str, Any] = {}  # id, model and usage, which any event may bring
        self._whole: bytes | None = None
        self.has_begun = False

    async def take(self, data: bytes) -> None:
        """Parses `data` and hands on what it completes; waits for the sink.

        Raises CallError, and NoEndpoint if a local engine has failed in the middle.
        """
        for event in self._parser.feed(data):
            self.has_begun = True
            if self._is_done:
                return
            if event == b"[DONE]":
                self._is_done = True
                return
            if isinstance(event, ErrorData):
                raise self._judged(event)
            text, parsed = self._mask.read(event, self._understood)
            # From here on the caller has seen a part of the answer: no retry.
            self._call.committed = True
            await self._sink.put(Chunk(text, parsed))

    def finish(self) -> Reply:
        """The reply that the stream made. Raises CallError if it is not whole."""
        rest = self._parser.rest()
        if isinstance(rest, ErrorData) and not self._is_done:
            raise self._judged(rest)
        if self._whole is not None:
            return self._mask.read(self._whole, partial(apis.read, "/v1/responses"))
        choices = [self._choices[index] for index in sorted(self._choices)]
        reasons = [choice.finish_reason is not None for choice in choices]
        # Some servers give no reason at all; one that gives it gives it for each choice.
        has_ended = bool(reasons) and all(reasons)
        if not has_ended and (any(reasons) or not self._is_done):
            raise Disconnected("the stream ended before its answer was whole")
        parts = [choice.as_choice(index) for index, choice in sorted(self._choices.items())]
        whole = msgspec.json.encode({**self._known, "choices": parts})
        return apis.read("/v1/chat/completions", whole, asked=self._asked)

    def _understood(self, event: bytes) -> tuple[str, dict[str, Any]]:
        """The event's new text, and its JSON. Raises CallError, and NoEndpoint."""
        parsed, is_loose = _parsed(event)
        try:
            text = self._note(parsed)
        except (AttributeError, TypeError) as cause:
            raise BadReply(f"a streamed event is misshapen: {apis.quote(event)}") from cause
        return text, loose_json.clean(parsed) if is_loose else parsed

    def _judged(self, event: bytes) -> CallError | NoEndpoint:
        """The error that an event tells of."""
        event = self._mask.body(event)
        try:
            found = msgspec.json.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = event.decode("utf-8", "replace")
        error = found.get("error") if isinstance(found, dict) else None
        is_begun = self._call.committed
        return judge_part("the stream broke off with an error", error or found, is_begun=is_begun)

    def _note(self, event: dict[str, Any]) -> str:
        """The event's new text; keeps what the reply will need. Raises its error, if it has one."""
        kind = event.get("type")
        if event.get("error") or kind == "error" or event.get("object") == "error":
            raise self._judged(json.dumps(event).encode())
        if isinstance(kind, str) and kind.startswith("response."):
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                self._whole = msgspec.json.encode(event.get("response"))
            return str(event.get("delta", "")) if kind == "response.output_text.delta" else ""
        if isinstance(event.get("usage"), dict):
            self._known["usage"] = event["usage"]
        for name in ("id", "model"):
            if isinstance(event.get(name), str):
                self._known[name] = event[name]
        first = ""
        for choice in event.get("choices") or []:
            index = _index(choice)
            if error := judge_choice(index, choice.get("error"), choice.get("finish_reason")):
                raise error
            text = self._choices.setdefault(index, _Spoken()).add(choice)
            first = text if index == 0 else first
        return first


def _parsed(event: bytes) -> tuple[dict[str, Any], bool]:
    """The JSON object of an event, and whether only `loose_json` reads it. Raises BadReply."""
    is_loose = False
    try:
        found = msgspec.json.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        is_loose = True
        try:
            found = loose_json.parsed(event)
        except (ValueError, RecursionError):
            raise BadReply(f"a streamed event is not JSON: {apis.quote(event)}") from cause
    if not isinstance(found, dict):
        raise BadReply(f"a streamed event is not an object: {apis.quote(event)}")
    return found, is_loose
