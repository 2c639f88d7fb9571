"""Rewrites whole finished files: drops resolved failures, moves lines out, puts results in order.

New content is written to a file beside the old one, which is then renamed, so a crash at any moment
leaves either the old or the new content.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

from redline.errors import JournalError
from redline.journal.results_file import copier, take_out
from redline.journal.sound_lines import read_stretches
from redline.process import (
    free_name,
    open_alone,
    replace_file,
    sync_name,
    telling,
)


def drop_mended(path: Path, has_succeeded: Callable[[int], bool]) -> int:
    """Drops from `path` the rows that have succeeded since, and all but each row's last failure.

    Returns the number of lines left. Removes the file if no line is left, and rewrites it only if a
    line is dropped. The caller holds the output's lock. Raises JournalError.
    """
    last: dict[int, int] = {}  # the number of each row's last line in the file
    ends = array("Q", [0])
    with closing(open_alone(path, os.O_RDONLY)) as file:
        for stretch in read_stretches(file.fd):
            numbered = enumerate(stretch.keys, len(ends) - 1)
            last.update((key, at) for at, key in numbered if not has_succeeded(key))
            ends.extend(islice(stretch.offsets(), 1, None))
        if not last:
            _remove(path)
        elif len(last) < len(ends) - 1:
            _keep(path, file.fd, (ends[at : at + 2] for at in sorted(last.values())))
    return len(last)


def set_aside(path: Path, is_gone: Callable[[int], bool], aside: Path) -> None:
    """Moves the lines of rows that are gone to the first free `labels.outdated-N.jsonl`.

    is_gone: called with a row's key. aside: the path from which that name is made, such as
    labels.jsonl. Removes `path` if no line is left. The caller holds the output's lock. Raises
    JournalError.
    """
    bounds, kept = array("Q"), 0
    with closing(open_alone(path, os.O_RDONLY)) as file:
        for stretch in read_stretches(file.fd):
            gone = [found for key, found in stretch.bounds() if is_gone(key)]
            kept += len(stretch.lines) - len(gone)
            bounds.extend(chain.from_iterable(gone))
        if bounds:
            take_out(path, file.fd, bounds, free_name(aside, "outdated"))
            if not kept:
                _remove(path)


def set_all_aside(path: Path, aside: Path) -> None:
    """Moves all lines to the first free `labels.outdated-N.jsonl`, and removes `path`.

    aside: the path from which that name is made, such as labels.jsonl. Does nothing if `path` does
    not exist. The caller holds the output's lock. Raises JournalError.
    """
    if not path.exists():
        return
    # Copied rather than renamed: either path may lead to another disk.
    with closing(open_alone(path, os.O_RDONLY)) as file:
        size_bytes = os.fstat(file.fd).st_size
        if size_bytes:
            whole = copier(file.fd, array("Q", [0, size_bytes]))
            replace_file(free_name(aside, "outdated"), whole)
        _remove(path)


def put_in_order(path: Path, keys: array[int]) -> None:
    """Sorts the lines of `path` into the order of `keys`; lines of other rows come last.

    keys: the keys of the input's rows, in input order. The row numbers in the lines are not used:
    rows added to the input since may have shifted them. Takes about 220 bytes of memory per row.
    Raises JournalError.
    """
    places = {key: place for place, key in enumerate(keys)}
    rows, ends = array("Q"), array("Q", [0])
    with closing(open_alone(path, os.O_RDONLY)) as file:
        for stretch in read_stretches(file.fd):
            if not stretch.keys:
                raise JournalError(
                    f"a line of {path} is damaged: `redline repair` moves it out",
                    where=f"byte {stretch.begin:,}",
                )
            rows.extend(places.get(key, len(keys)) for key in stretch.keys)
            ends.extend(islice(stretch.offsets(), 1, None))
        order = sorted(range(len(rows)), key=rows.__getitem__)
        if order != list(range(len(order))):
            _keep(path, file.fd, (ends[at : at + 2] for at in order))


def _keep(path: Path, fd: int, bounds: Iterable[Iterable[int]]) -> None:
    """Replaces `path` with lines of `fd`, in this order. bounds: (begin, end) of each line."""
    replace_file(path, copier(fd, array("Q", chain.from_iterable(bounds))))


def _remove(path: Path) -> None:
    with telling(path):
        path.unlink()
        sync_name(path)
