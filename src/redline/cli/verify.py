"""`redline verify`: is a results file complete?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from click import Context
from click.exceptions import Exit

from redline.cli import values
from redline.cli.command import stated
from redline.cli.flags import Argument, Option
from redline.cli.output import say
from redline.errors import ConfigError, nearest
from redline.run.object_url import ObjectUrl, local_path, url_of
from redline.run.output import Output
from redline.run.verify import Verdict
from redline.run.verify import verify as check


def verify(
    ctx: Context,
    results: Annotated[str, Argument(metavar="OUT", help="The results file of a run, or its URL.")],
    rows: Annotated[
        str | None,
        Option("--input", metavar="FILE", help="Its input. Default: the file it was made from."),
    ] = None,
    limit: Annotated[
        str | None, Option(metavar="N", help="Compare with the first N rows only.")
    ] = None,
) -> None:
    """Prove that every row of the input stands in OUT, or in its failures, exactly once.

    Each line's checksum is tested as well.

        redline verify labels.jsonl

    Exit status: 0 complete, 1 rows missing, repeated or damaged, 2 nothing to compare.
    """
    first_rows = values.whole(stated(ctx), "limit", 1)
    url = url_of(results)
    if url is None:
        verdict = check(Output.at(results_path(results)), rows, first_rows)
    else:
        verdict = _verify_object(url, rows, first_rows)
    say(f"{verdict}\n")
    raise Exit(0 if verdict.is_whole else 1)


def _verify_object(url: ObjectUrl, rows: str | None, limit: int | None) -> Verdict:
    # Imported here: proving a local file does not pay for what stores need.
    from redline.run.mirror import fetched

    with fetched(url) as copy:
        if not copy.path.exists() and not copy.failed_path.exists():
            raise ConfigError(f"{url.name} does not exist", hint="name the URL after -o of the run")
        return check(copy, rows, limit)


def results_path(name: str) -> Path:
    """The path of a results file that is there. Raises ConfigError with the nearest name."""
    path = local_path(name)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{path} {what}", hint=_near(path) or "name the file after -o of the run")
    return path


def _near(path: Path) -> str:
    names = (found.name for found in path.parent.glob("*.jsonl"))
    return "" if path.is_dir() else nearest(path.name, names)
