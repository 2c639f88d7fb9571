"""A snapshot of admission, for pages and metrics."""

from __future__ import annotations

import msgspec


class ClassLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Counts are since the start.

    waiting, in_flight: calls now. admitted: started calls. refused: refused calls by reason:
    `tenant` (the maximum number of the tenant's calls waits), `class` (the same for the class),
    `wait` (the call would wait too long), `late` (it waited too long). gave_up: calls that were
    cancelled while they waited. oldest_wait_s: 0 if no call waits. drain_per_s: calls per second
    that leave the queue while it is not empty; None if unknown. tenants: waiting calls by tenant,
    without tenants that have none.
    """

    name: str
    waiting: int
    in_flight: int
    admitted: int
    refused: dict[str, int]
    gave_up: int
    oldest_wait_s: float
    drain_per_s: float | None
    tenants: dict[str, int]


class AdmissionState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a gate.

    slots: maximum number of calls in flight at the endpoints; 0 if it is unknown. classes: highest
    first.
    """

    slots: int
    in_flight: int
    classes: tuple[ClassLoad, ...]

    @property
    def waiting(self) -> int:
        """Waiting calls of all classes."""
        return sum(one.waiting for one in self.classes)
