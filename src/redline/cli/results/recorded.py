"""Reads the timeline of an output's job, or explains why there is none."""

from __future__ import annotations

import os

from redline.cli.results.verify import results_path
from redline.errors import ConfigError
from redline.journal import Output, is_held
from redline.store import url_of
from redline.timeline import NAME, Timeline, read_timeline

_HINT = "pass what the run was given with -o, in the folder where it ran"


def read_recorded(output: Output) -> tuple[Timeline, bool]:
    """Returns the output's timeline, and whether a process holds the output.

    The timeline has at least one run. Raises ConfigError if none was recorded.
    """
    if output.path.is_dir():
        # Raises a ConfigError; a path such as `.` has no files beside it.
        results_path(output.name)
    path = output.state_path / NAME
    try:
        timeline = read_timeline(path)
    except FileNotFoundError:
        raise _unknown(output) from None
    if not timeline.runs:
        if timeline.damaged or timeline.is_cut:
            hint = "move the file aside: the next run begins a new timeline"
            raise ConfigError(f"{path} is not a timeline", hint=hint)
        raise ConfigError(f"{path} holds no run", hint="a run is recorded as soon as it begins")
    return timeline, _is_running(output, timeline)


def _is_running(output: Output, timeline: Timeline) -> bool:
    """Returns whether a process holds the output.

    On a file system without locks: whether the last run has recorded no end and its process is
    running on this machine.
    """
    try:
        held = is_held(output)
    except FileNotFoundError:
        return False
    if held is not None:
        return held
    run = timeline.runs[-1]
    if run.end is not None:
        return False
    try:
        os.kill(run.facts.pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _unknown(output: Output) -> ConfigError:
    """Returns the error that explains why there is no timeline."""
    if not output.state_path.is_dir():
        if url_of(output.name) is not None:
            return ConfigError(f"{output.name} was not written from this folder", hint=_HINT)
        # Raises a ConfigError with the nearest name if there is no such file.
        results_path(str(output.path))
        return ConfigError(f"{output.name} is not the output of a run", hint=_HINT)
    return ConfigError(
        f"{output.name} has no timeline: it was removed, or an older redline ran the job",
        hint="redline verify reports whether it is complete; the next run with this output records "
        "a timeline",
    )
