"""CSV with the line ends of Unix, in which every text can be read back."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from typing import TextIO


class _UnixLines:
    """The file of a csv writer, whose own line ends are replaced.

    csv quotes a carriage return only if the line end contains one, and readers take one without
    quotes for a line end. So csv writes its own line end.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, line: str) -> object:
        """Takes a whole line from csv."""
        return self._file.write(line.removesuffix("\r\n") + "\n")


def row_writer(file: TextIO) -> Callable[[Iterable[object]], object]:
    """Returns a function that writes a row of cells to a text file."""
    return csv.writer(_UnixLines(file)).writerow
