"""Assembles the events of a stream into the answer that a call without streaming would get."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.apis import chat, loose_json, responses
from redline.apis.choices import Object, text_of
from redline.apis.error_inside import ErrorInside, error_event, judge_choice
from redline.apis.loose_json import PairJoiner, encoded
from redline.apis.replies import quote
from redline.errors import BadReply, Disconnected


class _ChoiceHead(msgspec.Struct):
    index: int | None = None
    finish_reason: Any = None
    error: Any = None


class _EventHead(msgspec.Struct):
    """The fields of an event that are read even if its text is not needed."""

    type: Any = None
    object: Any = None
    error: Any = None
    usage: Any = None
    choices: list[_ChoiceHead] | None = None


# The field of a tool call that comes in pieces.
_ARGUMENTS = "arguments"
_HEAD = msgspec.json.Decoder(_EventHead)


def read_event(data: bytes) -> tuple[Object, bool]:
    """Returns the JSON object of an event, and whether only `loose_json` can read its data.

    Raises BadReply if the data is not a JSON object.
    """
    is_loose = False
    try:
        found = msgspec.json.decode(data)
    except (ValueError, RecursionError) as cause:
        is_loose = True
        try:
            found = loose_json.parsed(data)
        except (ValueError, RecursionError):
            raise BadReply(f"a streamed event is not JSON: {quote(data)}") from cause
    if not isinstance(found, dict):
        raise BadReply(f"a streamed event is not an object: {quote(data)}")
    return found, is_loose


class StreamedAnswer:
    """Collects the events of one answer, as far as they have arrived."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._known: Object = {}  # id, model and usage, which any event may contain
        self._response: bytes | None = None

    def add(self, event: Object) -> str:
        """Adds an event and returns the text that it adds to the first choice.

        Raises ErrorInside for an event that is an error or a failed response, CallError or
        NoEndpoint for a choice that broke off, and AttributeError or TypeError for a malformed
        event.
        """
        if (found := error_event(event)) is not None:
            raise ErrorInside(found)
        kind = event.get("type")
        if isinstance(kind, str) and kind.startswith("response."):
            if responses.is_last(event):
                response = event.get("response")
                if kind == "response.failed":
                    raise ErrorInside((response or {}).get("error") or "the response failed")
                self._response = encoded(response)
            return responses.text_of_event(event)
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
            text = self._choices.setdefault(index, _Choice()).add(choice)
            first = text if index == 0 else first
        return first

    def skim(self, event: bytes) -> bool:
        """Whether the event only continues the text of choices; if not, `add` must read it.

        The text of skimmed events is missing from the answer.
        """
        try:
            head = _HEAD.decode(event)
        except (ValueError, RecursionError):
            return False
        kind = head.type
        if isinstance(kind, str) and kind.startswith("response."):
            return not (head.error or responses.is_last({"type": kind}))
        is_error = head.error or "error" in (kind, head.object)
        # An event without choices may be an error in another form.
        if not (self._known and head.choices) or head.usage or is_error:
            return False
        for choice in head.choices:
            if choice.error or choice.finish_reason is not None:
                return False
            if (choice.index or 0) not in self._choices:
                return False
        return True

    @property
    def is_whole(self) -> bool:
        """Whether an event has delivered the whole answer, as the last one of a response does."""
        return self._response is not None

    @property
    def finish_reasons(self) -> list[Any]:
        """The finish reason of each choice, as the endpoint sent it; None until it is sent."""
        return [self._choices[index].finish_reason for index in sorted(self._choices)]

    def whole(self, *, is_done: bool) -> tuple[str, bytes]:
        """Returns the API's path and the body that the same answer has without streaming.

        is_done: whether the stream announced its end. Raises Disconnected for an incomplete answer.
        """
        if self._response is not None:
            return responses.API.path, self._response
        reasons = [reason is not None for reason in self.finish_reasons]
        # Some servers send no finish reason at all; others send one for each choice.
        has_ended = bool(reasons) and all(reasons)
        if not has_ended and (any(reasons) or not is_done):
            raise Disconnected("the stream ended before its answer was complete")
        parts = [choice.whole(index) for index, choice in sorted(self._choices.items())]
        return chat.API.path, encoded({**self._known, "choices": parts})


class _Pieces(list[str]):
    """The pieces of a tool call's arguments, in order."""


class _Choice:
    """The part of one choice of a streamed answer that has arrived so far."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.tools: dict[int, Object] = {}
        # The objects in `tools` whose arguments come in pieces, which `whole` joins.
        self._in_pieces: list[Object] = []
        self.finish_reason: str | int | None = None
        self._joiner = PairJoiner()

    def add(self, choice: Object) -> str:
        """Returns the text that `choice` adds. Raises AttributeError or TypeError if malformed."""
        delta = choice.get("delta") or {}
        content = choice.get("text") if delta.get("content") is None else delta["content"]
        text = self._joiner.add(_checked(text_of(content)))
        if text:
            self.texts.append(text)
        if refusal := _checked(delta.get("refusal")):
            self.refusals.append(refusal)
        for call in delta.get("tool_calls") or []:
            self._merge(self.tools.setdefault(_index(call), {}), call)
        reason = choice.get("finish_reason")
        self.finish_reason = (
            reason if type(reason) is int else _checked(reason) or self.finish_reason
        )
        return text

    def whole(self, index: int) -> Object:
        """Returns the choice as an answer without streaming contains it."""
        if rest := self._joiner.end():
            self.texts.append(rest)
        for holder in self._in_pieces:
            if isinstance(pieces := holder[_ARGUMENTS], _Pieces):
                holder[_ARGUMENTS] = "".join(pieces)
        is_other = self.refusals or self.tools
        message = {
            "role": "assistant",
            "content": "".join(self.texts) if self.texts or not is_other else None,
            "refusal": "".join(self.refusals) or None,
            "tool_calls": [_unnumbered(self.tools[index]) for index in sorted(self.tools)] or None,
        }
        return {"index": index, "message": message, "finish_reason": self.finish_reason}

    def _merge(self, whole: Object, part: Object) -> None:
        """Merges the next piece of a tool call into `whole`.

        The pieces of `arguments` are collected; any other value arrives complete.
        """
        for name, value in part.items():
            if isinstance(value, dict):
                self._merge(whole.setdefault(name, {}), value)
            elif name == _ARGUMENTS and isinstance(value, str):
                if name not in whole:
                    whole[name] = _Pieces()
                    self._in_pieces.append(whole)
                if not isinstance(pieces := whole[name], _Pieces):
                    raise TypeError
                pieces.append(value)
            elif value is not None:
                whole[name] = value


def _index(part: Object) -> int:
    index = part.get("index")
    if index is not None and type(index) is not int:
        raise TypeError
    return index or 0


def _checked(text: Any) -> str:
    if text is not None and not isinstance(text, str):
        raise TypeError
    return text or ""


def _unnumbered(tool_call: Object) -> Object:
    return {name: value for name, value in tool_call.items() if name != "index"}
