"""Computes the data of a report: the figures, series and sentences about one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from redline.job.report.reading import FailedKind, JobFiles, shown
from redline.job.report.series import (
    MOST_POINTS,
    Series,
    band_of,
    offsets_of,
    points_of,
    series_of,
    spent_until,
)
from redline.journal import Manifest
from redline.observe import (
    Binding,
    Cause,
    Score,
    Share,
    State,
    best_of,
    bindings,
    gain_text,
    predictions,
    scores_of,
    summary_of,
)
from redline.timeline import Prediction, RunHistory, Window, errors_of, merged

# The version of the JSON format.
VERSION = 1
# With more jobs, the colours and columns could not be distinguished.
MOST_JOBS = 7
_MOST_SHARES = 12
_MOST_KINDS = 20
_MOST_SETTINGS = 60
_LONGEST_SETTING = 2_000
_LONGEST_NAME = 200
# Causes that no change of settings would remove.
_UNBOUND = (Cause.NOTHING, Cause.UNDETERMINED)
# Settings with these values, the defaults, are not reported.
_DULL = {"method": "POST", "format": "redline"}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a job. Durations are in seconds; None means unknown.

    rows: the number of rows in the input; a lower bound unless is_exact. done, failed, untried,
    left: parts of these rows. All other figures are of the runs that the timeline still contains.
    rows_per_s: rows done or failed per second of running_s. first_token_p50_s: of streamed answers.
    most_in_flight: the largest mean number of calls in flight over a point of the series.
    """

    rows: int = 0
    is_exact: bool = True
    done: int = 0
    failed: int = 0
    untried: int = 0
    left: int = 0
    running_s: float = 0.0
    rows_per_s: float = 0.0
    requests: int = 0
    retries: int = 0
    failovers: int = 0
    failed_attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    first_token_p50_s: float | None = None
    most_in_flight: float = 0.0
    spent_usd: float | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run. begun: seconds since 1970-01-01 UTC. begin_s: on the axis of `Series`, in seconds.

    stopped: the error that stopped the run, otherwise empty. done, failed: numbers of rows. slots:
    the bound on calls in flight when the run began; 0 for no bound. limits: as set. redline: the
    version of redline.
    """

    state: State
    stopped: str
    begun: float
    begin_s: float
    running_s: float
    done: int
    failed: int
    slots: int
    limits: tuple[str, ...]
    redline: str


class ErrorLine(msgspec.Struct, frozen=True, kw_only=True):
    """Counts failed attempts by kind of error. example: the text of the last error, if known."""

    kind: str
    attempts: int
    example: str


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on one job.

    sentence: what held the job back, and which change would help most. state, seen: the state of
    the latest run, and when it ended or last wrote a record, in seconds since 1970-01-01 UTC.
    shares: each constraint with its share of the time, largest first. helps: predictions for other
    settings, from all runs. scores: of earlier predictions. band: what held the job back at each
    time, on the axis of `series`. errors: failed attempts, including those that were retried;
    error: the text of the last one. failed: failed rows by kind. settings: their names and values,
    as text.
    """

    name: str
    state: State
    sentence: str
    seen: float
    model: str
    input: str
    endpoints: tuple[str, ...]
    figures: Figures
    shares: tuple[Share, ...]
    helps: tuple[Prediction, ...]
    scores: tuple[Score, ...]
    band: tuple[Binding, ...]
    runs: tuple[RunLine, ...]
    series: Series
    errors: tuple[ErrorLine, ...]
    error: str
    failed: tuple[FailedKind, ...]
    settings: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def report_of(files: JobFiles, jobs: int = 1) -> JobReport:
    """Returns the report on one output.

    jobs: the number of outputs on the page. Each gets an equal share of MOST_POINTS.
    """
    timeline = files.timeline
    bound = [bindings(run.windows) for run in timeline.runs]
    points = points_of(timeline, bound, MOST_POINTS // jobs)
    last, windows = timeline.runs[-1], timeline.windows
    summary = summary_of([one for run in bound for one in run])
    runs = _runs(files)
    notes = files.notes
    if any(run.state == "dead" for run in runs):
        notes = [*notes, "a run that was killed did not record its last second or two"]
    in_flight = (point.window.in_flight for point in points)
    found = predictions(timeline.runs)
    helps = () if isinstance(found, str) else tuple(found)
    is_bound = any(one.cause not in _UNBOUND for one in summary.shares[:1])
    best = best_of(helps) if is_bound else None
    more = "" if best is None else f"; {best.change} would bring {gain_text(best)}"
    report = JobReport(
        name=shown(files.name, _LONGEST_NAME),
        state=_state(last, is_running=files.is_running),
        sentence=summary.sentence + more,
        seen=timeline.seen,
        model=shown(last.facts.model, _LONGEST_NAME),
        input=shown(last.facts.input, _LONGEST_NAME),
        endpoints=tuple(shown(name, _LONGEST_NAME) for name in last.facts.endpoints),
        figures=_figures(files, max(in_flight, default=0.0)),
        shares=summary.shares[:_MOST_SHARES],
        helps=helps,
        scores=tuple(scores_of(timeline.runs)),
        band=tuple(band_of(points)),
        runs=runs,
        series=series_of(points, files.budgeted),
        errors=_errors(windows),
        error=shown(next((one.error for one in reversed(windows) if one.error), "")),
        failed=tuple(files.failed),
        settings=_settings(files.manifest),
        notes=tuple(shown(note) for note in notes),
    )
    shown_report: JobReport = _printable(report)
    return shown_report


def _printable(value: Any) -> Any:
    """Returns the value with all texts in it made printable: many texts quote other programs."""
    match value:
        case str():
            return shown(value, _LONGEST_SETTING)
        case msgspec.Struct():
            fields = msgspec.structs.asdict(value)
            return msgspec.structs.replace(value, **_printable(fields))
        case dict():
            return {_printable(name): _printable(each) for name, each in value.items()}
        case list() | tuple():
            return type(value)(map(_printable, value))
    return value


def _state(run: RunHistory, *, is_running: bool) -> State:
    if is_running:
        return "running"
    return "dead" if run.end is None else run.end.how


def _figures(files: JobFiles, most_in_flight: float) -> Figures:
    runs, windows = files.timeline.runs, files.timeline.windows
    running_s = sum(run.last_s for run in runs)
    if not windows:
        return Figures(running_s=running_s)
    whole = merged(windows)
    totals = whole.totals
    return Figures(
        rows=totals.rows,
        is_exact=totals.is_exact,
        done=totals.done,
        failed=totals.failed,
        untried=totals.untried,
        left=totals.left,
        rows_per_s=(whole.done + whole.failed) / (running_s or 1.0),
        requests=whole.sent,
        retries=whole.retries,
        failovers=whole.failovers,
        failed_attempts=errors_of(windows).total(),
        input_tokens=whole.input_tokens,
        output_tokens=whole.output_tokens,
        latency_p50_s=whole.latency.quantile_s(0.5),
        latency_p95_s=whole.latency.quantile_s(0.95),
        latency_p99_s=whole.latency.quantile_s(0.99),
        first_token_p50_s=whole.first_token.quantile_s(0.5),
        spent_usd=_spent(runs, files.budgeted),
        most_in_flight=most_in_flight,
        running_s=running_s,
    )


def _spent(runs: Sequence[RunHistory], budgeted: Sequence[bool]) -> float | None:
    """Returns the dollars spent by all runs; None if a run had answers of unknown cost."""
    for run in runs:
        has_cost = any(one.totals.spent_usd is not None for one in run.windows)
        # In a run with many calls, `answered` is an estimate.
        has_answers = any(one.answered or one.done or one.output_tokens for one in run.windows)
        if has_answers and not has_cost:
            return None
    windows = ((number, one) for number, run in enumerate(runs) for one in run.windows)
    known = [usd for usd in spent_until(windows, budgeted) if usd is not None]
    return known[-1] if known else None


def _runs(files: JobFiles) -> tuple[RunLine, ...]:
    runs = files.timeline.runs
    return tuple(
        RunLine(
            state=_state(run, is_running=files.is_running and run is runs[-1]),
            stopped="" if run.end is None else shown(run.end.what),
            begun=run.facts.at,
            begin_s=round(offset_s, 2),
            running_s=run.last_s,
            done=sum(one.done for one in run.windows),
            failed=sum(one.failed for one in run.windows),
            slots=run.facts.slots,
            limits=tuple(shown(text, _LONGEST_NAME) for text in run.facts.limits),
            redline=shown(run.facts.redline, _LONGEST_NAME),
        )
        for run, offset_s in zip(runs, offsets_of(files.timeline), strict=True)
    )


def _errors(windows: Sequence[Window]) -> tuple[ErrorLine, ...]:
    """Returns the failed attempts by kind, the most frequent first.

    A window contains only the text of its last error. The kind of this error is known only if all
    errors of the window are of one kind.
    """
    examples = {kind: one.error for one in windows if len(one.errors) == 1 for kind in one.errors}
    return tuple(
        ErrorLine(
            kind=shown(kind, _LONGEST_NAME), attempts=count, example=shown(examples.get(kind, ""))
        )
        for kind, count in errors_of(windows).most_common(_MOST_KINDS)
    )


def _settings(manifest: Manifest | None) -> tuple[tuple[str, str], ...]:
    """Returns the settings in the manifest, which never contains an API key, as texts."""
    if manifest is None:
        return ()
    settings = manifest.settings.items()
    told = [(name, value) for name, value in settings if _DULL.get(name) != value]
    return tuple(
        (shown(name, _LONGEST_NAME), shown(_text(value), _LONGEST_SETTING))
        for name, value in told[:_MOST_SETTINGS]
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def json_of(reports: Sequence[JobReport]) -> str:
    """Returns the reports as one line of JSON: the version, and an object for each output."""
    return msgspec.json.encode({"report": VERSION, "jobs": reports}).decode() + "\n"
