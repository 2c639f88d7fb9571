"""An amount taken from one limit, on its way from the grant to what was used."""

from __future__ import annotations

from typing import Protocol

import msgspec

from redline.limits.cost import Kind, Spread
from redline.limits.record import Alone, Entry, Record


class Holder(Protocol):
    """What gave a booking, and hears what becomes of it."""

    kind: Kind

    def sent(self, booking: Booking, now_s: float) -> None: ...
    def release(self, booking: Booking, now_s: float) -> None: ...
    def prove(self, booking: Booking, late_s: float) -> None: ...
    def settle(self, booking: Booking, used: int) -> None: ...


class Booking(msgspec.Struct, eq=False, gc=False):
    """An amount taken from one window, and where it stands."""

    window: Holder
    amount: int
    booked_s: float
    spread: Spread  # CERTAIN once it is settled
    paced_s: float = 0.0  # what it has put off the sends behind it by
    is_sent: bool | None = None  # None while it is booked, False once it is released
    is_proved: bool = False
    record: Record | None = None  # once sent, where the hard rule holds
    entry: Entry | None = None  # where there is none
    step: int | None = None  # where it stands in Phases, if there are any
    alone: Alone | None = None  # what the server would count, were nobody else there
