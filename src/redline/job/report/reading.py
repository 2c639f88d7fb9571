"""Reads the contents of a report from the files of an output."""

from __future__ import annotations

import msgspec

from redline.errors import JournalError
from redline.job.outputs import path_of
from redline.job.report.failed_rows import FailedKind, failed_rows
from redline.journal import Manifest, Output
from redline.journal import manifest as manifests
from redline.process import counted
from redline.timeline import Timeline


class JobFiles(msgspec.Struct, kw_only=True):
    """The files of one output. name: its display name. timeline: with at least one run.

    is_running: a process holds the output. has_budget: a run's spending may then be that of all
    runs up to it. notes: what could not be read, in sentences.
    """

    name: str
    timeline: Timeline
    is_running: bool = False
    manifest: Manifest | None = None
    failed: list[FailedKind] = []
    has_budget: bool = False
    notes: list[str] = []


def read_files(output: Output, timeline: Timeline, *, is_running: bool) -> JobFiles:
    """Reads the files beside the output; an unreadable file becomes a note.

    timeline: read already, since its file is not one of these.
    """
    files = JobFiles(name=output.name, timeline=timeline, is_running=is_running, notes=[])
    files.has_budget = path_of(output).exists()
    try:
        files.manifest = manifests.load(output)
    except JournalError as error:
        files.notes.append(f"settings are left out: {error.what}")
    try:
        files.failed = failed_rows(output)
    except JournalError as error:
        files.notes.append(f"failures are left out: {error.what}")
    except OSError as error:
        what = f"{output.failed_path} cannot be read: {error.strerror}"
        files.notes.append(f"failures are left out: {what}")
    if timeline.damaged:
        lines = counted(timeline.damaged, "damaged line")
        files.notes.append(f"{lines} of the timeline left out")
    return files
