"""Writes CSV with Unix line ends, from which every text can be read back."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from typing import TextIO


class _UnixLines:
    """A file for a csv writer; it replaces the writer's line ends with Unix line ends.

    csv quotes a carriage return only if the line end contains one, and readers take an unquoted
    carriage return for a line end. So csv writes CRLF, which is replaced here.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, line: str) -> object:
        """Writes a whole line from csv."""
        return self._file.write(line.removesuffix("\r\n") + "\n")


def row_writer(file: TextIO) -> Callable[[Iterable[object]], object]:
    """Returns a function that writes a row of cells to a text file."""
    return csv.writer(_UnixLines(file)).writerow
