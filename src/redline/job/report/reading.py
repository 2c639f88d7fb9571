"""Reads the files of an output that a report needs."""

from __future__ import annotations

import msgspec

from redline.errors import JournalError
from redline.job.inspect import current_lines, read_line
from redline.job.outputs import path_of
from redline.journal import Manifest, Output
from redline.journal import manifest as manifests
from redline.process import clipped, counted, printable
from redline.timeline import Timeline

_MOST_EXAMPLES = 3
# A bound, because a damaged or foreign file may contain any number of kinds.
_MOST_KINDS = 50
_LONGEST = 300


class FailedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One failed row, as an example. name: its custom_id, otherwise `row` and its number."""

    name: str
    attempts: int
    message: str


class FailedKind(msgspec.Struct, kw_only=True):
    """Counts the rows that failed with one kind of error. examples: the first few of them."""

    kind: str
    rows: int = 0
    examples: list[FailedRow] = []


class JobFiles(msgspec.Struct, kw_only=True):
    """The contents of an output's files. name: as shown to the user.

    timeline: has at least one run. is_running: whether a process holds the output's lock.
    failed: the failed rows by kind of error, the most frequent first. has_account: whether the
    output has a budget's account. notes: sentences on what could not be read.
    """

    name: str
    timeline: Timeline
    is_running: bool = False
    manifest: Manifest | None = None
    failed: list[FailedKind] = []
    has_account: bool = False
    notes: list[str] = []

    @property
    def budgeted(self) -> list[bool]:
        """For each run, whether it had a budget in money."""
        facts = [run.facts for run in self.timeline.runs]
        return [self.has_account if one.has_budget is None else one.has_budget for one in facts]


def read_files(output: Output, timeline: Timeline, *, is_running: bool) -> JobFiles:
    """Reads an output's files except the timeline; an unreadable file becomes a note.

    timeline: the output's timeline, which the caller has read.
    """
    files = JobFiles(name=output.name, timeline=timeline, is_running=is_running, notes=[])
    files.has_account = path_of(output).exists()
    try:
        files.manifest = manifests.load(output)
    except JournalError as error:
        files.notes.append(f"settings are left out: {error.what}")
    try:
        files.failed = _failed_rows(output)
    except JournalError as error:
        files.notes.append(f"failures are left out: {error.what}")
    except OSError as error:
        what = f"{output.failed_path} cannot be read: {error.strerror}"
        files.notes.append(f"failures are left out: {what}")
    if timeline.damaged:
        lines = counted(timeline.damaged, "damaged line")
        files.notes.append(f"left out of the figures: {lines} of the timeline")
    return files


def _failed_rows(output: Output) -> list[FailedKind]:
    """Counts the failed rows by kind of error, the most frequent first; at most 50 kinds.

    Each row counts once, with its current line. Both files are read, because rows that have a
    result do not count. Lines that cannot be parsed are skipped. Raises JournalError or OSError if
    a file cannot be read.
    """
    if not output.failed_path.exists():
        return []
    kinds: dict[str, FailedKind] = {}
    with current_lines(output) as lines:
        for place in lines.failures.places():
            line = read_line(place.line)
            if line is None or line.error is None:
                continue
            name, message = line.error.kind, line.error.message
            kind = kinds.get(name)
            if kind is None and len(kinds) < _MOST_KINDS:
                kind = kinds[name] = FailedKind(kind=shown(name))
            if kind is None:
                continue
            kind.rows += 1
            if len(kind.examples) < _MOST_EXAMPLES:
                row = f"row {line.row:,}" if line.custom_id is None else line.custom_id
                kind.examples.append(
                    FailedRow(name=shown(row), attempts=line.attempts, message=shown(message))
                )
    return sorted(kinds.values(), key=lambda one: -one.rows)


def shown(text: str, longest: int = _LONGEST) -> str:
    """Returns the text, made printable and cut to at most `longest` characters."""
    text = printable(text[: 2 * longest].encode("utf-8", "replace").decode())
    return clipped(text, longest)
