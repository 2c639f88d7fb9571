"""`redline repair`: moves damaged and repeated lines out of a results file."""

from __future__ import annotations

import shlex

from click import Context

from redline.cli.flags import Word
from redline.cli.results.verify import results_path
from redline.cli.session import say
from redline.errors import ConfigError
from redline.job.outputs import repair as take_out
from redline.journal import Output
from redline.process import counted
from redline.store import url_of

PARAMS = (Word("results", "OUT", "The results file of a run."),)


def repair(ctx: Context, results: str) -> None:
    """Clean OUT and its failures file if a run refuses them because of damaged lines.

    Lines that are damaged or cut short, lines that redline did not write, and, for a row with
    several lines of the same content in OUT, all but the first are moved to a file beside the
    original, such as labels.damaged-1.jsonl; all other lines stay, byte for byte. Then run the
    original command again: rows that no longer have a line are sent again, and may be billed again.

        redline repair labels.jsonl

    Exit status: 0 repaired, or nothing to repair; 2 no results file, a run is writing to it, or bad
    usage; 3 a defect in redline.
    """
    url = url_of(results)
    if url is not None:
        copy = url.copy_path()
        raise ConfigError(
            f"{url.name} is in an object store, but redline repair works only on local files",
            hint=(
                f"run the original command again: it copies the object to {copy} and reports what "
                f"is wrong; then run redline repair {shlex.quote(str(copy))}, and the original "
                "command once more"
            ),
        )
    repairs = take_out(Output.at(results_path(results)))
    changed = [done for done in repairs if done.aside is not None]
    for done in changed:
        counts = (("damaged line", done.damaged), ("repeated line", done.repeated))
        out = " and ".join(counted(number, kind) for kind, number in counts if number)
        say(f"repair: {out} of {done.path} moved to {done.aside}, {done.kept:,} kept\n")
    if changed:
        say("next: run the original command again; it sends the rows that no longer have a line\n")
    else:
        kept = sum(done.kept for done in repairs)
        say(f"repair: nothing to repair, {counted(kept, 'sound line')}\n")
