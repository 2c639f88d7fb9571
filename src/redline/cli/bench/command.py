"""Carries out one `redline bench`, from its flags to its exit status."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from redline._version import __version__
from redline.apis import loose_json
from redline.calls.cost import dollars_text
from redline.cli.bench.asked import Asked, asked_of, recorded_calls
from redline.cli.bench.progress import Progress
from redline.cli.bench.target import Target, answering, target_of
from redline.cli.session import load, new_file, say_json, say_lines, tell_line
from redline.errors import ConfigError
from redline.job.settings import Flags, flag_of, values
from redline.limits import parse_rate
from redline.limits.rule import AUTO, MAX_CONCURRENCY
from redline.measure import (
    SCHEDULE_CONCURRENCY,
    USUAL_CONCURRENCY,
    Figures,
    Interrupts,
    Knee,
    Measuring,
    Plan,
    Started,
    checked_plan,
    figures_lines,
    in_own_loop,
    knee_lines,
    knee_of,
    level_lines,
    load_words,
    measured,
    nothing_measured,
    parse_objectives,
    recorded,
    schedule_of,
    swept,
)
from redline.process import counted, duration, write_file

DONE, SOME_FAILED, STOPPED, INTERRUPTED = 0, 1, 2, 130
_USUAL_S, _LEVEL_S = 60.0, 15.0
_MOST_LEVEL = 256
_MARK = "redline_bench"
_BEGINNING = f'{{\n  "{_MARK}"'
# At most one of these flags sets how requests arrive; without any, each user sends one request
# after another.
_KINDS = ("constant", "poisson", "replay", "find_concurrency")


class _Bench(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a benchmark that the flags describe.

    load: the description of its load for the user. is_sweep: whether it tries several levels of
    concurrency. most_rate: the given rate in requests per second, if any.
    """

    target: Target
    plan: Plan
    asked: Asked
    load: str
    is_sweep: bool = False
    most_rate: float | None = None


def bench_command(folder: Path, targets: list[str], options: Flags, flags: Flags) -> int:
    """Runs the benchmark, prints its figures, and returns the exit status.

    options: the values of flags that only `redline bench` has. flags: those that it shares with
    `redline run`. Raises RedlineError if there are no figures.
    """
    objectives = parse_objectives(options["slo"]) if "slo" in options else ()
    place = None
    if "output" in options:
        hint = "choose a file, such as -o bench.json"
        place = new_file(options["output"], "figures file", _BEGINNING, hint, may_be_empty=True)
    bench = _bench(folder, targets, options, flags)
    is_shown = not options.get("quiet")
    if is_shown:
        for line in _announcement(bench):
            tell_line(line)
    progress = Progress(is_shown=is_shown)
    interrupts = Interrupts()

    def on_start(started: Started) -> None:
        interrupts.watch(started)
        progress.watch(started)

    async def work() -> tuple[list[Figures], Knee | None]:
        async with answering(
            bench.target,
            bench.plan.concurrency,
            batch_size=options.get("batch_size"),
            is_streamed="no_stream" not in options,
        ) as caller:
            what = Measuring(
                caller=caller,
                target=bench.target.label,
                words=bench.load,
                objectives=objectives,
                cost_of=bench.target.cost,
                on_start=on_start,
            )
            try:
                return await _measure(bench, what, progress, is_json="json" in options)
            finally:
                progress.end()

    found, knee = in_own_loop(work, interrupts)
    page = _page(bench, found, knee)
    try:
        if "json" in options:
            say_json(page)
        elif not bench.is_sweep:
            say_lines(figures_lines(found[-1]))
        elif knee is not None:
            say_lines(knee_lines(knee, found))
    finally:
        # Save the figures even if the reader of stdout has closed it, as `head` does.
        if place is not None:
            write_file(place, page)
    return _status(found)


def _status(found: Sequence[Figures]) -> int:
    if found[-1].is_interrupted:
        return INTERRUPTED
    return SOME_FAILED if any(one.failed for one in found) else DONE


async def _measure(
    bench: _Bench, what: Measuring, progress: Progress, *, is_json: bool
) -> tuple[list[Figures], Knee | None]:
    """Measures the load, or each of its levels; prints the figures of each level when it ends.

    Raises RedlineError if nothing was measured, unless the user interrupted the benchmark.
    """
    if not bench.is_sweep:
        figures = await measured(what, bench.plan, bench.asked.requests)
        _check(figures)
        return [figures], None
    found = list[Figures]()
    async for figures in swept(what, bench.plan, bench.asked.requests):
        found.append(figures)
        progress.end()
        if not is_json:
            lines = level_lines(found)
            say_lines(lines if len(found) == 1 else lines[-1:])
    knee = knee_of(found)
    if knee is None:
        _check(found[-1])
    return found, knee


def _check(figures: Figures) -> None:
    """Raises RedlineError if the figures are meaningless, unless the user ended the load."""
    reason = nothing_measured(figures)
    if reason is not None and not figures.is_interrupted:
        raise reason


def _bench(folder: Path, targets: list[str], options: Flags, flags: Flags) -> _Bench:
    """Returns the benchmark that the flags describe. Raises ConfigError if one is invalid."""
    kinds = [name for name in _KINDS if name in options]
    if len(kinds) > 1:
        names = " and ".join(map(flag_of, kinds))
        raise ConfigError(f"{names} cannot be combined", hint="leave all but one out")
    kind, seed = kinds[0] if kinds else "", options.get("seed", 0)
    per_s = options[kind] if kind in ("constant", "poisson") else None
    calls = recorded_calls(options[kind]) if kind == "replay" else None
    configuration = load(folder)
    for note in configuration.notes:
        tell_line(f"note: {note}")
    chosen = [*targets, *(flags.get("endpoint") or [])]
    rows: object = options.get("rows", [{"prompt": "synthetic"}])
    target = target_of(chosen, rows, flags, configuration)
    asked = asked_of(target, options, flags, seed, calls)
    schedule: Iterable[float] | None = None
    usual_s = _USUAL_S
    if per_s is not None:
        schedule = schedule_of(per_s, kind, seed)
    elif calls is not None:
        schedule = recorded([call.arrived_s for call in calls])
        # The last call is due within this time.
        usual_s = schedule[-1] + 1.0
    elif kind:
        usual_s = _LEVEL_S
    plan = checked_plan(
        Plan(
            concurrency=options.get("concurrency") or _usual_concurrency(target, kind),
            duration_s=options.get("duration_s", usual_s),
            warm_up_s=options.get("warm_up_s", 0.0),
            most=options.get("limit"),
            schedule=schedule,
        )
    )
    is_sweep = kind == "find_concurrency"
    words = load_words(plan, per_s, kind)
    if is_sweep:
        words = f"closed loops of 1, 2, 4, ... at most {plan.concurrency:,}"
    return _Bench(
        target=target, plan=plan, asked=asked, load=words, is_sweep=is_sweep, most_rate=per_s
    )


def _usual_concurrency(target: Target, kind: str) -> int:
    if kind:
        return _MOST_LEVEL if kind == "find_concurrency" else SCHEDULE_CONCURRENCY
    limits = [one.limits.concurrency for one in target.job.endpoints]
    known = [limit for limit in limits if isinstance(limit, int)]
    return sum(known) if known and len(known) == len(limits) else USUAL_CONCURRENCY


def users(text: str, flag: str) -> int:
    """Returns the number of users, 1 to 100,000. Raises ConfigError for any other text."""
    if text == AUTO:
        raise ConfigError("-c takes a number of users, not auto", hint="--find-concurrency")
    return values.whole(text, flag, 1, MAX_CONCURRENCY)


def rate_per_s(text: str, flag: str) -> float:
    """Reads `20`, `2.5` or `90/60s` as requests per second.

    Raises ConfigError for other text, and for a number that is not above 0 and at most 1,000,000.
    """
    text = text.strip()
    try:
        per_s = float(text)
    except ValueError:
        rate = parse_rate(text, flag)
        return rate.count / rate.window_s
    if not 0 < per_s <= 1e6:
        raise ConfigError(
            f"{flag} must be above 0 and at most 1,000,000 requests a second, not {text}",
            hint="for example 20 or 90/60s; leave it out for a closed loop of -c N users",
        )
    return per_s


def _announcement(bench: _Bench) -> list[str]:
    """Returns the lines to print before anything is sent: the requests and their bounds."""
    plan = bench.plan
    each = " each" if bench.is_sweep else ""
    warm_up = f", the first {duration(plan.warm_up_s)} as a warm-up" if plan.warm_up_s else ""
    load = f"{bench.load}, for {duration(plan.duration_s)}{each}{warm_up}"
    most, about = plan.most, "at most"
    if bench.most_rate is not None:
        due = math.ceil(bench.most_rate * plan.duration_s)
        if most is None or due < most:
            most, about = due, "about"
    elif isinstance(plan.schedule, list):
        most = min(len(plan.schedule), most or len(plan.schedule))
    bound = "as many requests as are answered in that time; --limit N bounds them"
    if most is not None:
        bound = f"{about} {counted(most, 'request')}"
    cost = _cost_words(bench, most)
    if bench.target.job.embedded is not None:
        cost += f"; {bench.target.label} runs in this process, so the times include its work"
    return [f"{bench.target.label}: {load}", f"  {bench.asked.words}", f"  {bound}{cost}"]


def _cost_words(bench: _Bench, most: int | None) -> str:
    price, asked = bench.target.price, bench.asked
    budget = "" if bench.target.job.allowance is None else ", within the budget"
    if price is None or asked.input_tokens is None or asked.output_tokens is None:
        return budget
    one = price.most(asked.input_tokens, asked.output_tokens, may_write=False)
    of = "for 1,000 requests" if most is None else "at most"
    return f"; about {dollars_text((most or 1000) * one)} {of}{budget}"


def _page(bench: _Bench, found: Sequence[Figures], knee: Knee | None) -> bytes:
    """Returns the JSON to save: the figures and the settings of the load."""
    plan = bench.plan
    results: dict[str, Any] = {"figures": found[-1].as_dict()}
    if bench.is_sweep:
        levels = [one.as_dict() for one in found]
        results = {"levels": levels, "knee": msgspec.to_builtins(knee)}
    fields = {
        _MARK: 1,
        "version": __version__,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": bench.target.label,
        "load": bench.load,
        "asked": bench.asked.words,
        "concurrency": plan.concurrency,
        "duration_s": plan.duration_s,
        "warm_up_s": plan.warm_up_s,
        **results,
    }
    return msgspec.json.format(loose_json.encoded(fields), indent=2) + b"\n"
