"""Backends that measure attempts, and that make spans of some calls.

An operation in the metrics is one written request, as a server sees it; a span is one call with all
its attempts. Neither contains the texts of prompts and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import random
from typing import Any

import msgspec

from redline.job.otel import names
from redline.job.otel.measures import Attributes, Measure, Meter
from redline.job.otel.names import Place, operation_of
from redline.waist import Attempt, Backend, Call, Load, Outcome, Reply, Request, Sink

# Servers name models, and rows name paths: beyond this number, they share a series.
MOST_SERIES = 200
_LONGEST_TEXT = 128
_MOST_REASONS = 8
_NS = 1e9


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of calls. model: of the settings. places: of endpoints, by their names."""

    model: str
    places: Mapping[str, Place]

    def operation(self, url: str, endpoint: str) -> str:
        """Returns the operation name of a request to this path. endpoint: may be a function."""
        return operation_of(url) if endpoint in self.places else names.OTHER_OPERATION

    def attributes(self, operation: str, endpoint: str) -> dict[str, str | int]:
        """Returns the attributes that metrics and spans share."""
        place = self.places.get(endpoint, Place())
        found: dict[str, str | int] = {
            names.OPERATION: operation,
            names.PROVIDER: place.provider,
        }
        if self.model:
            found[names.REQUEST_MODEL] = self.model
        if place.address:
            found[names.SERVER_ADDRESS] = place.address
            found[names.SERVER_PORT] = place.port
        return found


class _Series(msgspec.Struct, frozen=True):
    """The measures of attempts with the same operation, endpoint, error and model."""

    duration: Measure
    first_chunk: Measure
    input_tokens: Measure
    output_tokens: Measure


class _Around:
    """The base of backends around another one."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._inner.load(now_s, request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Measured(_Around):
    """Measures the attempts of a backend. inner: each `send` of it is one attempt."""

    def __init__(self, inner: Backend, meter: Meter, origin: Origin) -> None:
        super().__init__(inner)
        self._meter = meter
        self._origin = origin
        self._series: dict[tuple[str, str, str | None, str | None], _Series] = {}

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await self._inner.send(request, call, sink)
        for attempt in outcome.tried:
            sent_s = attempt.sent_s
            if sent_s is None:
                continue
            error = attempt.error
            reply = outcome.reply if error is None else None
            kind = None if error is None else error.kind
            model = None if reply is None else reply.model
            key = request.url, attempt.endpoint, kind, model
            series = self._series.get(key) or self._new(key)
            series.duration.add(attempt.complete_s - sent_s)
            if attempt.first_token_s is not None:
                series.first_chunk.add(attempt.first_token_s - sent_s)
            if reply is not None:
                if reply.input_tokens is not None:
                    series.input_tokens.add(reply.input_tokens)
                if reply.output_tokens is not None:
                    series.output_tokens.add(reply.output_tokens)
        return outcome

    def _new(self, key: tuple[str, str, str | None, str | None]) -> _Series:
        url, endpoint, kind, model = key
        operation = self._origin.operation(url, endpoint)
        # Paths of one operation share a series.
        shared = operation, endpoint, kind, model
        if len(self._series) >= MOST_SERIES:
            shared = operation, endpoint, kind, None
        series = self._series.get(shared)
        if series is None:
            series = self._made(*shared)
            self._series[shared] = series
        if len(self._series) < MOST_SERIES:
            self._series[key] = series
        return series

    def _made(self, operation: str, endpoint: str, kind: str | None, model: str | None) -> _Series:
        common: dict[str, str | int] = self._origin.attributes(operation, endpoint)
        if model:
            common[names.RESPONSE_MODEL] = model[:_LONGEST_TEXT]
        timed: Attributes = common if kind is None else {**common, names.ERROR_TYPE: kind}
        measure = self._meter.measure
        return _Series(
            measure(names.DURATION, timed),
            measure(names.TIME_TO_FIRST_CHUNK, timed),
            measure(names.TOKEN_USAGE, {**common, names.TOKEN_TYPE: "input"}),
            measure(names.TOKEN_USAGE, {**common, names.TOKEN_TYPE: "output"}),
        )


class Spans:
    """Makes spans of calls. tracing: the module `opentelemetry.trace`. parent: context of spans."""

    def __init__(self, tracing: Any, tracer: Any, parent: Any, origin: Origin) -> None:
        self._kind = tracing.SpanKind.CLIENT
        self._error = tracing.Status(tracing.StatusCode.ERROR)
        self._tracer = tracer
        self._parent = parent
        self._origin = origin
        self._offset_s = 0.0
        self.ended = 0

    def set_offset(self, offset_s: float) -> None:
        """Sets the difference between seconds since 1970 and the monotonic clock, in seconds."""
        self._offset_s = offset_s

    def add(self, request: Request, outcome: Outcome) -> None:
        """Records the span of an ended call; nothing for a call without an attempt."""
        tried = outcome.tried
        if not tried:
            return
        first, last = tried[0], tried[-1]
        body = request.body
        fields: dict[str, Any] = body if isinstance(body, dict) else {}
        model = fields.get("model", self._origin.model)
        model = model[:_LONGEST_TEXT] if isinstance(model, str) else ""
        operation = self._origin.operation(request.url, last.endpoint)
        attributes: dict[str, Any] = self._origin.attributes(operation, last.endpoint)
        if model:
            attributes[names.REQUEST_MODEL] = model
        began_s = _began_s(first)
        start_s = began_s if first.sent_s is None else first.sent_s
        attributes[names.ENDPOINT] = last.endpoint
        attributes[names.ATTEMPTS] = outcome.attempts
        attributes[names.WAITED] = start_s - began_s
        attributes |= _asked(fields)
        if outcome.reply is not None:
            attributes |= _answered(outcome.reply, last)
        span = self._tracer.start_span(
            f"{operation} {model}".rstrip(),
            context=self._parent,
            kind=self._kind,
            attributes=attributes,
            start_time=self._ns(start_s),
        )
        if not span.is_recording():
            return
        number = outcome.attempts - len(tried)
        for attempt in tried:
            number += 1
            if attempt.error is not None:
                span.add_event(
                    names.ATTEMPT_FAILED, _failed(attempt, number), self._ns(attempt.complete_s)
                )
        if outcome.error is not None:
            span.set_attribute(names.ERROR_TYPE, outcome.error.kind)
            # Without the error's text, which may quote a prompt or an answer.
            span.set_status(self._error)
        self.ended += 1
        span.end(self._ns(last.complete_s))

    def _ns(self, at_s: float) -> int:
        return int((at_s + self._offset_s) * _NS)


class Traced(_Around):
    """A backend that makes spans of some calls. share: of the calls, above 0 and up to 1."""

    def __init__(self, inner: Backend, spans: Spans, share: float) -> None:
        super().__init__(inner)
        self._spans = spans
        self._share = share

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await self._inner.send(request, call, sink)
        if random() < self._share:
            self._spans.add(request, outcome)
        return outcome


def _began_s(attempt: Attempt) -> float:
    """Returns the attempt's first mark, in seconds."""
    marks = (attempt.queued_s, attempt.eligible_s, attempt.sent_s)
    return next((mark for mark in marks if mark is not None), attempt.complete_s)


def _asked(fields: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numeric parameters of a request, by attribute name."""
    found = {}
    for field, name in names.REQUEST_FIELDS.items():
        value = fields.get(field)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = value
    return found


def _answered(reply: Reply, attempt: Attempt) -> dict[str, Any]:
    """Returns the attributes of an answer, without its text."""
    found: dict[str, Any] = {}
    if reply.model:
        found[names.RESPONSE_MODEL] = reply.model[:_LONGEST_TEXT]
    if reasons := [one[:_LONGEST_TEXT] for one in reply.finish_reasons if one]:
        found[names.FINISH_REASONS] = reasons[:_MOST_REASONS]
    if reply.input_tokens is not None:
        found[names.INPUT_TOKENS] = reply.input_tokens
    if reply.output_tokens is not None:
        found[names.OUTPUT_TOKENS] = reply.output_tokens
    if attempt.first_token_s is not None and attempt.sent_s is not None:
        found[names.FIRST_CHUNK] = attempt.first_token_s - attempt.sent_s
    return found


def _failed(attempt: Attempt, number: int) -> dict[str, Any]:
    """Returns the attributes of a failed attempt's event."""
    error = attempt.error
    assert error is not None
    found: dict[str, Any] = {
        names.ERROR_TYPE: error.kind,
        names.ATTEMPT_NUMBER: number,
        names.ENDPOINT: attempt.endpoint,
    }
    if attempt.sent_s is not None:
        found[names.ATTEMPT_DURATION] = attempt.complete_s - attempt.sent_s
    status = getattr(error, "status", None)
    if isinstance(status, int):
        found[names.HTTP_STATUS] = status
    return found
