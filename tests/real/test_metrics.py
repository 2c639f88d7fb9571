"""The metrics page of a job has the figures of its servers, and Prometheus takes all of it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.message import Message
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from redline import Endpoint, Limits
from redline.errors import ConfigError
from redline.job import Parts, Report, execute
from redline.job.settings import make_job
from redline.route import read_metrics
from redline.sim import SimSettings, parse_faults, parse_latency
from redline.sim.server import Sim
from support import starting

pytest.importorskip("prometheus_client")
pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "monitoring.md"
DASHBOARD = ROOT / "docs" / "grafana" / "redline.json"
ERRORS = "redline_request_errors_total"
COUNTED = "redline_request_duration_seconds_count"
PRICES = {"sim": {"input": 1, "output": 2}}
OPENER = build_opener(ProxyHandler({}))
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)


class Rows:
    """A row every `every_s` while it is not paused, until it is over."""

    def __init__(self, every_s: float) -> None:
        self.sent = 0
        self.is_paused = self.is_over = False
        self._every_s = every_s

    async def __aiter__(self) -> AsyncIterator[dict[str, int]]:
        while not self.is_over:
            if not self.is_paused:
                self.sent += 1
                yield {"n": self.sent}
            await asyncio.sleep(self._every_s)


class Job:
    """A job in progress at two simulated providers, and its metrics page."""

    def __init__(self, every_s: float) -> None:
        self.rows = Rows(every_s)
        self.sims: list[Sim] = []
        self.url = ""
        self.report: Report | None = None

    async def page(self) -> str:
        """Its text."""
        shown = await asyncio.to_thread(fetched, self.url)
        assert shown.status == 200
        return shown.text

    async def figures(self) -> dict[str, float]:
        """The values of the page by name and labels, once every row is done.

        Durations follow with the window that their calls ended in.
        """
        async with asyncio.timeout(60):
            while True:
                found = samples(await self.page())
                is_done = not total(found, "redline_job_rows", 'kind="left"')
                if is_done and total(found, COUNTED) >= self.rows.sent:
                    return found
                await asyncio.sleep(0.1)


@asynccontextmanager
async def running(
    folder: Path, *, every_s: float = 0.005, faults: Sequence[str] = ()
) -> AsyncIterator[Job]:
    job = Job(every_s)
    settings = SimSettings(latency=parse_latency("0.02-0.05"), faults=parse_faults(faults))
    async with Sim(settings) as a, Sim(settings) as b:
        job.sims = [a, b]
        keywords = {
            "prompt": "Say {{ n }}",
            "model": "sim",
            "endpoint": [
                Endpoint(
                    base_url=sim.base_url, name=name, proxy="", limits=Limits(requests="90/1s")
                )
                for sim, name in ((a, "a"), (b, "b"))
            ],
            "prices": PRICES,
            "budget": "5usd",
            "params": {"max_tokens": 64},
            "output": folder / "out.jsonl",
            "metrics_port": 0,
        }
        begun = asyncio.Event()

        def on_metrics(url: str) -> None:
            job.url = url
            begun.set()

        made = make_job(job.rows, keywords, {})
        task = asyncio.create_task(execute(made, Parts(on_metrics=on_metrics)))
        try:
            await begun.wait()
            yield job
            job.rows.is_over = True
            job.report = await task
        finally:
            task.cancel()
            await asyncio.wait([task])


class Shown(NamedTuple):
    """An answer of the page's server."""

    status: int
    headers: Message
    text: str


def fetched(url: str, data: bytes | None = None) -> Shown:
    try:
        reply = OPENER.open(url, data, timeout=10)
    except HTTPError as error:
        reply = error
    with reply:
        return Shown(reply.status, reply.headers, reply.read().decode())


def samples(page: str) -> dict[str, float]:
    """The page's values, by name and labels."""
    return {
        f"{name}{{{labels}}}" if labels else name: float(value)
        for name, labels, value in SAMPLE.findall(page)
    }


def total(found: dict[str, float], name: str, *labels: str) -> float:
    return sum(
        value
        for key, value in found.items()
        if key.partition("{")[0] == name and all(label in key for label in labels)
    )


async def test_the_figures_are_those_of_the_servers(tmp_path: Path) -> None:
    async with running(tmp_path, faults=["503=0.15"]) as job:
        await until_rows(job, 80)
        earlier = samples(await job.page())
        await until_rows(job, 160)
        job.rows.is_paused = True
        found = await job.figures()
        stats = [sim.stats() for sim in job.sims]
        shown = await asyncio.to_thread(fetched, job.url)
    assert shown.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for name, seen in zip("ab", stats, strict=True):
        at = f'endpoint="{name}"'
        assert total(found, "redline_requests_total", at) == seen["received"] > 40
        failed = seen["received"] - seen["answered"]
        assert total(found, ERRORS, at) == failed > 2
        assert total(found, "redline_tokens_total", at, "output") == seen["completion_tokens"]
        assert total(found, "redline_tokens_total", at, 'kind="input"') == seen["prompt_tokens"]
    rows = job.rows.sent
    assert total(found, "redline_rows_total", "done") == rows
    assert total(found, "redline_job_rows", 'kind="done"') == rows
    assert total(found, COUNTED) == rows
    inside = [f'le="{bound}"' for bound in ("0.01", "0.1")]
    counts = [total(found, "redline_request_duration_seconds_bucket", one) for one in inside]
    # Answers take 20 to 50 ms, and whatever else the machine has to do.
    assert counts[0] == 0
    assert counts[1] > rows / 2
    assert total(found, "redline_binds") == 1
    report = job.report
    assert report is not None
    # A 503 is tried again at the other one, as a rule.
    retries = total(found, "redline_retries_total")
    assert 0 < total(found, "redline_failovers_total") == report.failovers <= retries
    assert report.spent_usd is not None
    assert total(found, "redline_cost_usd_total") == pytest.approx(report.spent_usd)
    assert total(found, "redline_budget_used_ratio") == pytest.approx(report.spent_usd / 5)
    counters = [key for key in earlier if "_total" in key or "_bucket" in key]
    assert len(counters) > 30
    assert all(earlier[key] <= found[key] for key in counters)
    # Labels have the same values however many rows there are. Some come with the first error, or
    # with the first second.
    new = {key.partition("{")[0] for key in found.keys() - earlier.keys()}
    assert new <= {ERRORS, "redline_limit_used_ratio", "redline_endpoint_state"}
    # What the dashboard asks for is on the page, and what is on the page is explained.
    names = {re.sub("_(bucket|count|sum)$", "", key.partition("{")[0]) for key in found}
    shown_names = set(re.findall(r"redline_\w+", " ".join(queries())))
    assert {re.sub("_bucket$", "", name) for name in shown_names} <= names
    assert names <= set(re.findall(r"^\| `(redline_\w+)` \|", DOCS.read_text("utf-8"), re.M))
    served = read_metrics(shown.text.encode())
    assert served is not None
    assert served.running == 0


async def until_rows(job: Job, count: int) -> None:
    """Returns when so many rows are done."""
    async with asyncio.timeout(60):
        while True:
            found = samples(await job.page())
            if total(found, "redline_rows_total") >= count:
                return
            await asyncio.sleep(0.1)


async def test_other_paths_and_methods_are_refused_in_words(tmp_path: Path) -> None:
    async with running(tmp_path) as job:
        missing = await asyncio.to_thread(fetched, job.url.removesuffix("metrics"))
        assert (missing.status, "/metrics" in missing.text) == (404, True)
        posted = await asyncio.to_thread(fetched, job.url, b"x")
        assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")


async def test_a_port_in_use_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with running(tmp_path) as job:
        port = job.url.split(":")[-1].removesuffix("/metrics")
        keywords = {
            "endpoint": "sim",
            "output": tmp_path / "other.jsonl",
            "metrics_port": int(port),
        }
        made = make_job([{"prompt": "hi"}], keywords, {})
        with pytest.raises(ConfigError, match="the metrics page cannot listen"):
            await execute(made)
    assert not list(tmp_path.glob("other*"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    async with running(tmp_path) as job:
        await until_rows(job, 50)
        page = await job.page()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def queries() -> list[str]:
    """Those of the dashboard's panels, as Grafana sends them."""
    board = json.loads(DASHBOARD.read_text("utf-8"))
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = {"$job": ".+", "$instance": ".+", "$__rate_interval": "3s"}
    for name, value in variables.items():
        found = [query.replace(name, value) for query in found]
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
async def test_every_query_of_the_dashboard_returns_data(tmp_path: Path) -> None:
    left = queries()
    assert len(left) > 20
    async with running(tmp_path, every_s=0.02, faults=["503=0.15"]) as job:
        await until_rows(job, 20)
        with prometheus(tmp_path, job.url) as port:
            for _ in range(100):
                left = [query for query in left if not await asyncio.to_thread(asked, port, query)]
                if not left:
                    break
                await asyncio.sleep(0.2)
    assert left == []


@contextmanager
def prometheus(folder: Path, url: str) -> Iterator[int]:
    """The port of a Prometheus that reads the page, while it is entered."""
    target = url.removeprefix("http://").removesuffix("/metrics")
    config, port = folder / "prometheus.yml", starting.free_port()
    config.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
        "scrape_configs:\n"
        f"- {{job_name: redline, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = starting.start(command, lambda: starting.answers(port))
    try:
        yield port
    finally:
        starting.end(process, signal.SIGTERM)


def asked(port: int, query: str) -> bool:
    """Prometheus has a number for the query."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}"
    shown = fetched(url)
    if shown.status == 503:
        return False
    assert shown.status == 200, f"{query}: {shown.text}"
    values = [float(one["value"][1]) for one in json.loads(shown.text)["data"]["result"]]
    return bool(values) and all(map(math.isfinite, values))
