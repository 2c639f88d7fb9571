"""The dashboard of a gateway in headless Chromium, before a fleet that changes meanwhile."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.browser import PROGRAM, Browser
from support.serve_process import Serve
from support.sim_process import SimProcess, fleet_of

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
in_browser = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
AXE = Path(sys.prefix) / "node/node_modules/axe-core/axe.min.js"
PHONE, DESK = 400, 1280
ROWS = "[...document.querySelectorAll('#endpoints tbody tr')].map(row => row.innerText)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def ask(url: str) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    asked = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@contextmanager
def load(url: str, threads: int = 4) -> Iterator[None]:
    """Calls without a pause, while it is entered."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            ask(url)

    running = [threading.Thread(target=go_on) for _ in range(threads)]
    for one in running:
        one.start()
    try:
        yield
    finally:
        is_over.set()
        for one in running:
            one.join()


def shown(browser: Browser, script: str, within_s: float) -> float:
    """Seconds until the page shows it."""
    began_s = time.monotonic()
    while not browser.run(script):
        assert time.monotonic() < began_s + within_s, browser.run("document.body.innerText")
        time.sleep(0.05)
    return time.monotonic() - began_s


def violations(browser: Browser) -> list[str]:
    browser.run(AXE.read_text("utf-8") + "; true")
    found = browser.run("axe.run().then(done => done.violations.map(one => one.id + one.help))")
    return list(found)


@in_browser
def test_a_server_that_dies_and_comes_back_is_shown_without_a_reload(
    browser: Browser, tmp_path: Path
) -> None:
    with fleet_of(2, "--latency", "0.05") as (one, two):
        flags = ("--endpoint", one.base_url, "--endpoint", two.base_url)
        with Serve(tmp_path, *flags) as serve, load(serve.url):
            root = serve.url.removesuffix("/v1")
            browser.visit(f"{root}/", DESK)
            shown(browser, f"{ROWS}.filter(text => text.includes('ready')).length === 2", 20)
            one.kill()
            dead = f"{ROWS}.some(text => text.includes(':{one.port}') && text.includes('degraded'))"
            shown(browser, dead, 20)
            one.start()
            back = f"{ROWS}.some(text => text.includes(':{one.port}') && text.includes('ready'))"
            shown(browser, back, 40)
            changes = browser.run("document.getElementById('changes').innerText")
            assert "is degraded, and was ready" in changes
            assert [message for message in browser.messages if "favicon" not in message] == []
            assert {url.split("?")[0] for url in browser.requests} <= {
                f"{root}/",
                f"{root}/events",
            } | {url for url in browser.requests if url.startswith("data:")}


@in_browser
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed")
@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_accessible_and_fits_the_screen(
    browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    flags = ("--faults", "500=0.3")
    with SimProcess(*flags) as sim, Serve(tmp_path, "--endpoint", sim.base_url) as serve:
        assert 500 in [ask(serve.url) for _ in range(30)]
        browser.visit(serve.url.removesuffix("/v1") + "/", width, dark=dark)
        shown(browser, "document.querySelectorAll('#faults tbody tr').length > 0", 20)
        browser.screenshot(tmp_path / f"dashboard-{width}-{dark}.png")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert violations(browser) == []


def test_the_state_is_json_that_says_what_binds(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.2") as sim:
        flags = ("--endpoint", sim.base_url, "-c", "2")
        with Serve(tmp_path, *flags) as serve, load(serve.url, 12):
            until_s = time.monotonic() + 20
            while True:
                _, state = serve.page("/status")
                if state["binding"]["cause"] == "concurrency" and state["answers_per_s"] > 1:
                    break
                assert time.monotonic() < until_s, state
                time.sleep(0.2)
            assert state["waiting"] >= 8
            assert state["endpoints"][0]["in_flight"] == 2
            assert "Raise -c" in state["binding"]["advice"]
