"""Defines rare events as frozen records, and the protocol of their listeners.

An event reports what has happened; a listener cannot change what follows. Listeners are called on
the event loop and must return at once. Steps that every row takes are not events: `waist.counters`
only counts them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base of all events. at_s: when the event happened, in seconds of monotonic time."""

    at_s: float


class RequestRepeated(Event, frozen=True):
    """A request is written again, on a new connection.

    Either the connection that it reused failed or carried a doubtful response, and the server may
    have processed both requests; or the endpoint refused the field `stream_options`, and the
    request is written without it. This does not count as a retry.
    """

    endpoint: str


class RetryScheduled(Event, frozen=True):
    """A row waits `wait_s` seconds for its retry. error: the error's kind; what: its message."""

    error: str
    wait_s: float
    what: str = ""


class RetryStarted(Event, frozen=True):
    """The retry of a waiting row starts."""


class EndpointParked(Event, frozen=True):
    """The endpoint asked redline to send no requests for `for_s` seconds from `at_s` on."""

    endpoint: str
    for_s: float


class EndpointLost(Event, frozen=True):
    """The endpoint accepts no connections; `reason` is the error of the first failed attempt.

    Unless retries are off, rows that no other endpoint takes wait until it accepts connections
    again. If the outage lasts too long (see `Outage`), the endpoint is given up.
    """

    endpoint: str
    reason: str


class EndpointOut(Event, frozen=True):
    """One of `of` endpoints gets no more calls, because of `reason`; `left` endpoints remain."""

    endpoint: str
    reason: str
    left: int
    of: int


class EndpointDegraded(Event, frozen=True):
    """One of several endpoints is failing, and gets few calls until it works.

    reason: its last error, or a statement that its health page fails.
    """

    endpoint: str
    reason: str


class EndpointRecovered(Event, frozen=True):
    """A degraded endpoint works again, and gets calls as the other endpoints do."""

    endpoint: str


class EndpointBack(Event, frozen=True):
    """A lost endpoint can be reached again."""

    endpoint: str


class AlertChanged(Event, frozen=True):
    """An alert began or ended. `observe.alerts.Alert` describes all fields except `at_s`."""

    rule: str
    number: int
    state: str
    value: float
    threshold: float
    what: str
    advice: str


class Listener(Protocol):
    """Receives every event; must not block and must not raise."""

    def on_event(self, event: Event) -> None: ...


class Silence:
    """Ignores every event."""

    def on_event(self, event: Event) -> None:
        pass


SILENCE = Silence()


class Listeners:
    """Passes each event on to several listeners, in the given order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def on_event(self, event: Event) -> None:
        for listener in self._listeners:
            listener.on_event(event)
