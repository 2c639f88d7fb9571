"""CSV with the line ends of Unix, in which every text can be read back."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Protocol


class _TextFile(Protocol):
    def write(self, text: str, /) -> object: ...


class CsvLines:
    """Writes rows to a text file.

    csv quotes a carriage return only if the line end contains one, and readers take one without
    quotes for a line end. So csv writes its own line end, which is replaced.
    """

    def __init__(self, file: _TextFile) -> None:
        self._file = file
        self._writer = csv.writer(self)

    def row(self, cells: Iterable[object]) -> None:
        """Writes a row."""
        self._writer.writerow(cells)

    def write(self, line: str) -> object:
        """Takes a whole line from csv."""
        return self._file.write(line.removesuffix("\r\n") + "\n")
