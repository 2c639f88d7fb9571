"""Renders a report as Markdown: its texts and figures, without the charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from redline.job.report.data import JobReport
from redline.job.report.words import (
    CAUSES,
    HELPS,
    SCORES,
    facts_of,
    headline,
    nothing_text,
    percent,
    rows_text,
    run_text,
    score_rows,
    state_text,
    when,
)
from redline.observe import advice
from redline.process import duration

# How every report in Markdown begins.
BEGINNING = "# redline report of "
# Characters that Markdown or HTML would interpret.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$!])")


def markdown_of(reports: Sequence[JobReport]) -> str:
    """Returns the report on one output, or a table that compares several."""
    lines = _one(reports[0]) if len(reports) == 1 else _several(reports)
    return "\n".join(lines) + "\n"


def _one(report: JobReport) -> Iterator[str]:
    figures = report.figures
    yield f"{BEGINNING}{_text(report.name)}"
    yield from ("", f"**{_text(headline(report))}**", "", f"{_text(state_text(report))}")
    for note in report.notes:
        yield from ("", f"Note: {_text(note)}.")
    if not report.shares:
        yield from ("", nothing_text(report))
    else:
        facts = [(name, *each) for name, each in facts_of(figures)]
        yield from ("", rows_text(figures))
        yield from _table("Figures", ("", ""), facts)
    yield from _table(
        "What bound",
        ("share of the time", "cause", "what", "evidence"),
        [
            (percent(one.share), CAUSES[one.cause.value], one.what, one.evidence)
            for one in report.shares
        ],
    )
    yield from _table("What would help", HELPS, advice(report.helps))
    yield from _table("Predictions", SCORES, score_rows(report))
    yield from _table(
        "Attempts that failed",
        ("error", "attempts", "example"),
        [(one.kind, f"{one.attempts:,}", one.example) for one in report.errors],
    )
    yield from _table(
        "Rows that failed",
        ("error", "rows", "example"),
        [
            (one.kind, f"{one.rows:,}", f"{row.name}: {row.message}")
            for one in report.failed
            for row in one.examples[:1]
        ],
    )
    yield from _table(
        "Runs",
        ("began", "ended", "running time", "done", "failed", "limits"),
        [
            (
                when(run.begun),
                run_text(run),
                duration(run.running_s),
                f"{run.done:,}",
                f"{run.failed:,}",
                ", ".join(run.limits),
            )
            for run in report.runs
        ],
    )
    yield from _table("Settings", ("", ""), [*report.settings])


def _several(reports: Sequence[JobReport]) -> Iterator[str]:
    yield f"{BEGINNING}{len(reports)} outputs"
    yield ""
    yield from (f"- {_text(one.name)}: {_text(one.sentence)}" for one in reports)
    facts = facts_of(*(one.figures for one in reports))
    rows = [("state", *(one.state for one in reports)), ("model", *(one.model for one in reports))]
    rows += [(name, *values) for name, values in facts]
    yield from _table("Figures", ("", *(one.name for one in reports)), rows)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a Markdown table with its title; no lines if there are no rows."""
    if not rows:
        return
    yield from ("", f"## {title}", "")
    for row in (heads, ["---"] * len(heads), *rows):
        is_rule = row and set(row) == {"---"}
        yield "| " + " | ".join(row if is_rule else map(_text, row)) + " |"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
