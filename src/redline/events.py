"""What happened, as frozen records, and the protocol of whoever wants to hear of it.

Events are facts about the past: a listener cannot change what follows. A listener is called on
the event loop and must return at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base of all events. `at_s` is monotonic time."""

    at_s: float


class AttemptStarted(Event, frozen=True):
    """A request was written to the wire.

    wait_s: how long the limits held it. is_retry: the same request was written before and failed.
    """

    endpoint: str
    wait_s: float
    is_retry: bool = False


class AttemptEnded(Event, frozen=True):
    """An attempt that was started has its answer, or its error.

    `error`: the error's kind (`rate_limited`, ...), or None for a success.
    """

    endpoint: str
    error: str | None
    latency_s: float
    input_tokens: int
    output_tokens: int


class RequestRepeated(Event, frozen=True):
    """A request is written once more, on a new connection, since a kept one has failed it.

    The server may have processed both. It is no retry: the row has done nothing wrong.
    """

    endpoint: str


class RetryScheduled(Event, frozen=True):
    """A row waits `wait_s` and is then tried again."""

    error: str
    wait_s: float


class RetryStarted(Event, frozen=True):
    """A waiting row is tried again."""


class EndpointParked(Event, frozen=True):
    """The endpoint asked for silence until `at_s + for_s`."""

    endpoint: str
    for_s: float


class EndpointLost(Event, frozen=True):
    """The endpoint takes no connections; `reason` is the error of the first that it did not take.

    Its rows wait and are asked when it is back.
    """

    endpoint: str
    reason: str


class EndpointBack(Event, frozen=True):
    """The endpoint that was lost has answered."""

    endpoint: str


class CacheAsked(Event, frozen=True):
    """The cache was asked for an answer.

    found: `hit`, it was stored; `shared`, a call in flight brings it; `miss`, it is asked for;
    `passed`, the request may have another answer each time, so it is asked for, too.
    """

    found: Literal["hit", "shared", "miss", "passed"]


class RowsSaved(Event, frozen=True):
    """Rows are on disk. Counts since the last such event.

    flawed: successes whose answer is cut, empty or refused, by the finish reason.
    """

    succeeded: int
    failed: int
    flawed: Mapping[str, int] = {}


class Listener(Protocol):
    """Hears every event; must not block and must not raise."""

    def on_event(self, event: Event) -> None: ...


class Silence:
    """The listener that ignores everything."""

    def on_event(self, event: Event) -> None:
        pass


SILENCE = Silence()
