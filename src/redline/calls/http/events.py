"""Reads streamed answers: server-sent events in, chunks out, one reply at the end."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from redline.apis import (
    DONE,
    PLAIN,
    ErrorData,
    ErrorInside,
    EventForm,
    EventParser,
    StreamedAnswer,
    api_of,
    event_form_of,
    judge_part,
    loose_json,
    read_event,
)
from redline.apis import replies as apis
from redline.calls.http.chunk_relay import ChunkRelay
from redline.calls.http.masking import NO_SECRETS, Mask
from redline.calls.tokens import TRUE, kept_facts
from redline.calls.wire import Answer, do_nothing
from redline.clock import SYSTEM, Clock
from redline.errors import BadReply, BadRow, CallError, NoEndpoint
from redline.waist import Call, Chunk, Reply, Request, Sink

# After this number of forms, stop learning: the server may write every event differently.
_MOST_FORMS = 8
# Fields that request an answer which would not arrive whole: what is wrong, and what to do.
_PARTIAL = {
    "stream": (
        "the request asks for a stream, but answers are delivered when they are complete",
        "remove `stream` from it; redline.Client.stream reads answers as they arrive",
    ),
    "background": (
        "the request asks for an answer in the background, which is incomplete when it arrives",
        "remove `background` from it",
    ),
}


class _StreamFields(msgspec.Struct):
    """The fields of a body that concern a stream."""

    stream: Any = None
    stream_options: Any = msgspec.UNSET


_STREAM_FIELDS = msgspec.json.Decoder(_StreamFields)
_USAGE = {"include_usage": True}


def streaming(request: Request, *, asks_usage: bool = True) -> Request:
    """Returns the request changed to ask for a stream that ends with its usage.

    asks_usage: False for an endpoint that refuses `stream_options`; the field is then left out if
    it asks only for the usage. A `stream_options` of null is always left out.
    """
    chat = kept_facts(request)
    if asks_usage and chat is not None and chat.stream is True and chat.stream_options is not None:
        return request
    asked = _stream_fields(request)
    fields: dict[str, Any] = {} if asked.stream is True else {"stream": True}
    if api_of(request.url).path.endswith("/completions"):
        options = asked.stream_options
        if options is None or (options == _USAGE and not asks_usage):
            fields["stream_options"] = msgspec.UNSET
        elif options is msgspec.UNSET and asks_usage:
            fields["stream_options"] = _USAGE
    return request.with_fields(**fields) if fields else request


def _stream_fields(request: Request) -> _StreamFields:
    if request.raw is not None:
        try:
            return _STREAM_FIELDS.decode(request.raw)
        except (ValueError, RecursionError):
            # `request.body` also reads bodies with lone surrogates.
            pass
    body = request.body
    if not isinstance(body, dict):
        return _StreamFields()
    return _StreamFields(body.get("stream"), body.get("stream_options", msgspec.UNSET))


def refuse_partial(request: Request) -> None:
    """Raises BadRow for a request whose answer would not arrive whole."""
    body = request.body
    if not isinstance(body, dict) or _PARTIAL.keys().isdisjoint(body):
        return
    for name, (what, hint) in _PARTIAL.items():
        if name in body and _is_true(body[name], request.url):
            raise BadRow(what, hint=hint)


def _is_true(value: Any, url: str) -> bool:
    """Whether servers take the value as true; at a path of no known API, only `True` counts.

    Such a path may use a field of the same name for something else.
    """
    return value is True or (str(value).lower() in TRUE and api_of(url) is not PLAIN)


class StreamReader:
    """Reads one stream: passes its chunks to a sink, and assembles the whole reply.

    asked: the request's body, which determines the number of choices. mask: hides secrets in
    errors. on_done: called at the event that ends the answer, such as `[DONE]`. first_s: when the
    first chunk was passed on; None until then. is_done: whether the event that ends the answer has
    arrived.
    """

    def __init__(
        self,
        sink: Sink,
        call: Call,
        asked: Any = None,
        mask: Mask = NO_SECRETS,
        clock: Clock = SYSTEM,
        on_done: Callable[[], None] = do_nothing,
    ) -> None:
        self._clock = clock
        self._on_done = on_done
        self._sink = sink
        self._call = call
        self._asked = asked
        self._mask = mask
        self._parser = EventParser()
        self._answer = StreamedAnswer()
        self.is_done = False
        self._status = 200
        self._headers: Mapping[str, str] = {}
        # For a sink that relays: bytes before the first event, such as comments.
        self._held = b""
        self._is_handing_on = False
        self._form: EventForm | None = None  # of most events of the stream
        self._forms_left = _MOST_FORMS
        self._chunk_relay: ChunkRelay | None = None  # for events of that form
        self.first_s: float | None = None
        self.has_begun = False

    @property
    def relays(self) -> bool:
        """Whether the sink wants only the bytes."""
        return self._sink.relays

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Sets the response's status and headers; called before `take`."""
        self._status, self._headers = status, headers

    def take(self, data: bytes) -> Awaitable[None]:
        """Parses `data` and returns an awaitable that passes on the events that it completes.

        The awaitable waits for the sink. Raises CallError, and NoEndpoint if a local engine is lost
        midway.
        """
        blocks = self._parser.blocks(data)
        return self._relay(blocks) if self._sink.relays else self._hand_on(blocks)

    def take_now(self, data: bytes) -> bool:
        """Passes on `data` if it is one event with nothing but text, and the sink takes it now.

        Most events are of this kind. Otherwise returns False, and `data` must be passed to `take`.
        """
        if not self._is_steady:
            return False
        form = self._form
        if form is not None and form.fits(data, 0, len(data)):
            return self._sink.put_now(data)
        event = self._parser.line(data)
        if event is None or not self._answer.skim(event):
            return False
        if self._forms_left:
            self._forms_left -= 1
            self._form = event_form_of(data)
            self._chunk_relay = None
        return self._sink.put_now(data)

    def chunk_taker(self) -> Callable[[bytes], int] | None:
        """Returns a function that passes on chunks, valid until `take` is called; see Exchange."""
        if self._form is None or not self._is_steady:
            return None
        if self._chunk_relay is None:
            outlet = self._sink.outlet()
            if outlet is None:
                return None
            self._chunk_relay = ChunkRelay(self._form, outlet)
        return self._chunk_relay.take

    @property
    def _is_steady(self) -> bool:
        """Whether the sink has begun and is not busy, and the next byte begins an event."""
        return not (
            self.first_s is None
            or self._is_handing_on
            or self.is_done
            or self._held
            or self._parser.is_amid
        )

    async def _hand_on(self, blocks: list[tuple[bytes, bytes | None]]) -> None:
        """Passes on each event as a chunk with its text and its JSON."""
        for raw, event in blocks:
            if event is None:
                continue
            self.has_begun = True
            if self.is_done:
                return
            if event == DONE:
                self._finish()
                return
            if isinstance(event, ErrorData):
                raise self._judged(event)
            text, parsed = self._mask.read(event, self._understood)
            await self._put(Chunk(text, parsed, raw))

    async def _relay(self, blocks: list[tuple[bytes, bytes | None]]) -> None:
        """Passes on blocks as one chunk, up to the first error, which it raises."""
        passed, has_event, failure = [self._held], self._call.committed, None
        for raw, event in blocks:
            if event is not None and not self.is_done:
                try:
                    self._note(event)
                except (CallError, NoEndpoint) as error:
                    failure = error
                    break
                if not has_event:
                    # `_judged` reads `committed` if the next event is an error.
                    has_event = self._call.committed = True
            passed.append(raw)
        held = self._held = b"".join(passed)
        if has_event and held:
            self._held = b""
            self._is_handing_on = True
            if self.first_s is None:
                await self._begin()
            await self._sink.put(Chunk("", None, held))
            self._is_handing_on = False
        if failure is not None:
            raise failure

    async def end(self) -> None:
        """Ends a complete stream: passes the bytes after its last event to a sink that relays."""
        rest = self._held + self._parser.left()
        if self._sink.relays and rest:
            self._held = b""
            await self._put(Chunk("", None, rest))

    async def _put(self, chunk: Chunk) -> None:
        # From here on the caller has seen a part of the answer: no retry.
        self._call.committed = True
        if self.first_s is None:
            await self._begin()
        await self._sink.put(chunk)

    async def _begin(self) -> None:
        self.first_s = self._clock.now_s()
        await self._sink.begin(self._status, self._headers)

    def _note(self, event: bytes) -> None:
        """Adds an event to the reply. Raises CallError or NoEndpoint."""
        self.has_begun = True
        if event == DONE:
            self._finish()
        elif isinstance(event, ErrorData):
            raise self._judged(event)
        elif not self._answer.skim(event):
            self._mask.read(event, self._understood)

    def _finish(self) -> None:
        self.is_done = True
        self._on_done()

    @property
    def answer(self) -> Answer:
        """The response, of which only the end may be missing."""
        return Answer(self._status, self._headers, b"")

    def finish(self) -> Reply:
        """Returns the reply of the stream. Raises CallError if the stream is incomplete."""
        rest = self._parser.rest()
        if isinstance(rest, ErrorData) and not self.is_done:
            raise self._judged(rest)
        url, whole = self._answer.whole(is_done=self.is_done)
        reply = self._mask.read(whole, lambda body: apis.read(url, body, asked=self._asked))
        if self._sink.relays and (reasons := self._answer.finish_reasons):
            # The texts were not kept.
            reply.output = reply.tool_calls = None
            reply.body = b""
            reply.finish_reason = reasons[0] if len(reasons) == 1 else reasons
        return reply

    def _understood(self, event: bytes) -> tuple[str, dict[str, Any]]:
        """Returns the event's new text and its JSON. Raises CallError or NoEndpoint."""
        parsed, is_loose = read_event(event)
        try:
            text = self._answer.add(parsed)
            if self._answer.is_whole:
                self._finish()
            return text, loose_json.clean(parsed) if is_loose else parsed
        except ErrorInside as found:
            raise self._judged(json.dumps(found.value).encode()) from None
        except (AttributeError, TypeError, RecursionError) as cause:
            raise BadReply(f"a streamed event is malformed: {apis.quote(event)}") from cause

    def _judged(self, event: bytes) -> CallError | NoEndpoint:
        """Returns the error that an event contains."""
        found = loose_json.decoded_or_text(self._mask.body(event))
        error = found.get("error") if isinstance(found, dict) else None
        is_begun = self._call.committed
        return judge_part("the stream broke off with an error", error or found, is_begun=is_begun)


def whole_chunk(reply: Reply, raw: bytes) -> Chunk:
    """Returns the only chunk of an answer that should have been streamed but came whole.

    The chunk's text is that of the first choice; "" if the choice has no text, such as one with
    only tool calls. raw: the answer's bytes. Raises BadReply if the reply's body is not JSON.
    """
    try:
        data = loose_json.decoded(reply.body)
    except (ValueError, RecursionError) as cause:
        # A reply can be read from a body that is only partly valid JSON.
        raise BadReply(f"the answer is not JSON: {apis.quote(reply.body)}") from cause
    output = reply.output
    first = output[0] if isinstance(output, list) and output else output
    return Chunk(first if isinstance(first, str) else "", data, raw)
