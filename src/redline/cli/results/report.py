"""`redline report`: writes a shareable report on a job, as a page, text, data or a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from click import Context

from redline.cli.flags import Word, flag, stated
from redline.cli.results.recorded import read_recorded
from redline.cli.session import new_file, say
from redline.errors import ConfigError, check_known
from redline.job.report import (
    BEGINNINGS,
    MOST_JOBS,
    JobReport,
    html_of,
    json_of,
    markdown_of,
    read_files,
    report_of,
    svg_of,
)
from redline.journal import Output
from redline.process import write_file

_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".svg": "svg"}
_HINT = "choose a file name such as page.html, report.md, report.json or chart.svg"


def _chart(reports: Sequence[JobReport]) -> str:
    return svg_of(reports[0])


_FORMATS = {"html": html_of, "md": markdown_of, "json": json_of, "svg": _chart}
PARAMS = (
    Word(
        "results",
        "OUT...",
        "Results files of runs or, in the folder of the runs, their URLs; several, at most 7, are "
        "compared (not as svg).",
        is_many=True,
    ),
    flag(
        "output", "FILE", "File to write: .html, .md, .json or .svg. Default: stdout.", short="-o"
    ),
    flag(
        "format",
        "FORMAT",
        "Format of the report: html, md, json or svg. Default: the suffix of FILE; md without -o.",
    ),
)


def report(ctx: Context, results: Sequence[str] | None) -> None:
    """Report on a job: what limited it, how fast it was, what it cost, and what failed.

    A page is self-contained and can be sent to anyone. It quotes the prompt, a few errors and the
    names of some rows, but no key. If the job is running, the report shows its current state.

        redline report labels.jsonl -o page.html
        redline report labels.jsonl -o chart.svg
        redline report small.jsonl large.jsonl -o page.html

    A page needs plotly: pip install 'redline[report]'.

    Exit status: 0 done; 2 nothing was recorded, or bad usage; 3 a defect in redline.
    """
    given = stated(ctx)
    if not results:
        raise ConfigError("OUT is missing", hint="redline report labels.jsonl -o page.html")
    if len(results) > MOST_JOBS:
        raise ConfigError(
            f"{len(results)} files are too many for one report", hint=f"pass at most {MOST_JOBS}"
        )
    form = _format(given.get("format"), given.get("output"))
    if form == "svg" and len(results) > 1:
        raise ConfigError(
            "a chart shows one job", hint="pass one file, or make a page: -o page.html"
        )
    path = None
    if "output" in given:
        path = new_file(given["output"], "report", BEGINNINGS[form], _HINT)
    reports = [_read(Output.at(name), len(results)) for name in results]
    text = _FORMATS[form](reports)
    if path is None:
        say(text)
        return
    data = text.encode("utf-8", "replace")
    write_file(path, data)
    say(f"{path}: {_size_text(len(data))}\n")


def _read(output: Output, jobs: int) -> JobReport:
    timeline, is_running = read_recorded(output)
    return report_of(read_files(output, timeline, is_running=is_running), jobs)


def _format(stated_format: str | None, output: str | None) -> str:
    """Returns the output format. Raises ConfigError if it is unknown."""
    if stated_format is not None:
        check_known("format", stated_format, _FORMATS)
        return stated_format
    if output is None:
        return "md"
    form = _SUFFIXES.get(Path(output).suffix.lower())
    if form is None:
        raise ConfigError(
            f"no report format has the suffix of {output}", hint=f"{_HINT}, or add --format"
        )
    return form


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"
