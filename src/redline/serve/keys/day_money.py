"""The money that a tenant may spend on one day, UTC."""

from __future__ import annotations

DAY_S = 86_400


class DayMoney:
    """Reserved and settled amounts, in picodollars.

    others: what earlier and other processes have spent and reserved today. A day begins with
    nothing spent; each call counts on the day on which it began.
    """

    __slots__ = ("_kept", "day", "others", "reserved", "spent")

    def __init__(self) -> None:
        self.day = 0
        self.spent = self.reserved = self.others = 0
        # The part of this process's amounts that the others already count.
        self._kept = 0

    def begin(self, day: int) -> None:
        """Makes this the present day, counted from 1970-01-01."""
        if day != self.day:
            self.spent = self.reserved = self.others = self._kept = 0
            self.day = day

    @property
    def committed(self) -> int:
        """Today's spending if every call in flight cost its whole reservation."""
        return self.spent + self.reserved + self.others

    def spent_on(self, day: int) -> int:
        """The amount that all have spent on this day; 0 for one that has not begun.

        An earlier day is the present one by a clock that was set back.
        """
        return self.spent + self.others if day <= self.day else 0

    def reserve(self, amount: int) -> None:
        """Reserves the amount for a call that starts."""
        self.reserved += amount

    def settle(self, day: int, reserved: int, actual: int) -> None:
        """A call that began on `day` has cost `actual`."""
        if day == self.day:
            self.spent += actual
            self.reserved -= reserved

    def unkept(self) -> int:
        """The amount that the others do not know; negative if calls cost less than reserved."""
        return self.spent + self.reserved - self._kept

    def kept(self, day: int, told: int, total: int) -> None:
        """Records that the others now know another `told` picodollars of this process.

        total: committed by all processes on that day.
        """
        if day == self.day:
            self._kept += told
            self.others = max(0, total - self._kept)
