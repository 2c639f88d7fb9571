"""Draws a report's main chart as SVG: rows/s, calls in flight, and what held the job back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from redline.job.report.colours import BACKGROUND, LINES, OF_CAUSES, QUIET, RULE, TEXT
from redline.job.report.data import JobReport
from redline.job.report.series import Column
from redline.job.report.words import CAUSES, headline, percent, state_text
from redline.process import clipped

# How every chart begins.
BEGINNING = '<svg data-generator="redline" '
_WIDTH, _LEFT, _RIGHT = 960, 64, 24
_PANEL, _TOP, _GAP, _BAND = 150, 96, 44, 18
_LEGEND_LINE = 20
_INNER = _WIDTH - _LEFT - _RIGHT
_LONGEST_TITLE = 110
_MOST_SHARES = 6
_UNITS = ((300.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (math.inf, 3600.0, "hours"))


def svg_of(report: JobReport) -> str:
    """Returns the chart of one output, 960 px wide; light or dark as the viewer prefers."""
    end_s = max(report.series.end_s, default=0.0)
    band_y = _TOP + 2 * _PANEL + 2 * _GAP - 14
    axis_y = band_y + _BAND + 20
    height = axis_y + 40 + _LEGEND_LINE * max(1, len(report.shares[:_MOST_SHARES]))
    subtitle = f"{report.name}: {state_text(report)}"
    parts = [
        f'{BEGINNING}xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-label="{_text(headline(report))}">',
        f"<style>{_style()}</style>",
        f'<rect class="background" width="{_WIDTH}" height="{height}"/>',
        f'<text x="24" y="34" class="title">{_text(headline(report), _LONGEST_TITLE)}</text>',
        f'<text x="24" y="56" class="quiet">{_text(subtitle, _LONGEST_TITLE)}</text>',
    ]
    if not report.series.begin_s:
        parts.append(f'<text x="24" y="{_TOP + 40}">nothing was recorded</text></svg>')
        return "\n".join(parts) + "\n"
    panels = (("rows/s", report.series.rows_per_s), ("calls in flight", report.series.in_flight))
    for place, (title, column) in enumerate(panels):
        top = _TOP + place * (_PANEL + _GAP)
        parts += _panel(report, title, column, top, end_s, f"line{place}")
    parts += _band(report, band_y, end_s)
    parts += _axis(end_s, axis_y)
    parts += _legend(report, axis_y + 40)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(text: str, longest: int = 400) -> str:
    return escape(clipped(text, longest))


def _style() -> str:
    """Returns the style sheet, with the colours of the light and the dark scheme."""

    def rules(dark: int) -> str:
        causes = (f".{one.value}{{fill:{both[dark]}}}" for one, both in OF_CAUSES.items())
        lines = (f".line{n}{{stroke:{both[dark]}}}" for n, both in enumerate(LINES[:2]))
        plain = (
            f".background{{fill:{BACKGROUND[dark]}}}text{{fill:{TEXT[dark]}}}"
            f".quiet{{fill:{QUIET[dark]}}}.rule{{stroke:{RULE[dark]}}}"
        )
        return plain + "".join((*causes, *lines))

    return (
        "text{font:13px system-ui,sans-serif}.title{font-size:18px;font-weight:600}"
        ".line{fill:none;stroke-width:1.5}"
        f"{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}"
    )


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + _INNER * at_s / (end_s or 1.0)


def _panel(
    report: JobReport, title: str, column: Column, top: int, end_s: float, name: str
) -> Iterator[str]:
    """Yields the elements that draw one column as a line, with an axis that begins at 0."""
    step = tick_step(max((one for one in column if one is not None), default=0.0), 4)
    most = step * max(1, math.ceil(max((one or 0.0 for one in column), default=0.0) / step))
    yield f'<text x="{_LEFT}" y="{top - 10}">{title}</text>'
    for index in range(round(most / step) + 1):
        y = top + _PANEL * (1 - index * step / most)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _label(_LEFT - 8, y + 4, "end", f"{index * step:,.10g}")
    path = []
    for stroke in report.series.strokes(column):
        places = (
            f"{_x(at_s, end_s):.1f} {top + _PANEL * (1 - value / most):.1f}"
            for at_s, value in stroke
        )
        path.append("M" + "L".join(places))
    yield f'<path class="line {name}" d="{"".join(path)}"/>'


def _band(report: JobReport, y: float, end_s: float) -> Iterator[str]:
    for one in report.band:
        x, width = _x(one.begin_s, end_s), _x(one.end_s, end_s) - _x(one.begin_s, end_s)
        title = f"<title>{_text(one.what)}: {_text(one.evidence)}</title>"
        yield (
            f'<rect class="{one.cause.value}" x="{x:.1f}" y="{y}" width="{max(0.5, width):.1f}" '
            f'height="{_BAND}">{title}</rect>'
        )


def _axis(end_s: float, y: float) -> Iterator[str]:
    """Yields the labels of the time axis, below the band."""
    unit_s, name = unit_of(end_s)
    step = tick_step(end_s / unit_s, 8)
    for index in range(int(end_s / unit_s / step + 1e-9) + 1):
        x = _x(index * step * unit_s, end_s)
        yield _label(x, y, "middle", f"{index * step:g}")
    yield _label(_WIDTH - _RIGHT, y + 18, "end", name)


def _legend(report: JobReport, y: float) -> Iterator[str]:
    """Yields the legend of the band: the constraints, with their shares of the time."""
    for place, one in enumerate(report.shares[:_MOST_SHARES]):
        line_y = y + _LEGEND_LINE * place
        cause = one.cause.value
        what = "" if one.what in (CAUSES[cause], cause) else f": {one.what}"
        text = f"{percent(one.share)}  {CAUSES[cause]}{what}"
        yield f'<rect class="{cause}" x="{_LEFT}" y="{line_y - 11}" width="12" height="12"/>'
        yield f'<text x="{_LEFT + 20}" y="{line_y}">{_text(text, _LONGEST_TITLE)}</text>'


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="quiet" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def unit_of(end_s: float) -> tuple[float, str]:
    """Returns the unit of a time axis that ends at `end_s`: its seconds, and its name."""
    return next((unit_s, name) for below_s, unit_s, name in _UNITS if end_s < below_s)


def tick_step(most: float, ticks: int) -> float:
    """Returns the distance between ticks, about `ticks` of them from 0 to `most`.

    It is 1, 2 or 5 times a power of 10.
    """
    if most <= 0:
        return 1.0
    raw = most / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999))
