"""Formats figures as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redline.calls.cost import DOLLAR, dollars_text
from redline.measure.figures import Figures
from redline.measure.flow import Rate
from redline.measure.knee import ENOUGH, Knee
from redline.process import counted

_LEVEL = "{:>9}  {:>15}  {:>12}  {:>9}  {:>9}  {:>9}  {:>7}"
# Waits for this client's limits are noted if they exceed this share of the typical latency.
_WAITED_SHARE = 0.05
_EXAMPLE_CHARS = 300


def figures_lines(figures: Figures) -> Iterator[str]:
    """Yields lines with all figures, their failures and notes."""
    took = f"{figures.seconds:.1f} s" if figures.seconds >= 1 else _time(figures.seconds)
    warm_up = f", after {figures.warm_up:,} in the warm-up" if figures.warm_up else ""
    yield (
        f"requests    {_rate(figures.requests)} requests/s: {figures.succeeded:,} succeeded, "
        f"{figures.failed:,} failed in {took}{warm_up}"
    )
    if figures.output_tokens_per_s is not None:
        read = figures.input_tokens_per_s
        read_words = "" if read is None else f", {read:,.1f} input tokens/s"
        yield f"tokens      {figures.output_tokens_per_s:,.1f} output tokens/s{read_words}"
    spent = ""
    if figures.spent_usd is not None:
        spent = f"; spent {dollars_text(round(figures.spent_usd * DOLLAR))}"
    yield f"in flight   {figures.in_flight:.1f} on average{spent}"
    if figures.gpu_utilization is not None:
        yield f"GPU         {figures.gpu_utilization:.0%} busy on this machine"
    if (good := figures.goodput) is not None:
        yield (
            f"goodput     {_rate(good.rate)} requests/s within {good.objectives}: "
            f"{good.share:.1%} of requests"
        )
    yield ""
    yield from _times(figures)
    for one in figures.failures:
        yield f"failed: {one.count:,} {one.kind}, such as: {one.example:.{_EXAMPLE_CHARS}}"
    for note in _notes(figures):
        yield f"note: {note}"


def _notes(figures: Figures) -> Iterator[str]:
    """Yields the notes that a reader needs to interpret the figures."""
    if client := _bottleneck(figures):
        yield f"this client is the bottleneck: {client}"
    if figures.unsent:
        yield (
            f"{counted(figures.unsent, 'request')} of {figures.scheduled:,} not sent in time: "
            "the target does not keep up with this rate at this concurrency, and latencies grow "
            "with the duration"
        )
    waited = figures.waited
    latency_s = 0.0 if figures.latency is None else figures.latency.p50_s
    if waited is not None and latency_s and waited.p50_s > _WAITED_SHARE * latency_s:
        is_refused = any(one.kind == "rate_limited" for one in figures.failures)
        what = "429s of the target" if is_refused else "limits of this client"
        yield (
            f"{what} held requests back, typically for {_time(waited.p50_s)}: the limits determine "
            "the throughput"
        )
    if figures.is_token_count_estimated:
        yield "each chunk of an answer without usage is counted as one token"
    spreads = (figures.latency, figures.ttft, figures.inter_token, figures.tpot)
    if error := max((one.error for one in spreads if one is not None), default=0.0):
        yield f"quantiles are within {error:.0%} of the exact ones"
    if figures.cut:
        yield f"{counted(figures.cut, 'request was', 'requests were')} dropped before the answer"
    if figures.ended:
        yield f"the load ended early: {figures.ended}"


def _bottleneck(figures: Figures) -> str:
    """Returns why the figures show this client's limits; "" if they show the target's."""
    return "" if figures.client is None else figures.client.bottleneck


def _times(figures: Figures) -> Iterator[str]:
    rows = [
        (name, found)
        for name, found in (
            ("latency", figures.latency),
            ("first token", figures.ttft),
            ("between tokens", figures.inter_token),
            ("per token", figures.tpot),
        )
        if found is not None
    ]
    if not rows:
        return
    line = "{:<16}{:>11}{:>11}{:>11}{:>11}{:>11}"
    yield line.format("", "p50", "p95", "p99", "mean", "max")
    for name, one in rows:
        times_s = (one.p50_s, one.p95_s, one.p99_s, one.mean_s, one.max_s)
        yield line.format(name, *map(_time, times_s))


def level_lines(measured: Sequence[Figures]) -> list[str]:
    """Returns the header of the table of levels, and a line for each level."""
    head = _LEVEL.format("in flight", "requests/s", "tokens/s", "p50", "p99", "first p50", "failed")
    return [head, *map(_level_line, measured)]


def _level_line(one: Figures) -> str:
    tokens, latency, ttft = one.output_tokens_per_s, one.latency, one.ttft
    return _LEVEL.format(
        one.concurrency,
        _rate(one.requests),
        "-" if tokens is None else f"{tokens:,.0f}",
        "-" if latency is None else _time(latency.p50_s),
        "-" if latency is None else _time(latency.p99_s),
        "-" if ttft is None else _time(ttft.p50_s),
        f"{one.failed:,}",
    )


def knee_lines(knee: Knee, measured: Sequence[Figures]) -> Iterator[str]:
    """Yields the lines about the knee: the level, the rule, and how certain it is."""
    found = next(one for one in measured if one.concurrency == knee.concurrency)
    yield (
        f"knee: {knee.concurrency:,} in flight, {_rate(found.requests)} requests/s: the smallest "
        f"level with {ENOUGH:.0%} of the best"
    )
    if knee.best != knee.concurrency:
        yield f"({knee.share:.0%} of the throughput at {knee.best:,} in flight)"
    if knee.unsure:
        shown = ", ".join(f"{level:,}" for level in knee.unsure)
        yield (f"note: {shown} may also be enough, given the intervals: measure longer to decide")
    if len(measured) == 1:
        yield "note: only this level was measured: a larger --limit or -c may allow more levels"
    if knee.is_open:
        yield "note: throughput still rose at the highest level that was measured"
    for one in measured:
        if client := _bottleneck(one):
            yield f"note: at {one.concurrency:,} in flight this client is the bottleneck: {client}"
            break


def _rate(found: Rate) -> str:
    """Formats a rate, such as `12.3 ± 0.4`, with as many decimals as are meaningful."""
    places = 0 if found.per_s >= 1000 else 1 if found.per_s >= 10 else 2
    shown = f"{found.per_s:,.{places}f}"
    return shown if found.error is None else f"{shown} ± {found.error:,.{places}f}"


def _time(value_s: float) -> str:
    """Formats a duration as `3.21 s`, `45.6 ms` or `0.12 ms`."""
    if value_s >= 1:
        return f"{value_s:,.2f} s"
    return f"{1000 * value_s:.1f} ms" if value_s >= 0.01 else f"{1000 * value_s:.2f} ms"
