"""Measures attempts, and makes spans of some calls, in backends that wrap other backends.

An operation in the metrics is one written request, as a server sees it; a span is one call with its
attempts, or the latest of many. Neither contains any text of prompts or answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import random
from typing import Any

import msgspec

from redline.clock import Clock
from redline.errors import RedlineError
from redline.job.otel import names
from redline.job.otel.measures import Attributes, Measure, Meter
from redline.job.otel.names import Place, operation_of
from redline.waist import Around, Attempt, Call, Outcome, Reply, Request, Sink

# Servers choose the model names in their answers; beyond this many series, new models share one.
MOST_SERIES = 200
_LONGEST_TEXT = 128
_MOST_REASONS = 8
_NS = 1e9


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the calls of one job. model: the model in the settings; empty if there is none.

    places: the servers, by endpoint name.
    """

    model: str
    places: Mapping[str, Place]

    def operation(self, url: str, endpoint: str) -> str:
        """Returns the operation name of a request to the path `url`; `request` for a function."""
        return operation_of(url) if endpoint in self.places else names.OTHER_OPERATION

    def attributes(self, operation: str, endpoint: str) -> dict[str, str | int]:
        """Returns the attributes that both metrics and spans have."""
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


# The operation, the endpoint, the kind of the error, and the model that answered.
_Key = tuple[str, str, str | None, str | None]


class _Series(msgspec.Struct, frozen=True):
    """The measures of attempts with the same operation, endpoint, error and model."""

    duration: Measure
    first_chunk: Measure
    input_tokens: Measure
    output_tokens: Measure


@dataclass(eq=False, repr=False)
class Measured(Around):
    """Measures the attempts of a backend. Each `send` of that backend must be one attempt."""

    _meter: Meter
    _origin: Origin
    _series: dict[_Key, _Series] = field(default_factory=dict)

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
            operation = self._origin.operation(request.url, attempt.endpoint)
            key = operation, attempt.endpoint, kind, model
            series = self._series.get(key) or self._new(key)
            series.duration(attempt.complete_s - sent_s)
            if attempt.first_token_s is not None:
                series.first_chunk(attempt.first_token_s - sent_s)
            if reply is not None:
                if reply.input_tokens is not None:
                    series.input_tokens(reply.input_tokens)
                if reply.output_tokens is not None:
                    series.output_tokens(reply.output_tokens)
        return outcome

    def _new(self, key: _Key) -> _Series:
        """Returns the series of a new key; beyond MOST_SERIES series, models share one."""
        if len(self._series) >= MOST_SERIES:
            key = (*key[:3], None)
        if key not in self._series:
            self._series[key] = self._made(*key)
        return self._series[key]

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


@dataclass(eq=False, repr=False)
class Spans:
    """Makes spans of calls.

    tracing: the module `opentelemetry.trace`. parent: the context in which spans begin. ended: the
    number of spans that have ended.
    """

    _tracing: Any
    _tracer: Any
    _parent: Any
    _origin: Origin
    _clock: Clock
    ended: int = 0

    def add(self, request: Request, outcome: Outcome) -> None:
        """Records the span of an ended call; nothing for a call without an attempt."""
        tried = outcome.tried
        if not tried:
            return
        first, last = tried[0], tried[-1]
        since_1970_s = self._clock.wall_s() - self._clock.now_s()

        def ns(at_s: float) -> int:
            return int((at_s + since_1970_s) * _NS)

        body = request.body
        fields: dict[str, Any] = body if isinstance(body, dict) else {}
        model = fields.get("model", self._origin.model)
        model = model[:_LONGEST_TEXT] if isinstance(model, str) else ""
        operation = self._origin.operation(request.url, last.endpoint)
        marks = (first.queued_s, first.eligible_s, first.sent_s)
        began_s = next((mark for mark in marks if mark is not None), first.complete_s)
        start_s = began_s if first.sent_s is None else first.sent_s
        attributes: dict[str, Any] = {
            **self._origin.attributes(operation, last.endpoint),
            names.ENDPOINT: last.endpoint,
            names.ATTEMPTS: outcome.attempts,
            names.WAITED: start_s - began_s,
            **_asked(fields),
        }
        if model:
            attributes[names.REQUEST_MODEL] = model
        if outcome.reply is not None:
            attributes |= _answered(outcome.reply, last)
        span = self._tracer.start_span(
            f"{operation} {model}".rstrip(),
            context=self._parent,
            kind=self._tracing.SpanKind.CLIENT,
            attributes=attributes,
            start_time=ns(start_s),
        )
        if not span.is_recording():
            return
        for number, attempt in enumerate(tried, 1 + outcome.attempts - len(tried)):
            if attempt.error is not None:
                failed = _failed(attempt, attempt.error, number)
                span.add_event(names.ATTEMPT_FAILED, failed, ns(attempt.complete_s))
        if outcome.error is not None:
            span.set_attribute(names.ERROR_TYPE, outcome.error.kind)
            # The error's text is left out, because it may quote a prompt or an answer.
            span.set_status(self._tracing.Status(self._tracing.StatusCode.ERROR))
        self.ended += 1
        span.end(ns(last.complete_s))


@dataclass(eq=False, repr=False)
class Traced(Around):
    """Makes spans of a random share of a backend's calls. share: above 0, at most 1."""

    _spans: Spans
    _share: float

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await self._inner.send(request, call, sink)
        if random() < self._share:
            self._spans.add(request, outcome)
        return outcome


def _asked(fields: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numeric parameters of a request, by attribute name."""
    found = {}
    for parameter, name in names.REQUEST_FIELDS.items():
        value = fields.get(parameter)
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


def _failed(attempt: Attempt, error: RedlineError, number: int) -> dict[str, Any]:
    """Returns the attributes of a failed attempt's event."""
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
