"""The data of a report, and what draws it: bounds, gaps, money, and texts that would do harm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from redline.job.report import (
    JobFiles,
    JobReport,
    html_of,
    json_of,
    markdown_of,
    read_files,
    report_of,
    svg_of,
)
from redline.observe import Cause
from redline.timeline import (
    LimitUse,
    Prediction,
    RunEnd,
    RunFacts,
    RunHistory,
    Sketch,
    Timeline,
    Totals,
    Window,
    read_timeline,
)
from support.output_files import failure, result, write_output
from support.recorded_jobs import FINISHED, HOSTILE, failing, output_of, window

MOST_BYTES = 1_000_000


def history(*windows: Window, at: float = 0.0, how: Any = FINISHED) -> RunHistory:
    end = None if how is None else RunEnd(at_s=windows[-1].end_s if windows else 0.1, how=how)
    return RunHistory(facts=RunFacts(v=1, at=at), windows=list(windows), end=end)


def made(*runs: RunHistory, **fields: Any) -> JobReport:
    return report_of(JobFiles(name="out.jsonl", timeline=Timeline([*runs]), **fields))


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> JobReport:
    path = tmp_path_factory.mktemp("failed") / "out.jsonl"
    windows = [failing(second) for second in range(60)]
    output = output_of(path, [(windows, None), (windows, FINISHED)], failures=40, prompt=HOSTILE)
    timeline = read_timeline(output.state_path / "timeline.jsonl")
    return report_of(read_files(output, timeline, is_running=False))


def test_a_long_job_has_at_most_a_megabyte_of_data_and_keeps_its_sums() -> None:
    windows = [failing(second, rows=140) for second in range(7200)]
    report = made(history(*windows))
    assert len(json_of([report])) <= MOST_BYTES
    series = report.series
    spans = [end - begin for begin, end in zip(series.begin_s, series.end_s, strict=True)]
    assert len(spans) <= 601
    rows = sum((rate or 0) * span for rate, span in zip(series.rows_per_s, spans, strict=True))
    assert rows == pytest.approx(sum(one.done + one.failed for one in windows), rel=1e-3)
    held_s = sum(one.span_s for one in report.band if one.cause is Cause.LIMIT)
    assert held_s / 7200 == pytest.approx(0.8, abs=0.05)
    assert report.sentence == "bound by 200k tokens/min for 80 % of the time"


def test_a_page_of_several_has_no_more_points_than_one_of_one() -> None:
    files = JobFiles(name="a", timeline=Timeline([history(*map(window, range(3000)))]))
    counts = [len(report_of(files, jobs).series.begin_s) for jobs in (1, 3, 7)]
    assert all(count * jobs <= 610 for count, jobs in zip(counts, (1, 3, 7), strict=True))


@pytest.mark.parametrize("pause_s", [0.0, 2.0, 1e6, -500.0])
def test_runs_have_a_gap_between_them_whatever_the_clock_says(pause_s: float) -> None:
    first, second = map(window, (0, 1))
    report = made(history(first, second), history(first, at=2.0 + pause_s))
    ends, begins = report.series.end_s, report.series.begin_s
    assert ends[1] < begins[2] <= ends[1] + 2.1
    strokes = report.series.strokes(report.series.rows_per_s)
    assert [len(stroke) for stroke in strokes] == [4, 2]
    assert len(report.band) == 2


def test_what_was_not_recorded_is_a_gap_and_what_was_not_sampled_is_unknown() -> None:
    lost = msgspec.structs.replace(window(1), samples=0, held={}, in_flight=0.0)
    report = made(history(window(0), lost, window(5)))
    series = report.series
    assert series.in_flight[1] is None
    assert (series.end_s[1], series.begin_s[2]) == (2.0, 5.0)
    assert [len(stroke) for stroke in series.strokes(series.in_flight)] == [2, 2]
    causes = [one.cause for one in report.band]
    assert causes == [Cause.LIMIT, Cause.UNDETERMINED, Cause.LIMIT]


def spending(*usd: float | None, has_budget: bool | None = None) -> RunHistory:
    windows = (
        Window(begin_s=n, end_s=n + 1.0, answered=1, totals=Totals(spent_usd=one))
        for n, one in enumerate(usd)
    )
    run = history(*windows)
    run.facts = msgspec.structs.replace(run.facts, has_budget=has_budget)
    return run


@pytest.mark.parametrize(
    ("runs", "has_account", "spent"),
    [
        ([(0.1, 0.4), (0.1, 0.2)], False, 0.6),
        ([(0.1, 0.4), (0.5, 0.7)], True, 0.7),
        ([(0.1, 0.4), (0.5, 0.7)], False, 1.1),
        ([(None, None), (0.5, 0.7)], False, None),
        ([(None, None)], False, None),
    ],
)
def test_the_cost_is_that_of_all_runs_or_unknown(
    runs: list[tuple[float | None, ...]], has_account: bool, spent: float | None
) -> None:
    report = made(*(spending(*one) for one in runs), has_account=has_account)
    assert report.figures.spent_usd == (None if spent is None else pytest.approx(spent))
    if spent is not None:
        assert report.series.spent_usd[-1] == pytest.approx(spent)


@pytest.mark.parametrize(
    ("runs", "spent"),
    [
        ([(False, 0.1, 0.4), (False, 0.5, 0.7)], 1.1),
        ([(True, 0.1, 0.4), (True, 0.5, 0.7)], 0.7),
        ([(False, 0.4), (True, 0.5, 0.7), (False, 0.2), (True, 0.9)], 1.5),
        ([(True, 0.4), (True, 0.1, 0.2)], 0.6),
    ],
)
def test_a_run_counts_the_cost_of_earlier_ones_only_with_a_budget_in_money(
    runs: list[tuple[Any, ...]], spent: float
) -> None:
    """A budget in tokens also has an account, but no dollars in it."""
    histories = [spending(*usd, has_budget=has_budget) for has_budget, *usd in runs]
    report = made(*histories, has_account=True)
    assert report.figures.spent_usd == pytest.approx(spent)
    assert report.series.spent_usd[-1] == pytest.approx(spent)


def test_errors_and_failed_rows_are_counted_by_kind_with_examples(failed: JobReport) -> None:
    kinds = {one.kind: one for one in failed.errors}
    assert kinds["rate_limited"].attempts == 4 * 18
    # Its windows have errors of another kind as well, so that the text may be of that one.
    assert kinds["rate_limited"].example == ""
    assert "onerror" in kinds["server_failed"].example
    assert [(one.kind, one.rows, len(one.examples)) for one in failed.failed] == [
        ("rejected", 27, 3),
        ("server_failed", 13, 3),
    ]
    assert [run.state for run in failed.runs] == ["dead", "finished"]


def test_no_text_of_others_is_read_as_html_or_moves_a_cursor(failed: JobReport) -> None:
    pytest.importorskip("plotly")
    page = html_of([failed])
    assert page.count("</script>") == 3
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert data is not None
    assert "<" not in data[1]
    assert json.loads(data[1])["jobs"][0]["label"].endswith("out.jsonl")
    for text in (page, markdown_of([failed]), svg_of(failed), json_of([failed])):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert not re.search(r"(?<!\\)<", markdown_of([failed]))


def test_compared_outputs_are_named_by_what_differs() -> None:
    pytest.importorskip("plotly")
    deep = "/data/teams/research/experiments/2026/november"
    names = [f"{deep}/a/out.jsonl", f"{deep}/b/out.jsonl"]
    assert labels(*names) == [("a/out.jsonl", "a/out.jsonl"), ("b/out.jsonl", "b/out.jsonl")]
    assert labels("out.jsonl", "s3://bucket/out.jsonl")[1][0] == "s3://bucket/out.jsonl"
    # The beginning, the end or the middle alone may differ, and one output may be compared twice.
    long = "answers-of-the-large-model"
    for compared in (
        [f"1-{long}.jsonl", f"2-{long}.jsonl"],
        [f"{long}-1.jsonl", f"{long}-2.jsonl"],
        [f"{long}-1-{long}.jsonl", f"{long}-2-{long}.jsonl"],
        [f"{deep}/out.jsonl"] * 12,
    ):
        for shown, most in zip(zip(*labels(*compared), strict=True), (40, 16), strict=True):
            assert len({*shown}) == len(compared)
            assert max(map(len, shown)) <= most


def labels(*names: str) -> list[tuple[str, str]]:
    """What the page calls outputs with these names: in a legend, and at an axis."""
    reports = [msgspec.structs.replace(made(history(window(0))), name=name) for name in names]
    data = re.search(r'id="data">(.*?)</script>', html_of(reports), re.S)
    assert data is not None
    return [(one["label"], one["tick"]) for one in json.loads(data[1])["jobs"]]


def test_no_line_of_the_page_ends_between_a_number_and_its_unit(failed: JobReport) -> None:
    pytest.importorskip("plotly")
    page = re.sub(r"<(style|script).*?</\1>", "", html_of([failed]), flags=re.S)
    sentences = re.sub(r"<title>.*?</title>", "", page)
    assert re.search(r"\d\N{NO-BREAK SPACE}%", sentences)
    assert re.search(r"\d\N{NO-BREAK SPACE}s\b", sentences)
    assert re.findall(r"\d (?:%|ms|s|m)(?!\w)", sentences) == []


def texts_in(value: Any) -> list[str]:
    """All texts in decoded JSON."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for each in value for text in texts_in(each)]
    return [value] if isinstance(value, str) else []


def test_what_an_exception_or_a_name_quotes_is_printable_in_every_format() -> None:
    pytest.importorskip("plotly")
    name = "\x1b]0;a\x07b\u202e"
    failed = {
        "held": {"backoff": 10},
        "errors": {"disconnected": 3},
        "error": "ConnectionError: \x1b[31mno\x08",
    }
    limited = {
        "held": {"limit": 10},
        "limits": (LimitUse(f"5 requests/s at {name}", 10, 5, 5, 1.0),),
        "in_flight": 2.0,
        "latency": Sketch.of([0.1] * 20),
    }
    run = history(
        *(
            Window(
                begin_s=second, end_s=second + 1.0, samples=10, **(limited if second else failed)
            )
            for second in range(9)
        )
    )
    run.prediction = Prediction(change=name, before_per_s=0.0, unknown=name)
    report = made(run)
    assert report.shares[1].evidence.endswith("the last: ConnectionError: no)")
    assert report.scores
    data = json.loads(json_of([report]))
    # The script of plotly has such characters of its own.
    page = re.sub(r"<script>.*?</script>", "", html_of([report]), flags=re.S)
    texts = [svg_of(report), markdown_of([report]), page, *texts_in(data)]
    assert not [text for text in texts if re.search("[\x00-\x08\x0b-\x1f\u202e]", text)]
    ElementTree.fromstring(svg_of(report))


def test_the_chart_is_xml_whose_line_ends_where_nothing_was_recorded(failed: JobReport) -> None:
    name = msgspec.structs.replace(failed, name=HOSTILE, sentence=HOSTILE)
    root = ElementTree.fromstring(svg_of(name).replace("\x1b", "").replace("\u202e", ""))
    lines = [one.get("d", "") for one in root.iter("{http://www.w3.org/2000/svg}path")]
    assert [line.count("M") for line in lines] == [2, 2]
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


@pytest.mark.parametrize("how", [None, "interrupted"])
def test_a_run_without_a_window_says_so(how: str | None) -> None:
    report = made(history(how=how))
    assert "Nothing was recorded" in markdown_of([report])
    assert "nothing was recorded" in svg_of(report)
    assert "0 rows" not in markdown_of([report])
    assert len(made(history(), history(window(0), at=9.0)).band) == 1


def test_a_failures_file_that_cannot_be_read_and_a_damaged_manifest_are_notes(
    tmp_path: Path,
) -> None:
    output = output_of(tmp_path / "out.jsonl", [([window(0)], FINISHED)])
    (output.state_path / "manifest.json").write_text("{", "utf-8")
    output.failed_path.mkdir()
    timeline = read_timeline(output.state_path / "timeline.jsonl")
    notes = report_of(read_files(output, timeline, is_running=False)).notes
    assert [note.split(" are ")[0] for note in notes] == ["settings", "failures"]


def test_a_row_that_failed_counts_once_and_not_if_it_succeeded_since(tmp_path: Path) -> None:
    output = output_of(tmp_path / "out.jsonl", [([window(0)], FINISHED)])
    failures = [failure(3), failure(3, "rejected"), failure(4, "rejected"), failure(5)]
    write_output(output.path, [result(4)], failures)
    timeline = read_timeline(output.state_path / "timeline.jsonl")
    found = report_of(read_files(output, timeline, is_running=False)).failed
    assert [(one.kind, one.rows) for one in found] == [("rejected", 1), ("server_failed", 1)]
    assert [row.name for one in found for row in one.examples] == ["row 3", "row 5"]
