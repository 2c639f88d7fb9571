"""Opens the outputs that commands inspect, and reads the prices of their answers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from redline.cli.flags import whole
from redline.cli.results.verify import results_path
from redline.cli.session import load
from redline.errors import ConfigError
from redline.job.inspect import Opened, Tariff, opened
from redline.journal import Output
from redline.process import counted
from redline.store import url_of

# The flag `--seed` of commands that draw a sample.
SEED = whole(
    "seed",
    "Seed for the sample: it always draws the same rows of the same files. Default: 0.",
    least=0,
    most=2**63 - 1,
)


def priced() -> tuple[Tariff, list[str]]:
    """Returns the prices set in the current folder's redline.toml, and notes.

    Prices are optional, so an unreadable file is not an error: a note then gives the reason.
    """
    try:
        settings = load(Path.cwd())
    except ConfigError as error:
        return Tariff(), [f"the prices in redline.toml are not used: {error}"]
    models = {name: table.get("models", {}) for name, table in settings.endpoints.items()}
    return Tariff(own=settings.prices, models=models, tariffs=settings.tariffs), []


@contextmanager
def open_results(name: str) -> Iterator[Opened]:
    """Yields the output at a path or URL, open until the `with` block ends.

    Raises ConfigError, with a hint, if there is none, and JournalError if it cannot be read.
    """
    url = url_of(name)
    if url is None:
        with opened(Output.at(results_path(name))) as found:
            yield found
        return
    # Imported here: a local file does not need object stores.
    from redline.job.outputs import fetched

    with fetched(url) as copy:
        if not copy.path.exists():
            raise ConfigError(
                f"{url.name} does not exist",
                hint="pass the URL that the run was given with -o; a run uploads at its end",
            )
        with opened(copy) as found:
            problem = found.problem.replace(f"{copy.path.parent}/", url.beside("").name)
            yield msgspec.structs.replace(found, name=url.name, problem=problem)


def notes_of(found: Opened, name: str) -> Iterator[str]:
    """Yields notes on lines that are not counted, with remedies, and on unknown settings."""
    lines, name = found.lines, shlex.quote(name)
    if lines.damaged:
        yield (
            f"{counted(lines.damaged, 'line is', 'lines are')} damaged and not counted: "
            f"redline verify {name} counts missing rows, redline repair {name} moves the lines out"
        )
    if lines.is_torn:
        yield (
            "the last line is incomplete and is not counted: a run is writing it, or a crash cut "
            "it off and the next run repairs it"
        )
    if lines.results.repeated:
        repeat = counted(lines.results.repeated, "line repeats", "lines repeat")
        yield f"{repeat} a row and {_are(lines.results.repeated)}: redline repair {name}"
    if outdated := lines.results.outdated + lines.failures.outdated:
        older = counted(outdated, "older line")
        yield f"{older} of rows that were sent again {_are(outdated)}"
    if lines.failures.contested:
        rows = counted(lines.failures.contested, "row has", "rows have")
        yield (
            f"{rows} an answer and a failure with different contents, and the answer is counted: "
            "the next run keeps the one that matches the input"
        )
    if found.problem:
        yield f"some facts are unknown: {found.problem}"


def _are(number: int) -> str:
    return "is not counted" if number == 1 else "are not counted"
