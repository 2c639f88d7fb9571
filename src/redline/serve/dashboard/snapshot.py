"""A gateway at one moment, as its dashboard shows it and `GET /status` answers it."""

from __future__ import annotations

import msgspec

from redline.serve.batches import BatchView


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The cause that holds calls back.

    cause: nothing, down, failing, parked, limit, concurrency, warming, endpoints or gateway.
    sentence: the cause with its figures. advice: which change would help, and by how much; empty if
    no change is needed. since_s: for how many seconds it has applied.
    """

    cause: str
    sentence: str
    advice: str = ""
    since_s: float = 0.0


class ClassView(msgspec.Struct, frozen=True, kw_only=True):
    """A priority class: its calls in flight and waiting, and how long the oldest has waited."""

    name: str
    running: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    admitted: int = 0
    refused: int = 0


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint. state: of Health, or parked. reason: why it is not ready; empty if it is.

    slots: 0 for no bound. per_s: answers per second. latency_s: mean of the last answers; 0 if
    there are none.
    """

    name: str
    url: str
    state: str
    reason: str = ""
    models: list[str] = []
    in_flight: int = 0
    slots: int = 0
    per_s: float = 0.0
    latency_s: float = 0.0
    errors: int = 0


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that has made requests: its calls, tokens, and dollars of today.

    spent_usd: None if no price is known.
    """

    name: str
    calls: int = 0
    refused: int = 0
    tokens: int = 0
    running: int = 0
    spent_usd: float | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened. at_s: seconds since 1970."""

    at_s: float
    what: str
    status: int = 0
    endpoint: str = ""
    tenant: str = ""
    model: str = ""
    request_id: str = ""


class Second(msgspec.Struct, frozen=True, array_like=True):
    """One past second: answers, tokens, and the calls in flight and waiting at its end."""

    at_s: float
    answers: float
    tokens: float
    running: int
    waiting: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that the dashboard shows.

    at_s: seconds since 1970. latencies: of the last minute, in seconds by class. history: the last
    minutes, the oldest second first.
    """

    at_s: float
    up_s: float
    version: str
    is_draining: bool
    binding: Binding
    answers_per_s: float = 0.0
    tokens_per_s: float = 0.0
    running: int = 0
    waiting: int = 0
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    classes: list[ClassView] = []
    endpoints: list[EndpointView] = []
    tenants: list[TenantView] = []
    batches: list[BatchView] = []
    changes: list[Event] = []
    faults: list[Event] = []
    history: list[Second] = []
