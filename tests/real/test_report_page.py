"""The page of `redline report` in headless Chromium: on wide and narrow screens, light and dark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from redline.job.report import JobReport, html_of, points_each, read_files, report_of
from redline.timeline import read_timeline
from support.browser import PROGRAM, Browser
from support.recorded_jobs import jobs

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
]
AXE = Path(sys.prefix) / "node/node_modules/axe-core/axe.min.js"
PHONE, DESK = 400, 1280
CHARTS = (
    "[...document.querySelectorAll('.chart')].map(one => one.querySelectorAll('.main-svg').length)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobReport]:
    """Of one job of each kind."""
    found = {}
    for name, output in jobs(tmp_path_factory.mktemp("jobs")).items():
        timeline = read_timeline(output.state_path / "timeline.jsonl")
        files = read_files(output, timeline, is_running=False)
        found[name] = report_of(files, points_each(1))
    return found


@pytest.mark.parametrize(
    ("names", "charts"),
    [
        (("failing",), 6),
        (("empty",), 0),
        (("healthy",), 5),
        (("healthy", "failing", "empty"), 4),
    ],
)
def test_a_page_is_drawn_without_an_error_a_request_or_a_scroll_bar(
    browser: Browser,
    reports: dict[str, JobReport],
    tmp_path: Path,
    names: tuple[str, ...],
    charts: int,
) -> None:
    path = tmp_path / "page.html"
    path.write_text(html_of([reports[name] for name in names]), "utf-8")
    browser.open(path, PHONE)
    for width, dark in ((PHONE, True), (DESK, False)):
        browser.look(width, dark=dark)
        drawn = browser.run(CHARTS)
        assert len(drawn) == charts
        assert all(drawn)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert faults(browser) == []
    assert browser.messages == []
    outside = [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert outside == []


def faults(browser: Browser) -> list[str]:
    """What axe-core finds, in its words; nothing if it is not installed."""
    if not AXE.exists():
        return []
    if not browser.run("'axe' in window"):
        browser.run(AXE.read_text("utf-8") + "; 0")
    script = "axe.run().then(found => found.violations.map(one => "
    script += "`${one.id}: ${one.help}: ${one.nodes.map(node => node.html.slice(0, 90)).join()}`))"
    found: list[str] = browser.run(script)
    return found


def test_the_test_can_see_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><body><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width:900px'>wide</div><script>missing()</script>",
        "utf-8",
    )
    browser.open(path, 400)
    assert browser.messages
    assert any(url.startswith("http:") for url in browser.requests)
    assert browser.run("document.documentElement.scrollWidth") > 400
    assert faults(browser) or not AXE.exists()
