"""Admission at one moment, for pages and metrics."""

from __future__ import annotations

import msgspec


class ClassLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Counts are since the start.

    waiting, in_flight: calls now. admitted: calls that could start. refused: by reason: `tenant`
    (as many of the tenant wait as may), `class` (the same of the class), `wait` (it would wait too
    long), `late` (it has). gave_up: calls that were cancelled while they waited. oldest_wait_s: 0
    if none waits. drain_per_s: calls that leave the queue while some wait; None if unknown.
    tenants: how many calls of each wait, of those that have some.
    """

    name: str
    priority: int
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

    slots: calls at the endpoints at once, 0 if no bound is known. classes: highest first.
    """

    slots: int
    in_flight: int
    classes: tuple[ClassLoad, ...]

    @property
    def waiting(self) -> int:
        """Calls of all classes that wait."""
        return sum(one.waiting for one in self.classes)
