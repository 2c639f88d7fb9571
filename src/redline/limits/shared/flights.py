"""Counts the calls in flight, in this process alone or in all processes that share a table."""

from __future__ import annotations

from redline.process import SharedTable


class Flights:
    """Counts calls that have started and not ended.

    counts: one number for each process. number: the index of this process.
    """

    def __init__(self, counts: list[int] | memoryview, number: int) -> None:
        self._counts = counts
        self._number = number

    @property
    def count(self) -> int:
        """The number of calls in flight in all processes."""
        return sum(self._counts)

    @property
    def own(self) -> int:
        """The number of calls in flight in this process."""
        return self._counts[self._number]

    def add(self, more: int) -> None:
        """Counts `more` calls that have started in this process; -1 for a call that has ended."""
        self._counts[self._number] += more


class OwnFlights(Flights):
    """Counts the calls of this process alone."""

    def __init__(self) -> None:
        super().__init__([0], 0)


class SharedFlights(Flights):
    """Counts the calls of all processes that share a table; a lost process has none.

    name: the same in all processes. process: the number of this process, from 0.
    """

    def __init__(self, table: SharedTable, name: str, process: int) -> None:
        super().__init__(table.words[row(table, name)], process)


def row(table: SharedTable, name: str) -> slice:
    """Returns the slice of the table's words or reals with this name, one for each process."""
    first = table.counts(name)
    return slice(first, first + table.processes)
