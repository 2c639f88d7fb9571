"""Counts usage against tenants' limits, in this process alone or in several processes together.

In a `with` block of a store's `alone`, no other thread or process changes its counts. Blocks may be
nested.
"""

from __future__ import annotations

from threading import RLock

from redline.limits import Rate
from redline.limits.shared import OwnFlights
from redline.serve.keys.day_money import DayMoney
from redline.serve.keys.shared_store import SharedStore, SharedWindow
from redline.serve.keys.window import SlidingWindow

CountedWindow = SlidingWindow | SharedWindow


class OwnStore:
    """Keeps counts for this process alone."""

    def __init__(self) -> None:
        self.alone = RLock()

    def flights(self, tenant: str) -> OwnFlights:
        return OwnFlights()

    def money(self, tenant: str) -> DayMoney:
        return DayMoney()

    def window(self, tenant: str, kind: str, rate: Rate, older: object) -> SlidingWindow:
        """Returns a window; see SharedStore."""
        # The new window starts with the usage of the older one. None of this usage can be given
        # back, because calls refer to the records of the older window.
        return SlidingWindow(rate, older.records if isinstance(older, SlidingWindow) else ())


OWN = OwnStore()
LimitStore = OwnStore | SharedStore
