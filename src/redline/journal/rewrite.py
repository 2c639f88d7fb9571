"""Rewrites of whole finished files: dropping resolved failures, putting results in order.

Each writes a new file beside the old one and renames it, so that a crash at any moment leaves one
of the two.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

from redline.errors import JournalError
from redline.journal.results_file import take_out
from redline.journal.sound_lines import read_stretches
from redline.process import (
    copy_mode,
    free_name,
    open_alone,
    replace_file,
    sync_name,
    telling,
    write_all,
)

_BUFFER_BYTES = 1 << 20


def drop_mended(path: Path, has_succeeded: Callable[[int], bool]) -> int:
    """Drops failures in `path` that have succeeded since, and all but each row's last one.

    Returns the number left; removes the file if there are none, and does not rewrite it if nothing
    is to be dropped. The caller holds the output's lock. Raises JournalError.
    """
    last: dict[int, int] = {}
    total = 0
    with closing(open_alone(path, os.O_RDONLY)) as file:
        for stretch in read_stretches(file.fd):
            total += len(stretch.lines)
            found = zip(stretch.keys, stretch.offsets(), strict=False)
            last.update((key, offset) for key, offset in found if not has_succeeded(key))
        if len(last) < total:
            keep = sorted(last.values())
            if keep:
                _copy_lines(file.fd, path, array("Q", keep))
            else:
                with telling(path):
                    path.unlink()
                    sync_name(path)
    return len(last)


def set_aside(path: Path, is_gone: Callable[[int], bool], aside: Path) -> None:
    """Moves the lines of rows that are gone to the first free `labels.outdated-1.jsonl`.

    is_gone: called with a row's key. aside: the path from which that name is made. Removes `path`
    if no line is left. The caller holds the output's lock. Raises JournalError.
    """
    bounds, kept = array("Q"), 0
    with closing(open_alone(path, os.O_RDONLY)) as file:
        for stretch in read_stretches(file.fd):
            ends = list(stretch.offsets())
            gone = [place for place, key in enumerate(stretch.keys) if is_gone(key)]
            kept += len(stretch.lines) - len(gone)
            for place in gone:
                bounds.extend(ends[place : place + 2])
        if bounds:
            take_out(path, file.fd, bounds, free_name(aside, "outdated"))
        if bounds and not kept:
            with telling(path):
                path.unlink()
                sync_name(path)


def put_in_order(path: Path, keys: array[int]) -> None:
    """Sorts the lines of `path` by the input's `keys`; lines of rows not in the input come last.

    The lines' own row numbers are not used: rows added to the input since may have shifted them.
    Takes about 150 bytes of memory per row. Raises JournalError.
    """
    places = {key: place for place, key in enumerate(keys)}
    rows, offsets = array("Q"), array("Q")
    with closing(open_alone(path, os.O_RDONLY)) as file:
        for stretch in read_stretches(file.fd):
            if not stretch.keys:
                raise JournalError(f"a line of {path} is damaged", where=f"byte {stretch.begin:,}")
            rows.extend(places.get(key, len(keys)) for key in stretch.keys)
            offsets.extend(islice(stretch.offsets(), len(stretch.lines)))
        order = sorted(range(len(rows)), key=rows.__getitem__)
        if any(order[at] != at for at in range(len(order))):
            _copy_lines(file.fd, path, array("Q", (offsets[at] for at in order)))


def _copy_lines(fd: int, path: Path, offsets: array[int]) -> None:
    """Replaces `path` by the lines of `fd` that begin at `offsets`, in that order."""

    def write(new_fd: int) -> None:
        copy_mode(fd, new_fd)
        gathered: list[bytes] = []
        size_bytes = 0
        with os.fdopen(os.dup(fd), "rb") as old:
            for offset in offsets:
                old.seek(offset)
                gathered.append(old.readline())
                size_bytes += len(gathered[-1])
                if size_bytes >= _BUFFER_BYTES:
                    write_all(new_fd, gathered)
                    gathered, size_bytes = [], 0
        write_all(new_fd, gathered)

    replace_file(path, write)
