"""Renders a report as one HTML page with its data and, if it has charts, plotly's script.

The page's Content-Security-Policy forbids it to load or send anything. Texts that quote other
programs are escaped by the template, or are in JSON, from which the script inserts them as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from redline.job.inspect import PAGE, rendered
from redline.job.report import colours, markdown, svg, words
from redline.job.report.data import VERSION, JobReport
from redline.observe import advice
from redline.process import counted
from redline.sources import extra

# How a report in each format begins; no file of another program begins like that.
BEGINNINGS = {
    "html": PAGE,
    "md": markdown.BEGINNING,
    "json": f'{{"report":{VERSION},"jobs":[{{"name":"',
    "svg": svg.BEGINNING,
}
_TEMPLATE = "page.html.jinja"
# The most characters of an output's name: in a legend or the head of a column, and on an axis.
_LONGEST_LABEL, _LONGEST_TICK = 40, 16


def html_of(reports: Sequence[JobReport]) -> str:
    """Returns a page on one output, or a page that compares several.

    Raises ConfigError if there is something to draw but plotly is not installed.
    """
    script = _plotly() if any(report.shares for report in reports) else ""
    facts = words.facts_of(*(report.figures for report in reports))
    return rendered(
        Path(__file__).with_name(_TEMPLATE),
        reports=reports,
        labels=_labels(reports, _LONGEST_LABEL),
        facts=facts,
        data=_json(chart_data(reports)),
        plotly=script,
        words=words,
        advice=advice,
        counted=counted,
        causes=[(one.value, *both) for one, both in colours.OF_CAUSES.items()],
        colours=colours,
    )


def _plotly() -> str:
    """Returns plotly's script. Raises ConfigError if plotly is not installed."""
    instead = "--format md, json or svg, which do not need it"
    script: str = extra("plotly.offline", "report", "a page", instead).get_plotlyjs()
    return script


def chart_data(reports: Sequence[JobReport]) -> dict[str, Any]:
    """Returns the data from which the page's script draws the charts."""
    ends_s = [end_s for report in reports for end_s in report.series.end_s[-1:]]
    unit_s, unit = svg.unit_of(max(ends_s, default=0.0))
    return {
        "unit_s": unit_s,
        "unit": unit,
        "jobs": [
            _job(report, label, tick)
            for report, label, tick in zip(
                reports,
                _labels(reports, _LONGEST_LABEL),
                _labels(reports, _LONGEST_TICK),
                strict=True,
            )
        ],
        "causes": {one.value: both for one, both in colours.OF_CAUSES.items()},
        "lines": colours.LINES,
    }


def _labels(reports: Sequence[JobReport], most: int) -> list[str]:
    return words.labels([report.name for report in reports], most)


def _job(report: JobReport, label: str, tick: str) -> dict[str, Any]:
    return {
        "label": label,
        "tick": tick,
        "series": report.series,
        "band": report.band,
        "begins_s": [run.begin_s for run in report.runs[1:]],
    }


def _json(data: dict[str, Any]) -> str:
    """Returns JSON to embed in a script element, without characters that could end the element."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
