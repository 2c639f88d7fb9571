"""How many calls are in flight, in this process alone or in all that share a table."""

from __future__ import annotations

from redline.process import SharedTable


class Flights:
    """Calls that have started and not ended. counts: of each process. number: this one's."""

    def __init__(self, counts: list[int] | memoryview, number: int) -> None:
        self._counts = counts
        self._number = number

    @property
    def count(self) -> int:
        """Calls in flight in all processes."""
        return sum(self._counts)

    @property
    def own(self) -> int:
        """Calls in flight in this process."""
        return self._counts[self._number]

    def add(self, more: int) -> None:
        """Counts calls that have started here; -1 for one that has ended."""
        self._counts[self._number] += more


class OwnFlights(Flights):
    """The calls of this process alone."""

    def __init__(self) -> None:
        super().__init__([0], 0)


class SharedFlights(Flights):
    """The calls of all processes that share a table; a lost process has none.

    name: the same for all of them. process: this one, from 0.
    """

    def __init__(self, table: SharedTable, name: str, process: int) -> None:
        super().__init__(table.words[row(table, name)], process)


def row(table: SharedTable, name: str) -> slice:
    """The table's words or reals of that name, one for each process."""
    first = table.counts(name)
    return slice(first, first + table.processes)
