"""Opening an output: a new one, or one to continue."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

from redline.errors import ConfigError, JournalError
from redline.run import manifest as manifests
from redline.run.journal import Journal
from redline.run.manifest import Manifest
from redline.run.record import Result
from redline.run.results_file import drop_unfinished, sync_name, telling
from redline.run.settings import Job, Output
from redline.run.task import Remembering


def open_journal(
    job: Job, output: Output, acknowledge: Callable[[list[Result]], None]
) -> tuple[Journal, Manifest]:
    """The journal of `output`, ready to go on, and its manifest. Blocks while it reads.

    The caller holds the lock. Raises ConfigError where the file is not redline's or was begun with
    other settings, JournalError where it is damaged.
    """
    if job.restart:
        _put_aside(output)
    new = manifests.make(job)
    old = None if job.restart else _begun(job, output)
    if old is not None:
        if _size(output.path):
            if not job.force:
                manifests.check(old, new, output)
        elif old.settings != new.settings and not job.retry_failed:
            # Nothing has succeeded yet, so nothing can be mixed: what failed under the old
            # settings, such as a wrong model, is done anew under these.
            with telling(output.failed_path):
                output.failed_path.unlink(missing_ok=True)
                sync_name(output.failed_path)
        new.begun, new.others = old.begun, manifests.other_inputs(old, new.input)
    for path in (output.path, output.failed_path):
        drop_unfinished(path)
    manifests.save(output, new)
    journal = Journal(output, acknowledge)
    if isinstance(job.task, Remembering):
        try:
            job.task.recall(output.path, output.failed_path)
        except BaseException:
            journal.let_go()
            raise
    return journal, new


def _begun(job: Job, output: Output) -> Manifest | None:
    """The manifest of the results that are there; None for a new output."""
    if not output.path.exists() and not output.failed_path.exists():
        return None
    try:
        old = manifests.load(output)
    except JournalError:
        if not job.force:
            raise
        return None
    if old is None and not job.force and _size(output.path):
        raise ConfigError(
            f"{output.path} exists and is not a results file of redline",
            hint="choose another -o, or put that file aside with --restart",
        )
    return old


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _put_aside(output: Output) -> None:
    """Renames the files of an earlier run to the first free `labels.old-N`; a link stays."""
    results, failed = Path(os.path.realpath(output.path)), output.failed_path
    for number in count(1):
        aside = results.with_name(f"{results.stem}.old-{number}{results.suffix}")
        aside_failed = failed.with_name(f"{output.path.stem}.old-{number}.failed.jsonl")
        if not aside.exists() and not aside_failed.exists():
            break
    for path, new in ((results, aside), (failed, aside_failed)):
        with telling(path):
            if path.exists():
                path.rename(new)
                # Before the manifest speaks of the new run: else a power loss could leave the old
                # results under the new settings.
                sync_name(path)
