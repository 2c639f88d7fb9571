"""Checks that an output has exactly one line for every row of the input; counts surplus lines."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from redline.errors import ConfigError
from redline.job.outputs.checking import check_written
from redline.journal import (
    KeySet,
    Output,
    keyed_rows,
    mark_of,
    opened_lines,
    read_stretches,
)
from redline.journal import manifest as manifests
from redline.process import counted
from redline.sources import Source, opened_source


class Verification(msgspec.Struct, kw_only=True):
    """The result of comparing an output with its input.

    rows: the rows of the input, up to the limit; rows = succeeded + failed + missing.
    first_missing: the number of the first missing row; None if none is missing.
    repeated: lines for a row that already has a line. changed: lines for the former content of a
    row that has changed. strange: lines whose row is not in the input. damaged: lines whose
    checksum is wrong.
    """

    rows: int = 0
    succeeded: int = 0
    failed: int = 0
    missing: int = 0
    first_missing: int | None = None
    repeated: int = 0
    changed: int = 0
    strange: int = 0
    damaged: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether each row has exactly one line, for its current content, and none is damaged."""
        return not (self.missing or self.repeated or self.changed or self.damaged)

    def __str__(self) -> str:
        """Returns one line: `verify: 20 of 20, each once`, or the problem."""
        found = self.rows - self.missing
        if self.is_whole:
            parts = [f"verify: {found:,} of {self.rows:,}, each once"]
            if self.failed:
                parts.append(f"{self.failed:,} of them as failures")
        else:
            parts = [f"verify: {found:,} of {self.rows:,}"]
            if self.missing:
                parts.append(f"{self.missing:,} missing, the first is row {self.first_missing:,}")
            if self.repeated:
                parts.append(f"{counted(self.repeated, 'line repeats', 'lines repeat')} a row")
            if self.changed:
                answers = counted(self.changed, "line answers", "lines answer")
                parts.append(f"{answers} the former content of a row that has changed")
            if self.damaged:
                parts.append(f"{counted(self.damaged, 'line is', 'lines are')} damaged")
        if self.strange:
            belong = counted(self.strange, "line belongs", "lines belong")
            parts.append(f"{belong} to no row of the input")
        return "; ".join(parts)


def verify(output: Output, rows: object = None, limit: int | None = None) -> Verification:
    """Compares an output with its input. Blocks; reads both once.

    rows: the input; None for the path in the manifest. limit: only the first `limit` rows must have
    a line, and later rows are read so that their lines do not count as strange; None for all rows.
    Raises ConfigError if redline did not write the output, or if there is no input to compare with;
    JournalError if the output cannot be read.
    """
    manifest = manifests.load(output)
    if manifest is None:
        # The results may have been copied without their state folder.
        check_written(output)
        manifest = manifests.Manifest(settings={})
        if rows is None:
            raise ConfigError(
                f"the input of {output.path} is unknown, because {manifests.path_of(output)} is "
                "missing",
                hint="pass the input with --input",
            )
    rows = rows if rows is not None else manifest.input
    if not rows or (rows == manifest.input and "\ufffd" in rows and not os.path.exists(rows)):
        made = (
            f"from a file whose name is not UTF-8: {rows}"
            if rows
            else "without an input file, or from a URL that is not recorded"
        )
        hint = "pass the input with --input, if it can be read again"
        raise ConfigError(f"{output.path} was made {made}", hint=hint)
    verification = Verification()
    succeeded = _scan(output.path, verification)
    failed = _scan(output.failed_path, verification)
    samples = manifest.settings.get("samples") or 1
    with opened_source(rows, samples) as source:
        of_rows = _compare(source, limit, (succeeded, failed), verification)
    verification.strange = len(succeeded) + len(failed) - of_rows
    return verification


def _scan(path: Path, verification: Verification) -> KeySet:
    """Returns the keys in a file, with the marks of their last lines.

    Counts the damaged, repeated and changed lines in `verification`.
    """
    keys = KeySet()
    if not path.exists():
        return keys
    with opened_lines(path) as fd:
        for stretch in read_stretches(fd):
            verification.damaged += not stretch.keys
            repeated, changed = keys.add_marked(stretch.keys, stretch.marks())
            verification.repeated += len(repeated)
            verification.changed += len(changed)
    return keys


def _compare(
    source: Source,
    limit: int | None,
    keys: tuple[KeySet, KeySet],
    verification: Verification,
) -> int:
    """Returns how many keys belong to rows of the input; counts its first `limit` rows.

    keys: the keys of the successes and of the failures; a key in both counts twice.
    """
    of_rows = 0
    succeeded, failed = keys
    for row, key, is_duplicate in keyed_rows(source):
        mark = 0 if is_duplicate else mark_of(row)
        has_succeeded, has_failed = succeeded.matches(key, mark), failed.matches(key, mark)
        of_rows += has_succeeded + has_failed
        changed = (key in succeeded) + (key in failed) - has_succeeded - has_failed
        of_rows += changed
        if limit is not None and row.number > limit:
            continue
        verification.rows += 1
        verification.changed += changed
        verification.succeeded += has_succeeded
        verification.failed += has_failed and not has_succeeded
        # A row that succeeded when retried may be in both files until its failure is removed.
        verification.repeated += has_succeeded and has_failed
        if not has_succeeded and not has_failed:
            verification.missing += 1
            verification.first_missing = verification.first_missing or row.number
    return of_rows
