"""Streamed answers: server-sent events in, chunks out, one reply at the end.

The format is text/event-stream (WHATWG HTML, 9.2): fields by line, events by blank line; the API
ends a stream with `data: [DONE]`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from redline.calls import apis
from redline.calls.backend import Call, Chunk, Request, Sink
from redline.calls.outcome import Reply
from redline.calls.verdict import ENGINE_FAILED, lost
from redline.errors import BadReply, Disconnected

_LONGEST_EVENT_BYTES = 8 * 1024 * 1024


def streaming(request: Request) -> Request:
    """The same request, asking for a stream that ends with its usage."""
    if not isinstance(request.body, dict):
        return request
    body = {**request.body, "stream": True}
    if request.url.endswith("/completions"):
        body.setdefault("stream_options", {"include_usage": True})
    return msgspec.structs.replace(request, body=body)


class EventParser:
    """Bytes in, the data of whole events out, wherever the bytes were cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes. Raises BadReply for an endless one."""
        lines = (self._rest + data).replace(b"\r\n", b"\n")
        *events, self._rest = lines.split(b"\n\n")
        if len(self._rest) > _LONGEST_EVENT_BYTES:
            raise BadReply(f"a streamed event is longer than {_LONGEST_EVENT_BYTES:,} bytes")
        return [found for event in events if (found := _data_of(event)) is not None]


def _data_of(event: bytes) -> bytes | None:
    parts = [
        line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(parts) if parts else None


class _Spoken:
    """One choice of a streamed answer, as far as it has come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.tools: dict[int, dict[str, Any]] = {}
        self.finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> str:
        """The text that `choice` adds. Raises AttributeError or TypeError where misshapen."""
        delta = choice.get("delta") or {}
        content = choice.get("text") if delta.get("content") is None else delta["content"]
        text = _checked(apis.text_of(content))
        if text:
            self.texts.append(text)
        if refusal := _checked(delta.get("refusal")):
            self.refusals.append(refusal)
        for call in delta.get("tool_calls") or []:
            _merge(self.tools.setdefault(_index(call), {}), call)
        self.finish_reason = _checked(choice.get("finish_reason")) or self.finish_reason
        return text

    def as_choice(self) -> dict[str, Any]:
        """The choice as an unstreamed answer would hold it."""
        message = {
            "role": "assistant",
            "content": "".join(self.texts) if self.texts or not self.is_other else None,
            "refusal": "".join(self.refusals) or None,
            "tool_calls": [_unnumbered(self.tools[index]) for index in sorted(self.tools)] or None,
        }
        return {"message": message, "finish_reason": self.finish_reason}

    @property
    def is_other(self) -> bool:
        """It says something that is not content."""
        return bool(self.refusals or self.tools)


def _index(part: dict[str, Any]) -> int:
    index = part.get("index", 0)
    if not isinstance(index, int):
        raise TypeError
    return index


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
    """Hands the chunks of one stream to a sink and puts the whole reply together."""

    def __init__(self, sink: Sink, call: Call) -> None:
        self._sink = sink
        self._call = call
        self._parser = EventParser()
        self._choices: dict[int, _Spoken] = {}
        self._is_done = False
        self._known: dict[str, Any] = {}  # id, model and usage, which any event may bring
        self._whole: bytes | None = None
        self.has_begun = False

    async def take(self, data: bytes) -> None:
        """Parses `data` and hands on what it completes; waits for the sink.

        Raises BadReply, and NoEndpoint where a local engine has failed in the middle.
        """
        for event in self._parser.feed(data):
            self.has_begun = True
            if event == b"[DONE]":
                self._is_done = True
                continue
            try:
                parsed = msgspec.json.decode(event)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
                raise BadReply(f"a streamed event is not JSON: {apis.quote(event)}") from cause
            if not isinstance(parsed, dict):
                raise BadReply(f"a streamed event is not an object: {apis.quote(event)}")
            if error := parsed.get("error"):
                if isinstance(error, dict) and error.get("code") == ENGINE_FAILED:
                    raise lost(str(error.get("message")))
                raise BadReply(f"the stream broke off with an error: {apis.quote(event)}")
            try:
                text = self._note(parsed)
            except (AttributeError, TypeError) as cause:
                raise BadReply(f"a streamed event is misshapen: {apis.quote(event)}") from cause
            # From here on the caller has seen a part of the answer: no retry.
            self._call.committed = True
            await self._sink.put(Chunk(text, parsed))

    def finish(self) -> Reply:
        """The reply that the stream made. Raises Disconnected if its end never came."""
        if self._whole is not None:
            return apis.read("/v1/responses", self._whole)
        choices = [self._choices[index] for index in sorted(self._choices)]
        has_ended = bool(choices) and all(choice.finish_reason for choice in choices)
        if not self._is_done and not has_ended:
            raise Disconnected("the stream ended before its answer was whole")
        whole = {**self._known, "choices": [choice.as_choice() for choice in choices]}
        return apis.read("/v1/chat/completions", msgspec.json.encode(whole))

    def _note(self, event: dict[str, Any]) -> str:
        """The event's new text; keeps what the reply will need."""
        kind = event.get("type")
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
            text = self._choices.setdefault(index, _Spoken()).add(choice)
            first = text if index == 0 else first
        return first
