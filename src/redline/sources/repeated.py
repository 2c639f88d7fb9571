"""Repeats each row, to get several samples of its answer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from redline.errors import ConfigError
from redline.sources.iterable import AsyncRows
from redline.sources.row import Row, Source, custom_id


def sampled(source: Source | AsyncRows, samples: int) -> Source | AsyncRows:
    """Returns the source with each row `samples` times. Raises ConfigError for async iterables."""
    if samples == 1:
        return source
    if isinstance(source, AsyncRows):
        raise ConfigError("rows of an async iterable are sent only once", hint="leave out samples")
    return Repeated(source, samples)


class Repeated:
    """A Source that yields each row of `source` `times` times; its lists are that much longer.

    The copies of a row keep its number, which shows that they belong together. Copies of a row with
    a custom_id get `ID#1`, `ID#2`, ...; other copies are distinguished by their count.
    """

    def __init__(self, source: Source, times: int) -> None:
        self._source = source
        self._times = times
        self.name = source.name
        self.total_rows = None if source.total_rows is None else source.total_rows * times

    def batches(self) -> Iterator[list[Row]]:
        for rows in self._source.batches():
            yield [copy for row in rows for copy in self._copies(row)]

    def read_fraction(self) -> float | None:
        return self._source.read_fraction()

    def check(self) -> None:
        self._source.check()

    def close(self) -> None:
        self._source.close()

    def _copies(self, row: Row) -> Iterator[Row]:
        name = custom_id(row)
        if row.data is None or name is None:
            yield from [row] * self._times
            return
        for number in range(1, self._times + 1):
            data = {**row.data, "custom_id": f"{name}#{number}"}
            yield msgspec.structs.replace(row, data=data)
