"""Rare events as frozen records, and the protocol of their listeners.

An event reports what has happened; a listener cannot change what follows. Listeners are called on
the event loop and must return at once. Events of every row are only counted, in `waist.counters`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base of all events. `at_s` is monotonic time."""

    at_s: float


class RequestRepeated(Event, frozen=True):
    """A request is written again, on a new connection, because a reused connection failed.

    The server may have processed both requests. This does not count as a retry.
    """

    endpoint: str


class RetryScheduled(Event, frozen=True):
    """A row waits `wait_s` and is then retried. error: the error's kind; what: its message."""

    error: str
    wait_s: float
    what: str = ""


class RetryStarted(Event, frozen=True):
    """A waiting row is retried."""


class EndpointParked(Event, frozen=True):
    """The endpoint asked redline to send no requests until `at_s + for_s`."""

    endpoint: str
    for_s: float


class EndpointLost(Event, frozen=True):
    """The endpoint accepts no connections; `reason` is the error of the first failed attempt.

    The endpoint's rows wait, and are sent once it accepts connections again.
    """

    endpoint: str
    reason: str


class EndpointOut(Event, frozen=True):
    """One of several endpoints gets no more calls, because of `reason`; `left` of `of` remain."""

    endpoint: str
    reason: str
    left: int
    of: int


class EndpointDegraded(Event, frozen=True):
    """One of several endpoints fails, and gets few calls until it works. reason: its last error."""

    endpoint: str
    reason: str


class EndpointRecovered(Event, frozen=True):
    """A degraded endpoint works again, and gets calls like the others."""

    endpoint: str


class EndpointBack(Event, frozen=True):
    """An endpoint that was lost has answered."""

    endpoint: str


class AlertChanged(Event, frozen=True):
    """An alert fires or has ended; see redline.observe.alerts."""

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
    """A listener that ignores every event."""

    def on_event(self, event: Event) -> None:
        pass


SILENCE = Silence()


class Listeners:
    """Passes each event on to several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def on_event(self, event: Event) -> None:
        for listener in self._listeners:
            listener.on_event(event)
