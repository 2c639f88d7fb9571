"""What a tenant may spend on one day, UTC."""

from __future__ import annotations

DAY_S = 86_400


class DayMoney:
    """Reserved, then settled, in picodollars. allowance: None for no bound.

    others: what earlier and other processes have spent and reserved today. A day begins with
    nothing spent; calls count on the day on which they began.
    """

    __slots__ = ("_kept", "allowance", "day", "others", "reserved", "spent")

    def __init__(self, allowance: int | None) -> None:
        self.allowance = allowance
        self.day = 0
        self.spent = self.reserved = self.others = 0
        # What of this process's the others know.
        self._kept = 0

    def begin(self, day: int) -> None:
        """It is this day, counted from 1970-01-01."""
        if day != self.day:
            self.spent = self.reserved = self.others = self._kept = 0
            self.day = day

    @property
    def committed(self) -> int:
        """Today's spending if every call in flight cost all that is reserved for it."""
        return self.spent + self.reserved + self.others

    def allow(self, allowance: int | None) -> None:
        """Another bound from now on."""
        self.allowance = allowance

    def has_room(self, amount: int) -> bool:
        return self.allowance is None or self.committed + amount <= self.allowance

    def reserve(self, amount: int) -> None:
        """A call has started that may cost this."""
        self.reserved += amount

    def settle(self, day: int, reserved: int, actual: int) -> None:
        """A call that began on `day` has cost `actual`."""
        if day == self.day:
            self.spent += actual
            self.reserved -= reserved

    def unkept(self) -> int:
        """What the others do not know; below 0 if calls cost less than was reserved for them."""
        return self.spent + self.reserved - self._kept

    def kept(self, day: int, told: int, total: int) -> None:
        """The others have committed `told` more; all together, `total` on that day."""
        if day == self.day:
            self._kept += told
            self.others = max(0, total - self._kept)
