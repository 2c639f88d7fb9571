"""Where usage is counted against tenants' limits: in this process, or shared with others.

In a `with` block of a store's `alone`, nothing else changes its counts. Blocks may be nested.
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
    """Counts of this process alone."""

    def __init__(self) -> None:
        self.alone = RLock()

    def flights(self, tenant: str) -> OwnFlights:
        return OwnFlights()

    def money(self, tenant: str) -> DayMoney:
        return DayMoney()

    def window(self, tenant: str, kind: str, rate: Rate, older: object) -> SlidingWindow:
        """See SharedStore."""
        # With the usage that the older window knows, none of which can be given back: calls refer
        # to records of the older one.
        return SlidingWindow(rate, older.records if isinstance(older, SlidingWindow) else ())


OWN = OwnStore()
LimitStore = OwnStore | SharedStore
