"""Proof that a results file is complete: every row of the input once; what is more is counted."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from redline.errors import ConfigError
from redline.run import manifest as manifests
from redline.run.entries import read_stretches
from redline.run.identity import Identifier, KeySet, mark_of
from redline.run.output import Output
from redline.run.read_back import has_sound_line
from redline.run.source import AsyncRows, Source, open_source
from redline.run.source_repeated import sampled


class Verdict(msgspec.Struct, kw_only=True):
    """rows: of the input. succeeded + failed + missing = rows.

    repeated: lines for a row that has one already. changed: lines that answer what a row held
    before it was changed. strange: lines whose row is not in the input. damaged: lines whose
    checksum does not hold.
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
        """Each row of the input has exactly one sound line, of what it holds now."""
        return not (self.missing or self.repeated or self.changed or self.damaged)

    def __str__(self) -> str:
        """One line: `verify: 20 of 20, each once`, or what is wrong."""
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
                parts.append(f"{self.repeated:,} lines repeat a row")
            if self.changed:
                answer = "line answers" if self.changed == 1 else "lines answer"
                parts.append(f"{self.changed:,} {answer} what a row held before it was changed")
            if self.damaged:
                parts.append(f"{self.damaged:,} lines are damaged")
        if self.strange:
            parts.append(f"{self.strange:,} lines belong to no row of the input")
        return "; ".join(parts)


def verify(output: Output, rows: object = None, limit: int | None = None) -> Verdict:
    """Compares an output with its input. Blocks; reads both once.

    rows: the input; None takes the path that the manifest names. limit: only the first N rows must
    be there; the others are read to tell their lines from lines of no row.
    Raises ConfigError where there is no such output, or no input to compare with.
    """
    manifest = manifests.load(output)
    if manifest is None:
        manifest = _without_folder(output, is_input_named=rows is not None)
    rows = rows if rows is not None else manifest.input or None
    if rows is None:
        raise ConfigError(
            f"{output.path} was not made from a file", hint="name the input with --input"
        )
    verdict = Verdict()
    succeeded = _scan(output.path, verdict)
    failed = _scan(output.failed_path, verdict)
    samples = manifest.settings.get("samples") or 1
    source = sampled(open_source(rows), samples)
    of_rows = _compare(source, limit, (succeeded, failed), verdict)
    verdict.strange = len(succeeded) + len(failed) - of_rows
    return verdict


def _without_folder(output: Output, *, is_input_named: bool) -> manifests.Manifest:
    """A manifest for results that were copied without their folder. Raises ConfigError."""
    missing = manifests.path_of(output)
    if not output.path.exists() or not has_sound_line(output.path):
        raise ConfigError(
            f"{output.path} is not a results file of redline", hint=f"there is no {missing}"
        )
    if not is_input_named:
        raise ConfigError(
            f"{output.path} does not say what it was made from, for {missing} is missing",
            hint="name the input with --input",
        )
    return manifests.Manifest(settings={})


def _scan(path: Path, verdict: Verdict) -> KeySet:
    """The keys in a file, with the marks of their last lines; counts the lines that are no use."""
    keys = KeySet()
    if not path.exists():
        return keys
    fd = os.open(path, os.O_RDONLY)
    try:
        for stretch in read_stretches(fd):
            verdict.damaged += not stretch.keys
            repeated, changed = keys.add_marked(stretch.keys, stretch.marks())
            verdict.repeated += len(repeated)
            verdict.changed += len(changed)
    finally:
        os.close(fd)
    return keys


def _compare(
    source: Source | AsyncRows, limit: int | None, keys: tuple[KeySet, KeySet], verdict: Verdict
) -> int:
    """The number of keys that are those of rows; counts the first `limit` rows in `verdict`."""
    of_rows = 0
    succeeded, failed = keys
    if isinstance(source, AsyncRows):
        raise ConfigError("an async iterable cannot be verified", hint="name a file")
    identifier = Identifier()
    try:
        for batch in source.batches():
            identified = identifier.keys(batch)
            for place, (row, key) in enumerate(zip(batch, identified.keys, strict=True)):
                mark = 0 if place in identified.duplicates else mark_of(row)
                has_succeeded, has_failed = succeeded.matches(key, mark), failed.matches(key, mark)
                of_rows += has_succeeded + has_failed
                changed = (key in succeeded) + (key in failed) - has_succeeded - has_failed
                of_rows += changed
                if limit is not None and row.number > limit:
                    continue
                verdict.rows += 1
                verdict.changed += changed
                verdict.succeeded += has_succeeded
                verdict.failed += has_failed and not has_succeeded
                # A retried row may stand in both until its failure is taken out.
                verdict.repeated += has_succeeded and has_failed
                if not has_succeeded and not has_failed:
                    verdict.missing += 1
                    verdict.first_missing = verdict.first_missing or row.number
    finally:
        source.close()
    return of_rows
