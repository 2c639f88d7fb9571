"""The lines of a results file for whoever reads them after a run: whole ones, in file order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from redline.errors import JournalError
from redline.run.entries import read_stretches
from redline.run.identity import KeySet


def read_results(path: Path) -> Iterator[bytes]:
    """Each line. A torn last line is left out: its row is not done yet.

    Raises JournalError for a damaged line, and for a file that cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    try:
        for stretch in read_stretches(fd):
            if stretch.keys:
                yield from stretch.lines
            elif stretch.lines[0].endswith(b"\n"):
                raise JournalError(
                    f"a line of {path} is damaged",
                    where=f"byte {stretch.begin:,}",
                    hint=f"`redline repair {path}` takes such lines out",
                )
    finally:
        os.close(fd)


def read_keys(path: Path) -> KeySet:
    """The keys of the file's lines, with the marks of their last lines; none without a file."""
    keys = KeySet()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return keys
    try:
        for stretch in read_stretches(fd):
            keys.add_each(stretch.keys)
            keys.mark(stretch.keys, stretch.marks())
    finally:
        os.close(fd)
    return keys


def has_sound_line(path: Path) -> bool:
    """Any line of the file is one of redline's. Raises JournalError if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    try:
        return any(stretch.keys for stretch in read_stretches(fd))
    finally:
        os.close(fd)
