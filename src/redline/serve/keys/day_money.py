"""Counts the money that a tenant spends on one day, UTC."""

from __future__ import annotations

DAY_S = 86_400


class DayMoney:
    """The amounts that are reserved and spent today, in picodollars.

    reserved, spent: the amounts of this process. others: the amount that earlier and other
    processes have spent and reserved today. Each day starts at zero; a call counts on the day on
    which it began.
    """

    __slots__ = ("_kept", "day", "others", "reserved", "spent")

    def __init__(self) -> None:
        self.day = 0
        self.spent = self.reserved = self.others = 0
        # The part of this process's amounts that is saved, so that other processes count it.
        self._kept = 0

    def begin(self, day: int) -> None:
        """Makes this the current day. day: days since 1970-01-01."""
        if day != self.day:
            self.spent = self.reserved = self.others = self._kept = 0
            self.day = day

    @property
    def committed(self) -> int:
        """Today's spending if every call in flight costs its whole reservation."""
        return self.spent + self.reserved + self.others

    def spent_on(self, day: int) -> int:
        """Returns what all processes spent on this day and others reserved; 0 for a future day.

        A day before the current one counts as the current one: the clock was set back.
        """
        return self.spent + self.others if day <= self.day else 0

    def reserve(self, amount: int) -> None:
        """Reserves the amount for a call that is starting."""
        self.reserved += amount

    def settle(self, day: int, reserved: int, actual: int) -> None:
        """Settles a call that began on `day` at its cost, `actual`. reserved: its reservation."""
        if day == self.day:
            self.spent += actual
            self.reserved -= reserved

    def unkept(self) -> int:
        """Returns the amount not yet saved; negative if calls cost less than was reserved."""
        return self.spent + self.reserved - self._kept

    def kept(self, day: int, told: int, total: int) -> None:
        """Records that another `told` picodollars of this process are saved.

        total: the amount that all processes have committed on that day.
        """
        if day == self.day:
            self._kept += told
            self.others = max(0, total - self._kept)
