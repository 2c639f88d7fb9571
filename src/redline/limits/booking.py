"""An amount taken from one limit, on its way from the grant to what was used."""

from __future__ import annotations

from typing import Protocol

from redline.limits.cost import Kind, Spread
from redline.limits.record import Alone, Entry, Record


class Holder(Protocol):
    """What gave a booking, and hears what becomes of it."""

    kind: Kind

    def sent(self, booking: Booking, now_s: float) -> None: ...
    def release(self, booking: Booking, now_s: float) -> None: ...
    def prove(self, booking: Booking, late_s: float) -> None: ...
    def settle(self, booking: Booking, used: int) -> None: ...


class Booking:
    """An amount taken from one window, and where it stands."""

    __slots__ = (
        "alone",
        "amount",
        "booked_s",
        "entry",
        "is_open",
        "is_proved",
        "is_sent",
        "paced_s",
        "record",
        "spread",
        "window",
    )

    def __init__(self, window: Holder, amount: int, booked_s: float, spread: Spread) -> None:
        self.window = window
        self.amount = amount
        self.spread = spread  # CERTAIN once it is settled
        self.booked_s = booked_s
        self.paced_s = 0.0  # what it has put off the sends behind it by
        self.is_open = True  # booked: neither sent nor released
        self.is_sent = False
        self.is_proved = False
        self.record: Record | None = None  # once sent, where the hard rule holds
        self.entry: Entry | None = None  # where there is none
        self.alone: Alone | None = None  # what the server would count, were nobody else there
