"""`redline verify`: is a results file complete?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from redline.run.settings import Output
from redline.run.verify import verify as check


def verify(
    results: Annotated[Path, Argument(metavar="OUT", help="The results file of a run.")],
    rows: Annotated[
        str | None,
        Option("--input", metavar="FILE", help="Its input; default the file it was made from."),
    ] = None,
    limit: Annotated[
        int | None, Option(metavar="N", help="Compare with the first N rows only.")
    ] = None,
) -> None:
    """Prove that every row of the input stands in OUT, or in its failures, exactly once.

    Example: redline verify labels.jsonl

    Exit status: 0 complete, 1 rows missing, repeated or damaged, 2 nothing to compare.
    """
    verdict = check(Output(path=results), rows, limit)
    sys.stdout.write(f"{verdict}\n")
    raise Exit(0 if verdict.is_whole else 1)
