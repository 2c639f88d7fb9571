"""The page of `redline report` in headless Chromium: on wide and narrow screens, light and dark."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from redline.job.report import JobReport, html_of, read_files, report_of
from redline.timeline import read_timeline
from support.browser import PROGRAM, Browser
from support.recorded_jobs import FINISHED, jobs, output_of, window

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
]
AXE = Path(sys.prefix) / "node/node_modules/axe-core/axe.min.js"
PHONE, DESK = 400, 1280
LIGHT, DARK = False, True
SCREENS = [*itertools.product((PHONE, DESK), (LIGHT, DARK))]
CHARTS_OF = {"healthy": 5, "failing": 6, "empty": 0, "million": 5}
# Of each chart, how far what is drawn reaches below it, in pixels; null where nothing is drawn.
CHARTS = """[...document.querySelectorAll('.chart')].map(one => {
  const end = part => part.getBoundingClientRect().bottom;
  const ends = [...one.querySelectorAll('.main-svg')].map(end);
  return ends.length ? Math.round(Math.max(...ends) - end(one)) : null;
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobReport]:
    """Of one job of each kind."""
    folder = tmp_path_factory.mktemp("jobs")
    outputs = jobs(folder)
    small = [window(second, all_rows=12_000) for second in range(300)]
    outputs["million"] = outputs.pop("healthy")
    outputs["healthy"] = output_of(folder / "small.jsonl", [(small, FINISHED)], model="m")
    found = {}
    for name, output in outputs.items():
        timeline = read_timeline(output.state_path / "timeline.jsonl")
        files = read_files(output, timeline, is_running=False)
        found[name] = report_of(files)
    assert found["million"].figures.rows == 1_000_000
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "charts", "screens"),
    [
        *((name, charts, SCREENS) for name, charts in CHARTS_OF.items()),
        ("million failing empty", 4, [(DESK, DARK), (PHONE, LIGHT)]),
    ],
)
def test_a_page_is_drawn_without_an_error_a_request_or_a_scroll_bar(
    browser: Browser,
    reports: dict[str, JobReport],
    tmp_path: Path,
    names: str,
    charts: int,
    screens: list[tuple[int, bool]],
) -> None:
    path = tmp_path / "page.html"
    path.write_text(html_of([reports[name] for name in names.split()]), "utf-8")
    for width, dark in screens:
        browser.open(path, width, dark=dark)
        check(browser, width, charts)
        browser.keep(f"report {names} {width} {'dark' if dark else 'light'}")
    # The same page on another screen.
    width, dark = screens[0]
    browser.look(width, dark=dark)
    check(browser, width, charts)


def check(browser: Browser, width: int, charts: int) -> None:
    """The page that is open has so many charts, and nothing wrong with it."""
    assert faults(browser) == []
    # By now plotly, which waits for 0.1 s after a change of the size, has drawn it again.
    assert browser.run(CHARTS) == [0] * charts
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.messages == []
    outside = [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert outside == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_compared_outputs_of_one_deep_folder_look_different(
    browser: Browser, reports: dict[str, JobReport], tmp_path: Path, width: int
) -> None:
    path = tmp_path / "page.html"
    path.write_text(html_of([reports["million"], reports["failing"]]), "utf-8")
    browser.open(path, width)
    legends = browser.run(
        "[...document.querySelectorAll('.chart')].map(chart => "
        "[...chart.querySelectorAll('.legendtext')].map(one => one.textContent))"
    )
    assert any(legends)
    for names in legends:
        assert len({*names}) == len(names)
    # All numbers are seen without scrolling the table.
    ends = (
        "[...document.querySelectorAll('td.number')].map(one => one.getBoundingClientRect().right)"
    )
    assert max(browser.run(ends)) <= width
    # No colour of the key is at the end of a line, with its word on the next one.
    lines = "[...document.querySelectorAll('.key')].map(one => one.getClientRects().length)"
    assert {*browser.run(lines)} == {1}
    browser.keep(f"report compared {width}")


@pytest.mark.slow
def test_the_data_of_a_million_rows_takes_a_megabyte_at_most(
    reports: dict[str, JobReport],
) -> None:
    page = html_of([reports["million"]])
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    # All that the page has of the job, with its own style and script.
    rest = re.sub(r"<script>[^<]*plotly\.js.*?</script>", "", page, flags=re.DOTALL)
    assert 10_000 < len(data[1]) < len(rest) <= 1_000_000


def faults(browser: Browser) -> list[str]:
    """What axe-core finds, in its words."""
    assert AXE.exists(), "axe-core is not installed: npm install --prefix .venv/node axe-core@4"
    if not browser.run("'axe' in window"):
        browser.run(AXE.read_text("utf-8") + "; 0")
    script = "axe.run().then(found => found.violations.map(one => "
    script += "`${one.id}: ${one.help}: ${one.nodes.map(node => node.html.slice(0, 90)).join()}`))"
    found: list[str] = browser.run(script)
    return found


@pytest.mark.slow
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
    assert faults(browser)
