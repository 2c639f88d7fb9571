"""`redline status`: shows the state of a job that is running or has ended."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec
from click import Context

from redline.calls.cost import DOLLAR, dollars_text
from redline.cli.flags import Word, stated, switch
from redline.cli.results.recorded import read_recorded
from redline.cli.session import say, say_json, screen_width
from redline.job.show import InputCounts, is_terminal
from redline.journal import Output
from redline.observe import SILENT_S, Score, Status, advice, status_of
from redline.process import counted, duration, three_digits

PARAMS = (
    Word("results", "OUT", "The results file of a run or, in the folder of the run, its URL."),
    switch(
        "watch",
        "Refresh until the job ends: every second on a terminal or with --json, otherwise every "
        "10 s.",
    ),
    switch("json", "Print the state as JSON, one line for each refresh."),
)
_EVERY_S, _PLAIN_EVERY_S = 1.0, 10.0
_WIDEST = 120


def status(ctx: Context, results: str) -> int:
    """Show the state of a job: its progress, its speed, and what holds it back.

    Use it from another terminal while the job runs, or afterwards; it also shows whether the job's
    process has died.

        redline status labels.jsonl
        redline status labels.jsonl --watch

    Exit status: 0 the job is running or finished; 1 it died or ended early; 2 nothing was recorded,
    or bad usage; 3 a defect in redline.
    """
    given = stated(ctx)
    output = Output.at(results)
    found, is_held = _read(output)
    is_json, is_watching = "json" in given, "watch" in given
    is_drawn = is_watching and not is_json and is_terminal(sys.stdout)
    every_s = _EVERY_S if is_drawn or is_json else _PLAIN_EVERY_S
    try:
        while True:
            if is_json:
                say_json(msgspec.json.encode(found))
            else:
                say(text_of(output.name, found, is_held=is_held) + "\n", clears=is_drawn)
            if not is_watching or not is_held:
                break
            time.sleep(every_s)
            found, is_held = _read(output)
            if not (is_json or is_drawn):
                say("\n")
    except KeyboardInterrupt:
        # Ctrl-C is the usual way to stop watching.
        return 0
    return 0 if is_held or found.state == "finished" else 1


def _read(output: Output) -> tuple[Status, bool]:
    """Reads the current status of the job, and whether a process holds the output.

    Raises ConfigError if nothing was recorded.
    """
    timeline, is_held = read_recorded(output)
    return status_of(timeline, time.time(), is_running=is_held), is_held


def text_of(name: str, found: Status, *, is_held: bool) -> str:
    """Formats the status in aligned lines, as wide as the terminal but 40 to 120 columns."""
    width = min(screen_width(), _WIDEST)
    lines = textwrap.wrap(f"{name}: {_state(found, is_held=is_held)}", width)
    for label, text in _facts(found):
        lines += textwrap.wrap(
            text, width, initial_indent=label.ljust(9), subsequent_indent=" " * 9
        )
    return "\n".join(lines)


def _state(found: Status, *, is_held: bool) -> str:
    seen, ago_s = datetime.fromtimestamp(found.seen), time.time() - found.seen
    when = f"{seen:%H:%M:%S}" if ago_s < 12 * 3600 else f"{seen:%Y-%m-%d %H:%M}"
    if found.state == "running":
        text = f"running for {duration(found.elapsed_s)}, process {found.pid}"
        if ago_s > SILENT_S:
            text += f"; it has recorded nothing for {duration(ago_s)}: it is suspended or hangs"
            text += ", or it was killed and another run is starting"
        return text
    if found.state == "dead":
        what = f"process {found.pid} died at {when}, {duration(ago_s)} ago"
        return f"{what}; results on disk are safe, and the same command resumes the run"
    after = f"at {when}, after {duration(found.elapsed_s)}"
    why = f": {found.stopped.rstrip('.')}" if found.stopped else ""
    if is_held:
        held = "a process still holds the output: it is ending this run or beginning another"
        return f"{found.state} {after}{why}; {held}"
    again = "" if found.state == "finished" else "; the same command resumes the run"
    return f"{found.state} {after}{why}{again}"


def _facts(found: Status) -> Iterator[tuple[str, str]]:
    """Yields the label and the text of each fact; an empty label repeats the label above."""
    totals = found.totals
    counts = msgspec.convert(totals, InputCounts, from_attributes=True)
    rows = counts.text(here=totals.done_here if found.runs > 1 else None)
    if found.state == "dead":
        rows += "; rows saved in the last second may not be counted"
    yield "rows", rows
    yield "speed", ", ".join(_speed(found))
    for number, limit in enumerate(found.limits):
        mark = "  <- binds" if limit.binds and found.state == "running" else ""
        _, space, of = limit.name.partition(" ")
        yield "" if number else "limits", f"{limit.used:,}/{limit.count:,}{space}{of}{mark}"
    if found.latency_p50_s is not None and found.latency_p95_s is not None:
        median, late = _seconds(found.latency_p50_s), _seconds(found.latency_p95_s)
        yield "latency", f"p50 {median}, p95 {late}"
    if any(found.phases.values()):
        yield "time", _time(found.phases)
    if totals.input_tokens or totals.output_tokens:
        tokens = f"{totals.input_tokens:,} in, {totals.output_tokens:,} out"
        yield "tokens", f"{tokens} by this run" if found.runs > 1 else tokens
    if totals.spent_usd is not None:
        spent = dollars_text(round(totals.spent_usd * DOLLAR))
        is_of_run = found.runs > 1 and found.has_budget is False
        yield "spent", f"{spent} by this run" if is_of_run else spent
    if found.errors:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.errors.items())
        last = f"; the last: {found.error}" if found.error else ""
        yield "errors", f"{kinds}{last}"
    binding = found.binding
    if binding is not None and found.state in ("running", "dead"):
        text = f"{binding.what}, for {duration(binding.for_s)}: {binding.evidence}"
        yield "binds" if found.state == "running" else "bound", text
    if found.bound:
        yield "so far" if found.state == "running" else "in all", found.sentence
    for number, (change, gain) in enumerate(advice(found.helps)):
        yield "" if number else "helps", f"{change}: {gain}"
    for number, score in enumerate(found.scores):
        yield "" if number else "score", _score(score)


def _score(score: Score) -> str:
    prediction, measured = score.prediction, three_digits(score.measured_per_s)
    if prediction.unknown:
        return f"{prediction.change}: not predicted, measured {measured} answers/s"
    interval = f"{three_digits(prediction.low_per_s)} to {three_digits(prediction.high_per_s)}"
    verdict = "right" if score.holds else "wrong"
    return f"{prediction.change}: {interval} answers/s predicted, {measured} measured: {verdict}"


def _speed(found: Status) -> Iterator[str]:
    yield f"{three_digits(found.rows_per_s)} rows/s"
    yield f"{three_digits(found.tokens_per_s)} tokens/s"
    if found.state == "running":
        # No slots are counted if concurrency is unbounded, or while all endpoints are down.
        slots, in_flight = round(found.slots), round(found.in_flight)
        of = f"{in_flight:,} of " if slots else ""
        yield f"{of}{counted(slots or in_flight, 'call')} in flight"
        if found.retrying >= 1:
            yield f"{found.retrying:,.0f} retrying"
        if found.eta_s is not None:
            yield f"ETA {duration(found.eta_s)}"


def _time(phases: Mapping[str, float]) -> str:
    """Returns the phases that take at least 1 % of the rows' time, with their shares."""
    in_hand = {name: seconds for name, seconds in phases.items() if name != "durable"}
    all_s = sum(in_hand.values()) or 1.0
    return ", ".join(
        f"{name.replace('_', ' ')} {100 * seconds / all_s:.0f} %"
        for name, seconds in in_hand.items()
        if seconds / all_s >= 0.01
    )


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 0.995 else f"{value:.1f} s"
