"""The dashboard of a gateway in headless Chromium, before a fleet that changes meanwhile."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.browser import PROGRAM, Browser
from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess, fleet_of
from support.starting import free_port
from support.until import wait_until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
in_browser = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
AXE = Path(sys.prefix) / "node/node_modules/axe-core/axe.min.js"
PHONE, DESK = 400, 1280
# The state of a server that was killed has to be seen by then.
WITHIN_S = 2.0
# Between two calls of a thread: without it, callers keep the cores busy that the page needs.
PAUSE_S = 0.02
CUT = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
OUTLINE = "getComputedStyle(document.activeElement).outlineStyle"
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
    """Calls one after the other, with pauses, while it is entered."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.wait(PAUSE_S):
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
    assert AXE.exists(), "axe-core is not installed: npm install --prefix .venv/node axe-core@4"
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
            dead = f"{ROWS}.some(text => text.includes(':{one.port}') && text.includes('degraded'))"
            back = f"{ROWS}.some(text => text.includes(':{one.port}') && text.includes('ready'))"
            noted = "document.getElementById('changes').innerText"
            for times in (1, 2):
                one.kill()
                changed = f"{noted}.split('is now degraded; it was ready').length > {times}"
                shown(browser, f"{dead} && {changed}", WITHIN_S)
                # Its last answers' latency is still known.
                assert browser.run(f"{ROWS}.every(text => text.includes(' ms'))")
                one.start()
                shown(browser, back, 40)
            assert [message for message in browser.messages if "favicon" not in message] == []
            assert {url.split("?")[0] for url in browser.requests} <= {
                f"{root}/",
                f"{root}/events",
            } | {url for url in browser.requests if url.startswith("data:")}


@pytest.mark.slow
@in_browser
def test_the_page_is_accessible_and_fits_the_screen(browser: Browser, tmp_path: Path) -> None:
    with fleet_of(2, "--faults", "500=0.3", "--latency", "0.2") as (one, two):
        flags = ("--endpoint", one.base_url, "--endpoint", two.base_url)
        with Serve(tmp_path, *flags) as serve, load(serve.url, 2):
            begin_batch(serve)
            root = serve.url.removesuffix("/v1")
            one.kill()
            for width, dark in itertools.product((DESK, PHONE), (False, True)):
                browser.visit(f"{root}/", width, dark=dark)
                for full in ("faults", "changes", "batches", "tenants"):
                    shown(browser, f"document.querySelectorAll('#{full} tbody tr').length > 0", 20)
                assert browser.run("document.documentElement.scrollWidth") <= width
                is_marked = "box => getComputedStyle(box).backgroundImage !== 'none'"
                # What is cut has a shadow.
                assert browser.run(f"{CUT}.every({is_marked})")
                if width == DESK:
                    # No column is cut.
                    assert browser.run(f"{CUT}.map(box => box.firstChild.id)") == []
                assert violations(browser) == []
                dead = (
                    f"{ROWS}.some(text => text.includes(':{one.port}') && !text.includes('ready'))"
                )
                shown(browser, dead, 20)
                browser.keep(f"dashboard {width} {'dark' if dark else 'light'}")


def begin_batch(serve: Serve) -> None:
    """One that goes on for as long as the tests take."""
    message = {"role": "user", "content": "hello"}
    ask = {"url": "/v1/chat/completions", "body": {"model": "m", "messages": [message]}}
    lines = (json.dumps({"custom_id": str(n), "method": "POST", **ask}) for n in range(3_000))
    client = serve.client()
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


@in_browser
def test_a_key_is_asked_for_and_everything_is_reached_by_keyboard(
    browser: Browser, tmp_path: Path
) -> None:
    keys = keys_of(tmp_path, "chief", "other")
    with SimProcess() as sim:
        toml = f"""
            [serve]
            keys = "keys.jsonl"
            [tenants.chief]
            admin = true
            [endpoints.one]
            base_url = "{sim.base_url}"
        """
        with Serve(tmp_path, toml=toml) as serve:
            browser.visit(serve.url.removesuffix("/v1") + "/", DESK)
            shown(browser, "!document.getElementById('login').hidden", 20)
            assert not browser.run("document.getElementById('all').checkVisibility()")
            assert tabbed(browser) == "Skip to the endpoints"
            assert tabbed(browser) == "key"
            browser.ask("Input.insertText", text=keys["other"])
            press(browser, "Enter")
            refused = "document.getElementById('login-error').textContent.includes('may not see')"
            shown(browser, refused, 20)
            assert browser.run(ROWS) == []
            browser.run("document.activeElement.select()")
            browser.ask("Input.insertText", text=keys["chief"])
            press(browser, "Enter")
            shown(browser, f"{ROWS}.some(text => text.includes('ready'))", 20)
            # The key is kept for this tab, and is in no address.
            browser.ask("Page.reload")
            shown(browser, f"{ROWS}.some(text => text.includes('ready'))", 20)
            assert not any(keys["chief"] in url for url in browser.requests)
            assert tabbed(browser) == "Skip to the endpoints"
            assert browser.run("document.activeElement.getBoundingClientRect().left") >= 0
            press(browser, "Enter")
            assert browser.run("document.activeElement.id") == "endpoints-title"
            # What is focused stays so while the figures change.
            for name in ("endpoints", "classes", "tenants", "batches", "changes", "faults"):
                assert tabbed(browser) == f"{name}-title"
                assert browser.run(OUTLINE) != "none"
            up = browser.run("document.getElementById('facts').textContent")
            shown(browser, f"document.getElementById('facts').textContent !== {up!r}", 20)
            assert focused(browser) == "faults-title"


def press(browser: Browser, key: str) -> None:
    """A key, as a keyboard sends it."""
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    facts = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    browser.ask("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
    browser.ask("Input.dispatchKeyEvent", type="keyUp", **facts)


def focused(browser: Browser) -> str:
    """What names the element that has the focus."""
    named = "one.getAttribute('aria-labelledby') || one.id || one.textContent"
    return str(browser.run(f"(one => {named})(document.activeElement)"))


def tabbed(browser: Browser) -> str:
    """The same, after the key Tab."""
    press(browser, "Tab")
    return focused(browser)


def test_an_endpoint_that_fails_often_is_not_said_to_be_down(tmp_path: Path) -> None:
    with (
        SimProcess("--latency", "0.05", "--faults", "500=0.5") as sim,
        Serve(tmp_path, "--endpoint", sim.base_url) as serve,
        load(serve.url, 8),
    ):
        until_s = time.monotonic() + 20
        while True:
            _, state = serve.page("/status")
            binding = state["binding"]
            assert binding["cause"] != "down", state
            if binding["cause"] == "failing":
                break
            assert time.monotonic() < until_s, state
            time.sleep(0.1)
        assert "still go to 1 of 1" in binding["sentence"]
        assert "HTTP 500" in state["endpoints"][0]["reason"]
        assert state["endpoints"][0]["latency_s"] > 0.04


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


def test_a_call_that_waits_for_a_rate_limit_does_not_count_as_running(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.2") as sim:
        flags = ("--endpoint", sim.base_url, "--requests", "5/1s")
        with Serve(tmp_path, *flags) as serve, load(serve.url, 8):
            wait_until(lambda: serve.page("/status")[1]["waiting"] > 5)
            wait_until(lambda: len(serve.page("/status")[1]["history"]) > 2)
            state = serve.page("/status")[1]
    assert state["running"] + state["waiting"] <= 8
    assert all(running + waiting <= 8 for *_, running, waiting in state["history"])


def test_the_items_of_a_function_run_or_wait_for_a_batch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import pathlib, time\n"
        "def same(items):\n"
        "    while not pathlib.Path('go').exists():\n"
        "        time.sleep(0.01)\n"
        "    return items\n",
        "utf-8",
    )
    with (
        Serve(tmp_path, "--function", "mine:same", "--max-batch-size", "2") as serve,
        ThreadPoolExecutor(1) as threads,
    ):
        body = json.dumps({"input": [*"abcdef"]}).encode()
        asked = urllib.request.Request(f"{serve.url}/same", body)
        answer = threads.submit(urllib.request.urlopen, asked, timeout=30)
        try:
            wait_until(lambda: serve.page("/status")[1]["running"] == 2)
            state = serve.page("/status")[1]
        finally:
            (tmp_path / "go").touch()
        answer.result().close()
    assert state["waiting"] == 4
    assert "4 items wait for a batch" in state["binding"]["sentence"]


def test_an_idle_endpoint_without_the_model_of_the_waiting_calls_is_not_counted(
    tmp_path: Path,
) -> None:
    with fleet_of(2, "--latency", "0.2") as (idle, full):
        toml = f"""
            [endpoints.idle]
            base_url = "{idle.base_url}"
            models = {{ other = "o" }}
            [endpoints.full]
            base_url = "{full.base_url}"
            models = {{ m = "m" }}
            concurrency = 1
        """
        with Serve(tmp_path, toml=toml) as serve, load(serve.url):
            until_s = time.monotonic() + 20
            while (binding := serve.page("/status")[1]["binding"])["cause"] != "endpoints":
                assert time.monotonic() < until_s, binding
                time.sleep(0.1)
            assert binding["sentence"].startswith("Every slot of 1 endpoint is taken."), binding


def test_an_endpoint_that_was_never_reached_has_a_reason(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with Serve(tmp_path, "--endpoint", url) as serve, load(serve.url, 2):
        until_s = time.monotonic() + 60
        while (endpoint := serve.page("/status")[1]["endpoints"][0])["state"] != "gone":
            assert time.monotonic() < until_s, endpoint
            time.sleep(0.1)
        assert endpoint["reason"] == "the endpoint is out of reach"


def test_failed_attempts_are_not_shown_as_answers(tmp_path: Path) -> None:
    with (
        SimProcess("--faults", "500=1") as sim,
        Serve(tmp_path, "--endpoint", sim.base_url) as serve,
        load(serve.url, 2),
    ):
        until_s = time.monotonic() + 60
        while (endpoint := serve.page("/status")[1]["endpoints"][0])["errors"] < 20:
            assert time.monotonic() < until_s, endpoint
            time.sleep(0.1)
        assert endpoint["per_s"] == 0
