"""Where usage is counted against tenants' limits: in this process, or shared with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from redline.limits import Rate
from redline.limits.shared import Flights, OwnFlights
from redline.serve.keys.day_money import DayMoney
from redline.serve.keys.window import SlidingWindow


class Entry(Protocol):
    """An admitted amount."""

    def give_back(self, amount: int) -> None:
        """Gives back an amount that was not used."""


class CountedWindow(Protocol):
    """See SlidingWindow."""

    @property
    def rate(self) -> Rate: ...

    def reshape(self, rate: Rate) -> None: ...

    def has_room(self, amount: int, now_s: float) -> bool: ...

    def wait_s(self, amount: int, now_s: float) -> float: ...

    def take(self, amount: int, now_s: float) -> Entry: ...


class Money(Protocol):
    """See DayMoney."""

    @property
    def allowance(self) -> int | None: ...

    @property
    def day(self) -> int: ...

    @property
    def spent(self) -> int: ...

    @property
    def reserved(self) -> int: ...

    @property
    def others(self) -> int: ...

    @property
    def committed(self) -> int: ...

    def begin(self, day: int) -> None: ...

    def allow(self, allowance: int | None) -> None: ...

    def has_room(self, amount: int) -> bool: ...

    def reserve(self, amount: int) -> None: ...

    def settle(self, day: int, reserved: int, actual: int) -> None: ...

    def unkept(self) -> int: ...

    def kept(self, day: int, told: int, total: int) -> None: ...


class LimitStore(Protocol):
    """A store of counts. In its `with` block, nothing else changes them. Blocks may be nested."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def flights(self, tenant: str) -> Flights: ...

    def money(self, tenant: str) -> Money: ...

    def window(
        self, tenant: str, kind: str, rate: Rate, before: Sequence[CountedWindow]
    ) -> CountedWindow:
        """A window of `requests` or `tokens`. before: those whose counts it takes over."""


class OwnStore:
    """Counts of this process alone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was locked."""

    def flights(self, tenant: str) -> Flights:
        return OwnFlights()

    def money(self, tenant: str) -> Money:
        return DayMoney(None)

    def window(
        self, tenant: str, kind: str, rate: Rate, before: Sequence[CountedWindow]
    ) -> CountedWindow:
        windows = [window for window in before if isinstance(window, SlidingWindow)]
        longest = max(windows, key=lambda window: window.rate.window_s, default=None)
        # As far back as is known. None of it is given back: calls refer to the other records.
        return SlidingWindow(rate, () if longest is None else longest.records)


OWN = OwnStore()
