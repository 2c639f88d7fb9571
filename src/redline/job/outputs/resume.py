"""Opens an output: begins a new one, or prepares an existing one to be continued."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from redline.errors import ConfigError, JournalError
from redline.job.settings import Job, Remembering
from redline.job.work import Acknowledge
from redline.journal import (
    Journal,
    Manifest,
    Output,
    has_sound_line,
    keyed_rows,
    mark_of,
    names_of,
    read_keys,
    set_all_aside,
)
from redline.journal import manifest as manifests
from redline.process import drop_unfinished, make_like, sync_name, telling
from redline.sources import opened_source, stream_of
from redline.store import local_path, url_of


def open_journal(job: Job, output: Output, acknowledge: Acknowledge) -> tuple[Journal, Manifest]:
    """Opens the journal of `output`; returns the journal and this run's manifest. Blocks.

    The caller holds the output's lock. acknowledge: see `Journal`. Raises ConfigError if redline
    did not write the results, or, without `force`, if it wrote them with other settings;
    JournalError if they are damaged.
    """
    if job.restart:
        _put_aside(output)
    new = job.manifest()
    old = None if job.restart else manifest_of(job, output)
    if old is not None:
        another_input(job, output)
        if _size(output.path):
            if not job.force:
                manifests.check(old, new, output)
        elif old.settings != new.settings and not job.retry_failed and stream_of(job.rows) is None:
            # Nothing has succeeded yet, so no results of different settings can mix: rows that
            # failed with the old settings, such as a wrong model, are sent again with the new ones.
            # Their lines are kept in another file, because a pipe might not repeat the rows. A
            # stream never delivers a row again, so its failures stay failures.
            set_all_aside(output.failed_path, output.state_path / output.failed_path.name)
        new.begun, new.others = old.begun, manifests.other_inputs(old, new.input)
    for path in (output.path, output.failed_path):
        drop_unfinished(path)
    journal = Journal(output, acknowledge)
    try:
        if isinstance(job.task, Remembering):
            job.task.recall(output.path, output.failed_path)
        # Saved last, so that a refused run does not replace the settings and input of earlier runs.
        manifests.save(output, new)
    except BaseException:
        journal.let_go()
        raise
    return journal, new


def manifest_of(job: Job, output: Output) -> Manifest | None:
    """Returns the manifest of the existing results; None for a new output.

    Also returns None if the manifest is missing beside an empty results file. Otherwise, raises
    ConfigError if the manifest is missing, JournalError if it is damaged; with `force`, returns
    None instead.
    """
    if not output.path.exists() and not output.failed_path.exists():
        return None
    try:
        old = manifests.load(output)
    except JournalError:
        if not job.force:
            raise
        return None
    if old is None and not job.force and _size(output.path):
        if has_sound_line(output.path):
            raise ConfigError(
                f"{output.path} holds results, but {manifests.path_of(output)} is missing",
                hint=f"put {output.state_path} back, or continue these results with --force; if "
                "they are not those of this job, choose another -o",
            )
        raise ConfigError(
            f"{output.path} exists and is not a results file of redline",
            hint="choose another -o, or rename that file with --restart",
        )
    return old


def another_input(job: Job, output: Output) -> str | None:
    """Returns the input of the output's last run, if it is known, exists and is not this run's.

    Returns None otherwise. Blocks. Without `force` or `retry_failed`, raises ConfigError if the
    output has rows but none of this run's input, which no earlier run read: one of the two names is
    probably wrong, and the run would pay for every row.
    """
    if job.restart or not (output.path.exists() or output.failed_path.exists()):
        return None
    try:
        old = manifests.load(output)
    except JournalError:
        # The damage is reported, or ignored with --force, when the output is opened.
        return None
    now = job.manifest().input
    if old is None or not now or old.input not in manifests.other_inputs(old, now):
        return None
    earlier = near(old.input)
    # An input of an earlier run, such as a log that was rotated since, may have only new rows.
    is_meant = job.force or job.retry_failed or now in old.others
    if not is_meant and _has_no_row_of(job, output):
        raise ConfigError(
            f"{output.name} was made from {earlier or 'another input'}, and has no row of "
            f"{near(now)}",
            hint="choose another -o, or add these rows to that output with --force",
        )
    return earlier or None


def _has_no_row_of(job: Job, output: Output) -> bool:
    """Whether the output has rows, but none of them is in the input.

    Reads the input, up to the first row that the output has. False for an input that is not a local
    file or folder, such as a pipe.
    """
    rows = job.rows
    if url_of(rows) is not None or not isinstance(rows, (str, os.PathLike)):
        return False
    path = local_path(rows)
    # A file that is to be followed may still be empty.
    if not (path.is_dir() or (path.is_file() and _size(path))):
        return False
    done = [read_keys(each) for each in (output.path, output.failed_path)]
    if not any(map(len, done)):
        return False
    with opened_source(rows, job.samples) as source:
        for row, key, is_duplicate in keyed_rows(source):
            mark = 0 if is_duplicate else mark_of(row)
            if any(keys.matches(key, mark) for keys in done):
                return False
    return True


def near(path: str) -> str:
    """Makes a path below the current folder relative; other paths, URLs and "" stay as they are."""
    short = os.path.relpath(path) if path and "://" not in path else path
    return path if short.startswith("..") else short


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _put_aside(output: Output) -> None:
    """Renames the files of an earlier run to the first free `labels.old-N.jsonl`.

    If the results file is a link, its target is renamed and the link stays. The failures stay in
    their folder, under the name that goes with the new name of the results. Creates an empty
    results file with the permissions of the old one.
    """
    results, failed = Path(os.path.realpath(output.path)), output.failed_path
    for number in count(1):
        aside = results.with_name(f"{results.stem}.old-{number}{results.suffix}")
        aside_failed = failed.with_name(names_of(aside.name).failed)
        if not aside.exists() and not aside_failed.exists():
            break
    for path, new in ((results, aside), (failed, aside_failed)):
        with telling(path):
            if path.exists():
                path.rename(new)
                # The name is synced before the manifest is written for the new run; otherwise, a
                # power loss could leave the old results under the new settings.
                sync_name(path)
    if aside.exists():
        make_like(results, aside)
