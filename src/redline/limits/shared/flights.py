"""How many calls are in flight, in this process alone or in all that share a table."""

from __future__ import annotations

from typing import Protocol

import msgspec

from redline.process import SharedTable


class Flights(Protocol):
    """Calls that have started and not ended."""

    @property
    def count(self) -> int:
        """In all processes."""

    @property
    def own(self) -> int:
        """In this process."""

    def add(self, more: int) -> None:
        """This many more have started here; -1 if one has ended."""


class OwnFlights(msgspec.Struct, eq=False):
    """Those of this process alone."""

    count: int = 0

    @property
    def own(self) -> int:
        return self.count

    def add(self, more: int) -> None:
        self.count += more


class SharedFlights:
    """Those of all processes that share a table; of one that is lost, none.

    name: the same for all of them. process: this one, from 0.
    """

    def __init__(self, table: SharedTable, name: str, process: int) -> None:
        self._counts = table.words[row(table, name)]
        self._process = process

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def own(self) -> int:
        return self._counts[self._process]

    def add(self, more: int) -> None:
        self._counts[self._process] += more


def row(table: SharedTable, name: str) -> slice:
    """The table's words or reals of that name, one for each process."""
    first = table.counts(name)
    return slice(first, first + table.processes)
