"""`redline route replay`: scores every strategy on a recorded run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from click import Context

from redline.cli.flags import Word, read_flags, switch, whole
from redline.cli.session import aligned, say_json, say_lines
from redline.process import counted
from redline.route.replay import MOST_CALLS, Replay, Scored, Seeded, recommended
from redline.route.replay import replay as replayed
from redline.store import local_path

PARAMS = (
    Word("trace", "TRACE", "A file that a run with --trace and several endpoints wrote."),
    whole("calls", f"Replay the latest N calls. Default: {MOST_CALLS:,}."),
    switch("json", "Print one JSON object."),
)


def replay(ctx: Context, trace: str) -> None:
    """Score every strategy on the calls of TRACE, in virtual time.

    The pool and its strategies run the same code as in a run. Each server is simulated from its
    recorded calls: the time of a call is modelled as a function of its tokens and of the calls in
    flight. The output shows the fitted functions.

        redline route replay calls.trace

    Exit status: 0 done; 2 the trace cannot be used, or bad usage; 3 a defect in redline.
    """
    given = read_flags(ctx, PARAMS)
    found = replayed(local_path(trace), most=given.get("calls", MOST_CALLS))
    if "json" in given:
        say_json(_json(found))
    else:
        say_lines(_lines(found))


def _lines(found: Replay) -> list[str]:
    return [*_head(found), "", *_services(found), "", *_table(found), "", *_end(found)]


def _head(found: Replay) -> Iterator[str]:
    of = "" if found.calls == found.total else f" of {found.total:,} in the trace"
    mode = "each arrives at its recorded time"
    if found.workers:
        mode = (
            f"{counted(found.workers, 'worker')}, each of which sends a call when its last one ends"
        )
    yield f"{found.trace}: {counted(found.calls, 'answered call')}{of}; {mode}"
    for note in found.notes:
        yield f"note: {note}"


def _services(found: Replay) -> Iterator[str]:
    """Yields lines that describe the service model: how long a call takes at each server."""
    yield "time of a call at each server, fitted to the trace:"
    width = max(map(len, found.services))
    for name, one in found.services.items():
        fit = f"typically {one.off:.0%} off" if one.is_own else "guessed"
        fails = f", {one.failures:.1%} of attempts fail" if one.failures else ""
        yield f"  {name:{width}}  {one}; {fit}, {counted(one.calls, 'call')}{fails}"
    if any(one.form == "slots" for one in found.services.values()):
        yield "  n at once: further calls wait in the server, in order of arrival"
    if any(one.form != "slots" for one in found.services.values()):
        yield "  up to n at once: the trace never has more; further calls are assumed to wait"


def _table(found: Replay) -> list[str]:
    """Returns a line for the recorded run, then one for each strategy, the best first."""
    names = list(found.services)
    rows = [["", "mean s", "p50 s", "p99 s", "makespan s", "cost", *names]]
    rows.append(_row("as recorded", Scored(strategy="", runs=[found.recorded]), names))
    scored = sorted(found.scored, key=lambda one: one.mean(found.figure))
    rows += [_row(one.strategy, one, names) for one in scored]
    if found.recorded.cost_usd is None:
        rows = [[*row[:5], *row[6:]] for row in rows]
    return aligned(rows, is_figures=True)


def _row(title: str, one: Scored, names: Sequence[str]) -> list[str]:
    figures = [f"{one.mean(name):.3g}" for name in ("mean_s", "p50_s", "p99_s")]
    cost = "" if one.cost_usd is None else f"${one.cost_usd:.4g}"
    shares = [f"{one.share(name):.0%}" for name in names]
    return [title, *figures, f"{one.mean('makespan_s'):.1f}", cost, *shares]


def _end(found: Replay) -> Iterator[str]:
    """Yields the model's error for the recorded run, and the recommendation."""
    side = "above" if found.off > 0 else "below"
    yield (
        f"replayed as recorded ({found.balance}), the calls have a mean latency "
        f"{abs(found.off):.1%} {side} the recorded one"
    )
    best, what = found.best, "makespan" if found.workers else "mean latency"
    if recommended(found) is not None:
        gain = f"{best.gain:.1%} ± {best.error:.1%}"
        yield f"recommended: {best.better}, whose {what} is {gain} below {best.worse}'s"
    elif not found.reliable:
        yield "no recommendation: the calls are too few, or the model does not fit the servers"
    else:
        yield f"no strategy has a {what} below {best.worse}'s by more than the noise"


def _json(found: Replay) -> bytes:
    """Returns all results, and their means over the seeds, as JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(found)
    names = [name for name in Seeded.__struct_fields__ if name.endswith("_s")]
    for one, scored in zip(fields["scored"], found.scored, strict=True):
        one |= {name: scored.mean(name) for name in names}
        one["cost_usd"] = scored.cost_usd
        one["shares"] = {name: scored.share(name) for name in found.services}
    for name, service in found.services.items():
        del fields["services"][name]["spread"], fields["services"][name]["failed_s"]
        fields["services"][name]["words"] = str(service)
    fields["recommended"] = recommended(found)
    return msgspec.json.encode(fields)
