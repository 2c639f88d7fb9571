"""Streamed answers: server-sent events in, chunks out, one reply at the end."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from redline.apis import (
    DONE,
    PLAIN,
    ErrorData,
    ErrorInside,
    EventParser,
    StreamedAnswer,
    api_of,
    judge_part,
    loose_json,
)
from redline.apis import replies as apis
from redline.calls.http.masking import NO_SECRETS, Mask
from redline.errors import BadReply, BadRow, CallError, NoEndpoint
from redline.waist import Call, Chunk, Reply, Request, Sink

# What servers that are lenient about types take for true.
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_PARTIAL = frozenset({"stream", "background"})


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
    return value is True or (str(value).lower() in _TRUE and api_of(url) is not PLAIN)


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
        self._answer = StreamedAnswer()
        self._is_done = False
        self.has_begun = False

    async def take(self, data: bytes) -> None:
        """Parses `data` and hands on what it completes; waits for the sink.

        Raises CallError, and NoEndpoint if a local engine has failed in the middle.
        """
        for event in self._parser.feed(data):
            self.has_begun = True
            if self._is_done:
                return
            if event == DONE:
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
        url, whole = self._answer.whole(is_done=self._is_done)
        return self._mask.read(whole, lambda body: apis.read(url, body, asked=self._asked))

    def _understood(self, event: bytes) -> tuple[str, dict[str, Any]]:
        """The event's new text, and its JSON. Raises CallError, and NoEndpoint."""
        parsed, is_loose = _parsed(event)
        try:
            text = self._answer.add(parsed)
        except ErrorInside as found:
            raise self._judged(json.dumps(found.value).encode()) from None
        except (AttributeError, TypeError) as cause:
            raise BadReply(f"a streamed event is misshapen: {apis.quote(event)}") from cause
        return text, loose_json.clean(parsed) if is_loose else parsed

    def _judged(self, event: bytes) -> CallError | NoEndpoint:
        """The error of an event that is one."""
        event = self._mask.body(event)
        try:
            found = msgspec.json.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = event.decode("utf-8", "replace")
        error = found.get("error") if isinstance(found, dict) else None
        is_begun = self._call.committed
        return judge_part("the stream broke off with an error", error or found, is_begun=is_begun)


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
