"""Reads rows from the input, for lines that do not repeat theirs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec

from redline.errors import RedlineError
from redline.job.inspect.opening import Opened
from redline.journal import is_other, keyed_rows, mark_of
from redline.sources import opened_source


def rows_asked(opened: Opened, keys: Iterable[int]) -> Iterator[tuple[int, msgspec.Raw]]:
    """Yields the rows of these keys, as JSON, in the order of the input, read up to the last one.

    Yields nothing if the input is not a file that still exists, and leaves out rows whose content
    has changed. Memory: 16 to 32 bytes for each row of the input.
    """
    wanted = set(keys)
    manifest = opened.manifest
    if not wanted or manifest is None or not os.path.isfile(manifest.input):
        return
    try:
        with opened_source(manifest.input, opened.settings.get("samples") or 1) as source:
            for row, key, is_duplicate in keyed_rows(source):
                if key not in wanted:
                    continue
                wanted.remove(key)
                mark = 0 if is_duplicate else mark_of(row)
                if row.data is not None and not is_other(mark, opened.lines.mark_of(key)):
                    yield key, msgspec.Raw(msgspec.json.encode(row.data))
                if not wanted:
                    return
    except (RedlineError, OSError, ValueError, RecursionError):
        # The file has changed or cannot be read; the lines are shown without their rows.
        return
