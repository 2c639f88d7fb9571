"""Opens an output for inspection: its current lines, its manifest and its spending."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from redline.calls.cost import Amount
from redline.errors import ConfigError, JournalError, RedlineError
from redline.job.batch import Ledger
from redline.job.inspect.cost import Cost, Tariff
from redline.job.inspect.current import CurrentLines, current_lines
from redline.job.outputs import check_written, near, read_spent
from redline.journal import Manifest, Output, is_held, is_other, keyed_rows, mark_of
from redline.journal import manifest as manifests
from redline.sources import opened_source
from redline.timeline import NAME, read_timeline


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """An output that is open for reading.

    name: as shown to the user. manifest: None if the results were copied without their state
    folder, or if the manifest is damaged. spent: the amounts that all runs with a budget have spent
    and reserved; None without a budget, or if they cannot be read. problem: why the manifest or the
    amounts are missing; otherwise empty.
    """

    output: Output
    name: str
    lines: CurrentLines
    manifest: Manifest | None
    problem: str
    spent: Amount | None

    @property
    def settings(self) -> dict[str, Any]:
        return {} if self.manifest is None else self.manifest.settings

    @property
    def model(self) -> str | None:
        """The model that the job requests; None if its settings do not set one."""
        params = self.settings.get("params")
        found = params.get("model") if isinstance(params, dict) else None
        found = found or self.settings.get("model")
        return found if isinstance(found, str) else None

    @property
    def judge(self) -> str:
        """The model of the judge in `redline eval`; empty if it is `model`, or without a judge."""
        settings = self.settings.get("judge")
        found = settings.get("model") if isinstance(settings, dict) else None
        return found if isinstance(found, str) and found != self.model else ""

    @property
    def input_name(self) -> str:
        """The input's path, relative if it is below the current folder; empty if unknown."""
        return "" if self.manifest is None else near(self.manifest.input)

    @property
    def is_running(self) -> bool:
        """Whether a run holds the output's lock now."""
        try:
            return bool(is_held(self.output))
        except OSError:
            # There is no lock file: the results may be a copy.
            return False

    @property
    def endpoint(self) -> str:
        """The endpoint of all recorded runs; empty if they had several, or if it is unknown."""
        try:
            runs = read_timeline(self.output.state_path / NAME).runs
        except (ConfigError, FileNotFoundError):
            return ""
        names = {name for run in runs for name in run.facts.endpoints}
        return names.pop() if len(names) == 1 else ""

    def cost(self, tariff: Tariff) -> Cost:
        """Returns a `Cost` to add the answers to; answers of a user's own function are free."""
        is_free = "call" in self.settings
        return Cost(tariff, self.model, judge=self.judge, endpoint=self.endpoint, is_free=is_free)

    def rows_asked(self, keys: Iterable[int]) -> Iterator[tuple[int, msgspec.Raw]]:
        """Yields each of these keys with its row as JSON, in the order of the input.

        Reads the input up to the last of these rows. Yields nothing if the input is not an existing
        file; leaves out rows whose content has changed. Memory: 16 to 32 bytes per input row.
        """
        wanted = set(keys)
        manifest = self.manifest
        if not wanted or manifest is None or not os.path.isfile(manifest.input):
            return
        try:
            with opened_source(manifest.input, self.settings.get("samples") or 1) as source:
                for row, key, is_duplicate in keyed_rows(source):
                    if key not in wanted:
                        continue
                    wanted.remove(key)
                    mark = 0 if is_duplicate else mark_of(row)
                    if row.data is not None and not is_other(mark, self.lines.mark_of(key)):
                        yield key, msgspec.Raw(msgspec.json.encode(row.data))
                    if not wanted:
                        return
        except (RedlineError, OSError, ValueError, RecursionError):
            # The file has changed or cannot be read; the lines are shown without their rows.
            return


@contextmanager
def opened(output: Output) -> Iterator[Opened]:
    """Opens an output until the `with` block ends. Blocks while it reads both files once.

    Raises ConfigError if the output is not the results file of a run, and JournalError if it cannot
    be read.
    """
    check_written(output)
    manifest, problem = _manifest(output)
    with current_lines(output) as lines:
        try:
            spent = _spent(output)
        except JournalError as error:
            spent, problem = None, problem or error.what
        yield Opened(
            output=output,
            name=output.name,
            lines=lines,
            manifest=manifest,
            problem=problem,
            spent=spent,
        )


def _spent(output: Output) -> Amount | None:
    """Returns the amounts that all runs with a budget have spent and reserved.

    They include live calls and batches. Returns None without a budget. Raises JournalError if a
    file is damaged.
    """
    live = read_spent(output)
    if live is None:
        return None
    batches = Ledger(output)
    return live.plus(batches.spent).plus(batches.reserved)


def _manifest(output: Output) -> tuple[Manifest | None, str]:
    """Returns the manifest of the output; if there is none, None and the reason."""
    try:
        manifest = manifests.load(output)
    except JournalError as error:
        return None, error.what
    return manifest, "" if manifest is not None else f"there is no {manifests.path_of(output)}"
