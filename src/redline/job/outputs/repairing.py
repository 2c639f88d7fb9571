"""Moves the lines that a run refuses from a results file to another file.

For each file: scan it -> copy the refused lines to a file beside it -> replace it with a new file
of the kept lines. Each copy is durable before the next step, so if the process dies at any moment,
either the old or the new file is whole, and no byte is lost.
"""

from __future__ import annotations

import os
from array import array
from contextlib import closing
from pathlib import Path

import msgspec

from redline.job.outputs.checking import check_written
from redline.journal import (
    KeySet,
    Output,
    OutputLock,
    read_stretches,
    take_out,
)
from redline.process import open_alone, sync_name, telling


class Repair(msgspec.Struct, kw_only=True):
    """The result of repairing one file.

    kept: the number of lines that stay. damaged: the number of lines taken out because their
    checksum is wrong or their end is missing. repeated: the number of lines taken out because an
    earlier line of the row has the same content. aside: the file with the lines taken out, byte for
    byte; None if there were none, so that `path` is unchanged.
    """

    path: Path
    kept: int = 0
    damaged: int = 0
    repeated: int = 0
    aside: Path | None = None


def repair(output: Output) -> list[Repair]:
    """Repairs an output so that a run can continue it; returns a Repair for each file. Blocks.

    Repeated failures stay, because the next run drops all but the last failure of each row.
    Rows whose line was damaged have no line afterwards, so the next run sends them again.
    Raises ConfigError if there is no results file of redline, or while a run is writing to it;
    JournalError if a file cannot be read or written.
    """
    check_written(output)
    with OutputLock(output):
        repairs = [_repaired(output.path, is_unique=True)]
        if output.failed_path.exists():
            repairs.append(_repaired(output.failed_path, is_unique=False))
    return repairs


def _repaired(path: Path, *, is_unique: bool) -> Repair:
    done = Repair(path=path)
    with closing(open_alone(path, os.O_RDONLY)) as file:
        out = _to_take_out(file.fd, done, is_unique)
        if out:
            done.aside = take_out(path, file.fd, out)
        else:
            # An earlier repair may have died before the name of its new file was durable.
            with telling(path):
                sync_name(path)
    return done


def _to_take_out(fd: int, done: Repair, is_unique: bool) -> array[int]:
    """Returns the offsets of the bytes to take out: begin, end, begin, end, ...

    The ranges are in order and not adjacent. Counts the lines in `done`. is_unique: whether a
    repeated line is taken out.
    """
    known = KeySet()
    out = array("Q")
    for stretch in read_stretches(fd):
        # Lines for different contents of a row are all kept: the row has changed, and the later
        # line counts.
        repeated = known.add_marked(stretch.keys, stretch.marks())[0] if is_unique else []
        done.kept += len(stretch.keys) - len(repeated)
        done.repeated += len(repeated)
        done.damaged += not stretch.keys
        places = repeated if stretch.keys else [0]
        bounds = list(stretch.offsets()) if places else []
        for place in places:
            begin, end = bounds[place : place + 2]
            if out and out[-1] == begin:
                out[-1] = end
            else:
                out.extend((begin, end))
    return out
