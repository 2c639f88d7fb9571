"""Formats the figures of a report as text, for all output formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from redline.job.report.data import Figures, JobReport, RunLine
from redline.job.show import InputCounts, usd_text
from redline.observe import Cause
from redline.process import counted, duration

_STATES = {
    "running": "still running",
    "finished": "finished",
    "interrupted": "interrupted",
    "stopped": "stopped by an error",
    "dead": "died",
}
CAUSES = {cause.value: cause.value for cause in Cause} | {
    "limit": "rate limit",
    "down": "endpoint down",
}


def headline(report: JobReport) -> str:
    """Returns the report's main sentence, beginning with a capital letter."""
    text = report.sentence
    return text[:1].upper() + text[1:]


def state_text(report: JobReport) -> str:
    """Returns a text like `finished 2026-11-25 14:03 UTC, after 12 m 03 s`, for all runs."""
    last = report.runs[-1]
    ran = f"after {duration(report.figures.running_s)}"
    if len(report.runs) > 1:
        ran += f" in {counted(len(report.runs), 'run')}"
    if report.state == "running":
        return f"still running {ran}; as of {when(report.seen)}"
    return f"{_STATES[report.state]} {when(report.seen)}, {ran}{_why(last)}"


def labels(names: Sequence[str], most: int) -> list[str]:
    """Returns a label of at most `most` characters for each output, all of them different.

    Folders that all names share are left out, and names still too long lose their middle. If two
    labels would then be equal, all are numbered.
    """
    parts = [name.split("/") for name in names]
    shared = 0
    for alike in zip(*(one[:-1] for one in parts), strict=False):
        if len({*alike}) > 1:
            break
        shared += 1
    own = ["/".join(one[shared:]) for one in parts] if len(names) > 1 else [*names]
    found = [_cut(name, most) for name in own]
    if len({*found}) == len(found):
        return found
    numbered = [(f"{place}: ", name) for place, name in enumerate(own, 1)]
    return [number + _cut(name, most - len(number)) for number, name in numbered]


def _cut(text: str, most: int) -> str:
    """Returns the text with at most `most` characters, shortened in the middle."""
    if len(text) <= most:
        return text
    last = (most - 1) // 2
    return f"{text[: most - 1 - last]}…{text[len(text) - last :]}"


def nothing_text(report: JobReport) -> str:
    """Returns a sentence that explains why there are no figures."""
    if report.state == "running":
        return "The run has just begun: there is nothing to show yet."
    return "The run ended before its first sample: there is nothing to show."


def run_text(run: RunLine) -> str:
    """Returns how one run ended, in words."""
    return f"{_STATES[run.state]}{_why(run)}"


def _why(run: RunLine) -> str:
    """Returns why the run ended early, after a colon; empty if there is no reason."""
    why = "its process was killed" if run.state == "dead" else run.stopped
    return f": {why}" if why else ""


def when(at: float) -> str:
    """Returns a text like `2026-11-25 14:03 UTC`. at: seconds since 1970-01-01 UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def seconds(value: float | None) -> str:
    """Returns a text like `140 ms` or `2.3 s`; `-` for None."""
    if value is None:
        return "-"
    return f"{1000 * value:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def rate(value: float) -> str:
    """Returns a text like `12.3` or `1,234`."""
    return f"{value:.3g}" if value < 99.95 else f"{value:,.0f}"


def rows_text(figures: Figures) -> str:
    """Returns a text like `20,000 rows: 2,779 done, 3 failed, 17,218 left`."""
    return msgspec.convert(figures, InputCounts, from_attributes=True).text()


def _cost_per(usd: float | None, amount: float) -> str:
    return "-" if usd is None or not amount else usd_text(usd / amount)


# The label of each fact and its formatter, in display order.
FACTS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("rows done", lambda one: f"{one.done:,}"),
    ("rows failed", lambda one: f"{one.failed:,}"),
    ("rows left", lambda one: ("" if one.is_exact else "at least ") + f"{one.left:,}"),
    ("running time", lambda one: duration(one.running_s)),
    ("rows per second", lambda one: rate(one.rows_per_s)),
    ("tokens per second", lambda one: rate(one.tokens / (one.running_s or 1.0))),
    ("calls in flight, busiest interval", lambda one: rate(one.most_in_flight)),
    ("requests", lambda one: f"{one.requests:,}"),
    ("retries", lambda one: f"{one.retries:,}"),
    ("failovers, maybe billed twice", lambda one: f"{one.failovers:,}" if one.failovers else "-"),
    ("failed attempts", lambda one: f"{one.failed_attempts:,}"),
    ("latency p50", lambda one: seconds(one.latency_p50_s)),
    ("latency p95", lambda one: seconds(one.latency_p95_s)),
    ("latency p99", lambda one: seconds(one.latency_p99_s)),
    ("first token p50", lambda one: seconds(one.first_token_p50_s)),
    ("input tokens", lambda one: f"{one.input_tokens:,}"),
    ("output tokens", lambda one: f"{one.output_tokens:,}"),
    (
        "tokens per row",
        lambda one: f"{one.tokens / one.done:,.0f}" if one.done and one.tokens else "-",
    ),
    ("cost", lambda one: "unknown" if one.spent_usd is None else usd_text(one.spent_usd)),
    ("cost of 1,000 rows", lambda one: _cost_per(one.spent_usd, one.done / 1000)),
    ("cost per minute", lambda one: _cost_per(one.spent_usd, one.running_s / 60)),
)


def facts_of(*figures: Figures) -> list[tuple[str, list[str]]]:
    """Returns the label of each fact, with a text for each of `figures`.

    Facts whose text is `-` for all of `figures` are left out.
    """
    table = [(label, [text(one) for one in figures]) for label, text in FACTS]
    return [(label, values) for label, values in table if any(value != "-" for value in values)]


# The column heads of two tables: what would help, and how predictions compare with measurements.
HELPS = ("with", "answers per second")
SCORES = ("change", "answers per second", "verdict")


def score_rows(report: JobReport) -> list[tuple[str, str, str]]:
    """Returns each prediction for a run, with the measured rate and a verdict."""
    rows = []
    for score in report.scores:
        prediction, measured = score.prediction, f"{rate(score.measured_per_s)} measured"
        if prediction.unknown:
            rows.append((prediction.change, f"unknown; {measured}", "no prediction"))
            continue
        interval = f"{rate(prediction.low_per_s)} to {rate(prediction.high_per_s)} predicted"
        verdict = "right" if score.holds else "wrong"
        rows.append((prediction.change, f"{interval}; {measured}", verdict))
    return rows


def percent(share: float) -> str:
    """Returns a text like `96 %`, or `under 1 %`."""
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
