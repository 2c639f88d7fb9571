"""`redline verify`: checks whether a results file is complete."""

from __future__ import annotations

from pathlib import Path

from click import Context

from redline.cli.flags import Word, flag, read_flags, whole
from redline.cli.session import say, tell
from redline.errors import ConfigError, nearest
from redline.job.outputs import Verification
from redline.job.outputs import verify as check
from redline.journal import Output, owner_of_failures
from redline.store import ObjectUrl, local_path, url_of

PARAMS = (
    Word("results", "OUT", "The results file of a run, or its URL."),
    flag("input", "FILE", "The input of the run. Default: the file that the run read."),
    whole("limit", "Compare with only the first N rows of the input."),
)

_NO_MATCH = (
    "\nhint: a row without a custom_id matches only if its JSON text is the same; for a row from a "
    "Python iterable, that is the text of msgspec.json.encode(row)\n"
)


def verify(ctx: Context, results: str) -> int:
    """Check that every row of the input has exactly one line, in OUT or in its failures file.

    The checksum of every line is checked as well.

        redline verify labels.jsonl

    Exit status: 0 complete; 1 a row is missing or repeated, or a line is damaged or answers the
    former content of a changed row; 2 no such file, no input to compare with, or bad usage; 3 a
    defect in redline.
    """
    given = read_flags(ctx, PARAMS)
    rows, first_rows = given.get("input"), given.get("limit")
    url = url_of(results)
    if url is None:
        verification = check(Output.at(results_path(results)), rows, first_rows)
    else:
        verification = _verify_object(url, rows, first_rows)
    say(f"{verification}\n")
    if verification.strange and verification.missing == verification.rows:
        tell(_NO_MATCH)
    return 0 if verification.is_whole else 1


def _verify_object(url: ObjectUrl, rows: str | None, limit: int | None) -> Verification:
    # Imported here: a local file does not need object stores.
    from redline.job.outputs import fetched

    with fetched(url) as copy:
        if not copy.path.exists() and not copy.failed_path.exists():
            raise ConfigError(
                f"{url.name} does not exist",
                hint="pass the URL that the run was given with -o; a run uploads at its end",
            )
        return check(copy, rows, limit)


def results_path(name: str) -> Path:
    """Returns the path of an existing results file.

    Raises ConfigError if there is no such file, with the nearest name in its folder, or if the path
    belongs to an output's state or failures.
    """
    path = local_path(name)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        if (owner := _owner_of_state(path)) is not None:
            raise ConfigError(f"{path} holds the state of {owner}", hint=f"pass {owner}")
        raise ConfigError(
            f"{path} {what}", hint=_near(path) or "pass the file that the run was given with -o"
        )
    failed = owner_of_failures(path)
    if failed is not None and failed.path.exists():
        raise ConfigError(
            f"{path} holds the failures of {failed.path}",
            hint=f"pass {failed.path}: its failures are read along with it",
        )
    return path


def _owner_of_state(path: Path) -> Path | None:
    """Returns the results file whose state is in this folder; None if there is none."""
    for ending in (".redline", "-redline"):
        stem = path.name.removesuffix(ending)
        if path.is_dir() and stem != path.name:
            owners = (path.with_name(f"{stem}.jsonl"), path.with_name(stem))
            return next((each for each in owners if each.is_file()), None)
    return None


def _near(path: Path) -> str:
    names = (found.name for found in path.parent.glob("*.jsonl"))
    return "" if path.is_dir() else nearest(path.name, names)
