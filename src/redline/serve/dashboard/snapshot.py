"""Describes a gateway at one moment, for its dashboard and for `GET /status`."""

from __future__ import annotations

import msgspec

from redline.serve.batches import BatchView


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The cause that holds calls back.

    cause: nothing, down, failing, parked, limit, concurrency, warming, endpoints or gateway.
    sentence: the cause, with numbers. advice: which change would help, and by how much; "" if no
    change is needed. since_s: how long the cause has applied, in seconds.
    """

    cause: str
    sentence: str
    advice: str = ""
    since_s: float = 0.0


class ClassView(msgspec.Struct, frozen=True, kw_only=True):
    """A priority class: its calls in flight and waiting, and how long the oldest has waited.

    admitted, refused: the numbers of calls since the start.
    """

    name: str
    running: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    admitted: int = 0
    refused: int = 0


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint. state: a value of Health, or `parked`. reason: the reason for the state, or "".

    slots: the most calls in flight; 0 for no bound. per_s: answers per second. latency_s: the mean
    of the last answers; 0 if there are none.
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
    """A tenant that has made requests: its calls, tokens and today's spending.

    spent_usd: in US dollars; None if it is 0, for example because no price is known.
    """

    name: str
    calls: int = 0
    refused: int = 0
    tokens: int = 0
    running: int = 0
    spent_usd: float | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A change or a fault in the gateway. at_s: Unix time."""

    at_s: float
    what: str
    status: int = 0
    endpoint: str = ""
    tenant: str = ""
    model: str = ""
    request_id: str = ""


class Second(msgspec.Struct, frozen=True, array_like=True):
    """One past second: answers, tokens, and the calls in flight and waiting at its end.

    at_s: Unix time.
    """

    at_s: float
    answers: float
    tokens: float
    running: int
    waiting: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All data that the dashboard shows.

    at_s: Unix time. up_s: seconds since the gateway started. running, waiting: the numbers of
    calls; if a function answers, of items. latency_p50_s, latency_p95_s: of the last minute; None
    without answers. changes, faults: the last ones, oldest first. history: the last minutes, oldest
    second first.
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
