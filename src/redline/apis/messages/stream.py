"""Converts the events of a streamed chat to those of a streamed message.

The events of a message are message_start; then content_block_start, content_block_delta and
content_block_stop for each block; then message_delta with the stop reason and the usage; and
message_stop. Comments and thinking are not passed on to the client: once the message has begun,
each of them becomes a ping.

A block ends when the next one begins. Only a tool call whose arguments are incomplete by then ends
later, since a server may mix the pieces of several calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from redline.apis import chat
from redline.apis.choices import text_of
from redline.apis.error_inside import error_event, judge_choice, judge_error
from redline.apis.event_stream import DONE, ErrorData, EventParser, event_bytes
from redline.apis.loose_json import PairJoiner, clean, decoded_or_text
from redline.apis.messages.answers import opening, stop_of, tool_use, usage_of
from redline.apis.streams import read_event
from redline.errors import BadReply

Object = dict[str, Any]

_MOST_CALLS = 1000
_PING = event_bytes({"type": "ping"}, "ping")
_OUTSIDE = re.compile(r'[{}\[\]"]')
_INSIDE = re.compile(r'["\\]')


class MessageStream:
    """Converts the bytes of one streamed chat to the bytes of a streamed message.

    model, stop_sequences: as for `message_of`. has_begun: whether the message has begun. Only the
    state of the blocks is kept, not the answer itself.
    """

    def __init__(self, *, model: str = "", stop_sequences: Collection[str] = ()) -> None:
        self._parser = EventParser()
        self._model = model
        self._stop_sequences = stop_sequences
        self._blocks = 0
        self._text: _Text | None = None
        self._calls: dict[int, _Call] = {}
        self._open: list[_Call] = []
        self._has_calls = self._is_refused = self._is_done = False
        self._last: Object = {}
        self._usage: Any = None
        self.has_begun = False

    def feed(self, data: bytes) -> bytes:
        """Returns the message's events for those chat events that `data` completes.

        data: the next bytes, which may begin and end anywhere. Raises CallError or NoEndpoint for
        an event that is an error, and BadReply for an event in another format.
        """
        out = []
        for _, event in self._parser.blocks(data):
            if self._is_done:
                break
            if event is None:
                out += [_PING] if self.has_begun else []
            elif event == DONE:
                self._is_done = True
            elif isinstance(event, ErrorData):
                raise judge_error(decoded_or_text(event), {}, 0.0)
            else:
                out.append(self.take(read_event(event)[0]))
        return b"".join(out)

    def take(self, event: Object) -> bytes:
        """Returns the message's events for one chat event, which may contain the whole chat.

        Raises what `feed` raises.
        """
        if (found := error_event(event)) is not None:
            raise judge_error(found, {}, 0.0)
        out = []
        try:
            choices = event.get("choices") or ()
            # Perplexity repeats in `message` all that it has sent in `delta`.
            if any("message" in each and each.get("delta") is None for each in choices):
                choices = chat.event_of(event)["choices"]
            if not self.has_begun:
                self.has_begun = True
                out.append(_named("message_start", message=opening(event, self._model)))
            if isinstance(event.get("usage"), dict):
                self._usage = event["usage"]
            for choice in choices:
                if not choice.get("index"):
                    out += self._chosen(choice)
        except (AttributeError, KeyError, TypeError) as error:
            raise BadReply("a streamed event is not a chunk of a chat completion") from error
        return b"".join(out)

    def end(self) -> bytes:
        """Returns the events that end the message; call it once the chat's stream is complete."""
        out = [] if self.has_begun else [self.take({})]
        out += self._close(is_end=True)
        reason, sequence = stop_of(
            self._last,
            self._stop_sequences,
            is_called=self._has_calls,
            is_refused=self._is_refused,
        )
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        out.append(_named("message_delta", delta=delta, usage=usage_of(self._usage)))
        out.append(_named("message_stop"))
        return b"".join(out)

    def _chosen(self, choice: Object) -> Iterator[bytes]:
        """Yields the message's events for the new part of the first choice."""
        if error := judge_choice(0, choice.get("error"), choice.get("finish_reason")):
            raise error
        delta = choice.get("delta") or {}
        is_shown = False
        for text in (text_of(delta.get("content")), delta.get("refusal")):
            if text:
                is_shown = True
                yield from self._say(text)
        self._is_refused = self._is_refused or bool(delta.get("refusal"))
        for call in delta.get("tool_calls") or ():
            is_shown = True
            yield from self._call(call)
        if choice.get("finish_reason") is not None:
            self._last = {name: choice[name] for name in _LAST if name in choice}
        elif not is_shown and any(delta.get(name) for name in _THOUGHTS):
            yield _PING

    def _say(self, text: str) -> Iterator[bytes]:
        if self._text is None:
            yield from self._close()
            self._text = _Text(self._blocks)
            yield self._start({"type": "text", "text": ""})
        yield from self._text.add(text)

    def _call(self, piece: Object) -> Iterator[bytes]:
        index = piece.get("index") or 0
        function = piece.get("function") or {}
        call = self._calls.get(index)
        if call is None or call.is_followed_by(piece.get("id"), function.get("name")):
            if not isinstance(function.get("name"), str) or not function["name"]:
                raise BadReply("a streamed tool call begins without naming its tool")
            if self._blocks >= _MOST_CALLS:
                raise BadReply(f"a streamed answer has more than {_MOST_CALLS} parts")
            yield from self._close()
            call = self._calls[index] = _Call(self._blocks, piece.get("id"))
            self._open.append(call)
            self._has_calls = True
            yield self._start(tool_use(piece))
        if arguments := function.get("arguments"):
            if not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()
            yield from call.add(arguments)

    def _start(self, block: Object) -> bytes:
        index = self._blocks
        self._blocks += 1
        return _named("content_block_start", index=index, content_block=block)

    def _close(self, *, is_end: bool = False) -> Iterator[bytes]:
        """Yields the ends of open blocks that are complete; is_end: of all open blocks."""
        if self._text is not None:
            yield from self._text.close()
            self._text = None
        for call in [*self._open]:
            if is_end or call.is_whole:
                self._open.remove(call)
                yield from call.close()


# The fields of a choice's last event that say why the choice ended.
_LAST = ("finish_reason", "stop_reason", "matched_stop")
# The fields in which servers send a model's thinking.
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details")


class _Block:
    """A block that has begun and not ended. index: its place in the message."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._joiner = PairJoiner()

    def _delta(self, delta: Object) -> bytes:
        return _named("content_block_delta", index=self._index, delta=delta)

    def close(self) -> Iterator[bytes]:
        yield _named("content_block_stop", index=self._index)


class _Text(_Block):
    """A block of text."""

    def add(self, text: str) -> Iterator[bytes]:
        if text := self._joiner.add(text):
            yield self._delta({"type": "text_delta", "text": text})

    def close(self) -> Iterator[bytes]:
        if rest := self._joiner.end():
            yield self._delta({"type": "text_delta", "text": rest})
        yield from super().close()


class _Call(_Block):
    """A tool call. name: its id. is_whole: whether its arguments are a complete JSON value."""

    def __init__(self, index: int, name: Any) -> None:
        super().__init__(index)
        self._name = name
        self._depth = 0
        self._is_quoted = self._is_escaped = self._is_closed = False
        self.is_whole = False

    def is_followed_by(self, name: Any, tool: Any) -> bool:
        """Whether a piece at the same index begins another call.

        name, tool: the piece's id and tool. Gemini gives index 0 to all calls of an answer.
        """
        return self.is_whole and bool(tool) and not (name and name == self._name)

    def add(self, arguments: str) -> Iterator[bytes]:
        if self._is_closed:
            if arguments.strip():
                raise BadReply("a streamed tool call continues after its arguments were complete")
            return
        if arguments := self._joiner.add(arguments):
            self._scan(arguments)
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def close(self) -> Iterator[bytes]:
        self._is_closed = True
        yield from super().close()

    def _scan(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_INSIDE if self._is_quoted else _OUTSIDE).search(text, at)
            if found is None:
                return
            at, mark = found.end(), found[0]
            if mark == "\\":
                self._is_escaped = True
            elif mark == '"':
                self._is_quoted = not self._is_quoted
            else:
                self._depth += 1 if mark in "{[" else -1
                self.is_whole = self._depth <= 0


def _named(name: str, **fields: Any) -> bytes:
    event = {"type": name, **fields}
    try:
        return event_bytes(event, name)
    except UnicodeEncodeError:
        return event_bytes(clean(event), name)
