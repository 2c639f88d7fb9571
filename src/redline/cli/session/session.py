"""Carries out one command that runs a job, from its flags to its exit status."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from click import Context

from redline.cli.flags import stated
from redline.cli.session import configuration as configurations
from redline.cli.session.output import Lines, Notes, lost_stdout, say, tell, tell_line
from redline.cli.session.present import plan_text, summary_line, summary_text
from redline.cli.session.resolve import Resolved, resolve_run
from redline.job import Report, plan, run_job
from redline.job.outputs import another_input
from redline.job.settings import Job, values
from redline.job.show import (
    Display,
    JsonProgress,
    PlainProgress,
    TerminalProgress,
    can_redraw,
    is_terminal,
)

ALL_DONE, SOME_FAILED, STOPPED, INTERRUPTED = 0, 1, 2, 130
LOGS = ("text", "json")

# Arguments and flags that redline.toml cannot set, because they apply to one invocation.
_NOT_SETTINGS = ("rows", "dry_run")


class Session:
    """Carries out one command that runs a job: reads its settings, runs it, displays the result.

    The constructor reads redline.toml and `.env` in the current folder. Raises ConfigError if a
    setting is not valid.
    """

    def __init__(self, ctx: Context) -> None:
        self.configuration = configurations.load(Path.cwd())
        self.given = {
            name: value for name, value in stated(ctx).items() if name not in _NOT_SETTINGS
        }
        self._argv = ctx.obj["argv"] if isinstance(ctx.obj, dict) else []
        settings = {**self.configuration.run, **self.given}
        self.is_dry = bool(ctx.params.get("dry_run"))
        with self.configuration.located(self.given):
            log = values.choice(settings.get("log", "text"), "--log", LOGS)
        self._notes = Notes(is_json=log == "json")
        for note in self.configuration.notes:
            self._notes.tell("note", f"note: {note}", text=note)
        self._is_quiet = settings.get("quiet") is True

    def resolved(self, rows: object, flags: values.Flags) -> Resolved:
        """Returns the job that the flags set. rows: as for `open_source`. Raises ConfigError."""
        return resolve_run(rows, flags, self.configuration, is_sending=not self.is_dry)

    def carry_out(self, resolved: Resolved) -> int:
        """Plans or runs the job, prints the result, and returns the exit status.

        Raises ConfigError or JournalError if the run cannot begin, BrokenPipeError if the reader of
        the results has gone, and JournalError if stdout cannot be written for another reason.
        """
        self._name_other_input(resolved.job)
        if self.is_dry:
            made = plan(resolved.job)
            say(plan_text(made, has_output=resolved.job.output is not None))
            return SOME_FAILED if made.bad_rows else ALL_DONE
        notes, embedded = self._notes, resolved.job.embedded
        display = None if self._is_quiet else _display(resolved, is_json=notes.is_json)
        if embedded is not None and embedded.notice and not (self._is_quiet or notes.is_json):
            tell_line(embedded.notice)
        report = _run(resolved, display, notes)
        show = summary_line if notes.is_json else summary_text
        tell(show(report, self._argv, notes))
        return _status(report)

    def _name_other_input(self, job: Job) -> None:
        """Reports, before anything is sent, that the output's last run had another input.

        Raises ConfigError if that looks like a mistake.
        """
        if job.output is not None and (earlier := another_input(job, job.output)) is not None:
            what = f"the last run of {job.output.name} had another input: {earlier}"
            self._notes.tell("note", f"note: {what}", text=what)


def _display(resolved: Resolved, *, is_json: bool) -> Display:
    if is_json:
        return JsonProgress(sys.stderr)
    # A redrawn line needs a terminal that can redraw and that does not also show the results.
    is_shared = resolved.job.output is None and is_terminal(sys.stdout)
    if is_shared or not can_redraw(sys.stderr):
        return PlainProgress(sys.stderr)
    return TerminalProgress(sys.stderr)


def _run(resolved: Resolved, display: Display | None, notes: Notes) -> Report:
    def tell_metrics(url: str) -> None:
        notes.tell("metrics", f"metrics: {url}", url=url)

    listeners = (notes,) if notes.is_json else ()
    start = partial(
        run_job, resolved.job, display=display, on_metrics=tell_metrics, listeners=listeners
    )
    if resolved.job.output is not None:
        return start(on_failure=notes.note)
    lines = Lines(sys.stdout, resolved.lines, notes)
    lost: OSError | ExceptionGroup[OSError]
    try:
        return start(on_result=lines.write)
    except* OSError as group:
        lost = group
    while isinstance(lost, ExceptionGroup):
        lost = lost.exceptions[0]
    raise lost_stdout(lost, "; with -o FILE, the same command continues a run")


def _status(report: Report) -> int:
    if report.interrupted:
        return INTERRUPTED
    if report.stopped is not None:
        return STOPPED
    # Failures that earlier runs left in the file count as well.
    has_old = report.output is not None and report.output.failed_path.exists()
    return SOME_FAILED if report.failed or report.unfinished or has_old else ALL_DONE
