"""What a job sends to OpenTelemetry arrives at a receiver of its protocol, or harms nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from redline import Endpoint
from redline.errors import ConfigError
from redline.job import Parts, Report, execute
from redline.job.settings import make_job
from redline.job.show import View
from redline.journal import Output, OutputLock
from redline.sim import SimSettings, parse_faults
from redline.sim.server import Sim
from support.otlp import Receiver, attributes, receiver
from support.starting import free_port
from support.summaries import from_summary

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

DURATION = "gen_ai.client.operation.duration"
USAGE = "gen_ai.client.token.usage"
SECRET = "Bearer planted-secret"
PROMPT = "Zanzibar is asked"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says nothing of OpenTelemetry."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


async def done(sim: Sim, folder: Path, otel: dict[str, Any], rows: int = 60) -> Report:
    keywords = {
        "prompt": f"{PROMPT} {{{{ n }}}}",
        "model": "sim",
        "endpoint": Endpoint(base_url=sim.base_url, name="a", proxy=""),
        "params": {"max_tokens": 32, "temperature": 0.5},
        "output": folder / "out.jsonl",
        "otel": otel,
    }
    return await execute(make_job([{"n": n} for n in range(rows)], keywords, os.environ))


async def test_what_arrives_is_what_the_server_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTLP_KEY", SECRET)
    settings = SimSettings(faults=parse_faults(["503=0.1", "429=0.1"]))
    with receiver() as seen:
        async with Sim(settings) as sim:
            otel = {
                "endpoint": seen.url,
                "headers_env": {"Authorization": "OTLP_KEY"},
                "service_name": "labels",
                "sample": 1,
            }
            report = await done(sim, tmp_path, otel)
            stats, port = sim.stats(), urlsplit(sim.base_url).port
    assert report.is_complete
    assert report.not_exported is None
    failed = stats["received"] - stats["answered"]
    assert failed > 0
    # Each request is an operation.
    by_error = seen.counts(DURATION, "error.type")
    assert by_error.pop(None) == stats["answered"] == 60
    assert by_error.total() == failed
    assert by_error == report.errors_by_kind
    tokens = seen.sums(USAGE, "gen_ai.token.type")
    assert tokens == {"input": stats["prompt_tokens"], "output": stats["completion_tokens"]}
    assert seen.counts(USAGE, "gen_ai.token.type") == {"input": 60, "output": 60}
    assert seen.values("redline.rows", "kind") == {"done": 60, "failed": 0}
    assert seen.values("redline.requests", "endpoint") == {"a": stats["received"]}
    assert seen.values("redline.request_errors", "kind") == report.errors_by_kind
    assert seen.values("redline.requests_running", "endpoint") == {"a": 0}
    assert sum(seen.values("redline.binds", "cause").values()) == 1
    assert seen.resource["service.name"] == "labels"
    for point in seen.points(DURATION):
        found = attributes(point)
        assert found["gen_ai.operation.name"] == "chat"
        assert found["gen_ai.provider.name"] == "openai"
        assert found["gen_ai.request.model"] == "sim"
        assert (found["server.address"], found["server.port"]) == ("127.0.0.1", port)
        assert list(point.explicit_bounds[:3]) == [0.01, 0.02, 0.04]
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert sum(point.bucket_counts) == point.count
    check_spans(seen, report, failed)
    # Neither texts nor rows nor the key are in it.
    whole = b"".join(seen.bodies)
    output = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    for secret in (PROMPT, "Zanzibar", SECRET, output["output"]):
        assert secret.encode() not in whole
    assert {one["authorization"] for one in seen.headers} == {SECRET}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept


def check_spans(seen: Receiver, report: Report, failed: int) -> None:
    """One for each call, whose events are the attempts that failed."""
    spans = seen.spans
    assert len(spans) == report.succeeded == 60
    assert len({span.trace_id for span in spans}) == 60
    assert sum(len(span.events) for span in spans) == failed
    now_ns = time.time_ns()
    for span in spans:
        found = attributes(span)
        assert (span.name, span.kind, span.status.code) == ("chat sim", 3, 0)
        assert found["redline.attempts"] == len(span.events) + 1
        assert found["gen_ai.response.finish_reasons"]
        assert found["gen_ai.request.max_tokens"] == 32
        assert found["gen_ai.request.temperature"] == 0.5
        assert "error.type" not in found
        assert found["redline.waited"] >= 0
        # Within the job, by the wall clock.
        assert now_ns - 120e9 < span.start_time_unix_nano < span.end_time_unix_nano < now_ns
        for number, event in enumerate(span.events, 1):
            assert event.name == "redline.attempt.failed"
            told = attributes(event)
            assert told["redline.attempt.number"] == number
            assert told["error.type"] in report.errors_by_kind
            assert told["http.response.status_code"] in (429, 503)
            assert span.start_time_unix_nano <= event.time_unix_nano <= span.end_time_unix_nano
    tokens = sum(attributes(span)["gen_ai.usage.output_tokens"] for span in spans)
    assert tokens == report.output_tokens


async def test_only_what_was_added_since_is_sent_if_that_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")

    async def rows() -> AsyncIterator[dict[str, int]]:
        for n in range(60):
            yield {"n": n}
            await asyncio.sleep(0.05)

    with receiver() as seen:
        async with Sim() as sim:
            endpoint = Endpoint(base_url=sim.base_url, name="a", proxy="")
            otel = {"endpoint": seen.url, "every_s": 1}
            keywords = {"prompt": "{{ n }}", "model": "sim", "endpoint": endpoint, "otel": otel}
            await execute(make_job(rows(), keywords, os.environ))
    exports = range(len(seen.exports))
    assert len(exports) > 1
    counts = [sum(one.count for one in seen.points(DURATION, at)) for at in exports]
    assert sum(counts) == 60
    assert max(counts) < 60
    assert sum(seen.values("redline.rows", "kind", at)["done"] for at in exports) == 60
    # Each begins where the one before ended.
    times = [
        (point.start_time_unix_nano, point.time_unix_nano)
        for at in exports
        for point in seen.points(DURATION, at)
    ]
    assert all(one[1] <= other[0] for one, other in pairwise(times))


async def test_the_variables_of_the_sdk_direct_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as seen:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", seen.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=test")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "by the environment")
        async with Sim() as sim:
            report = await done(sim, tmp_path, {"sample": 1}, rows=5)
    assert report.not_exported is None
    assert len(seen.spans) == 5
    assert {one["x-team"] for one in seen.headers} == {"blue"}
    assert seen.resource["service.name"] == "by the environment"
    assert seen.resource["deployment"] == "test"


async def test_a_job_that_cannot_begin_sends_nothing(tmp_path: Path) -> None:
    with receiver() as seen:
        async with Sim() as sim:
            with (
                OutputLock(Output.at(tmp_path / "out.jsonl")),
                pytest.raises(ConfigError, match="being written"),
            ):
                await done(sim, tmp_path, {"endpoint": seen.url, "sample": 1})
    assert not seen.headers


async def test_variables_that_cannot_be_used_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    async with Sim() as sim:
        with pytest.raises(ConfigError, match="OpenTelemetry cannot be set up: max_export_batch"):
            await done(sim, tmp_path, {})
    assert not list(tmp_path.iterdir())


async def test_the_environment_can_switch_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with receiver() as seen:
        async with Sim() as sim:
            report = await done(sim, tmp_path, {"endpoint": seen.url, "sample": 1}, rows=5)
    assert report.succeeded == 5
    assert not seen.headers


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("refuses", "HTTP 401"),
        ("holds", "no response within 3 s of the job's end"),
        ("is absent", "connection refused"),
    ],
)
async def test_a_receiver_that_fails_does_the_job_no_harm(
    tmp_path: Path, how: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with receiver() as seen:
        seen.is_held = how == "holds"
        seen.status = 401 if how == "refuses" else 200
        url = f"http://127.0.0.1:{free_port()}" if how == "is absent" else seen.url
        async with Sim() as sim:
            begun_s = time.monotonic()
            # It returns although a request is held for as long as the receiver is there.
            report = await done(sim, tmp_path, {"endpoint": url, "sample": 1}, rows=20)
            whole_s = time.monotonic() - begun_s
        assert not seen.released.is_set()
    assert report.is_complete
    assert report.succeeded == 20
    host = url.removeprefix("http://")
    assert report.not_exported == (
        f"20 of 20 spans and the last metrics did not reach OpenTelemetry at {host}: {why}"
    )
    if how == "holds":
        # What it waited for the receiver is not the job's time.
        assert report.elapsed_s < whole_s - 2.9
    assert capfd.readouterr() == ("", "")


async def test_more_spans_than_wait_are_counted_as_lost(tmp_path: Path) -> None:
    with receiver() as seen:
        seen.is_held = True
        async with Sim() as sim:
            otel = {"endpoint": seen.url, "sample": 1}
            report = await done(sim, tmp_path, otel, rows=3_000)
    assert report.succeeded == 3_000
    assert report.not_exported is not None
    assert report.not_exported.startswith("3,000 of 3,000 spans and the last metrics")


class Watching:
    """A display that keeps what is told of OpenTelemetry."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self._heard = {word: asyncio.Event() for word in ("out of reach", "accepts data again")}

    async def show(self, view: View) -> None:
        while True:
            self.told |= view.telemetry_notices
            for word, heard in self._heard.items():
                if any(word in text for text in self.told.values()):
                    heard.set()
            await asyncio.sleep(0.05)

    async def until(self, word: str) -> None:
        async with asyncio.timeout(60):
            await self._heard[word].wait()


async def test_an_outage_is_told_once_and_its_end_too() -> None:
    port, display = free_port(), Watching()
    served: list[Receiver] = []

    with ExitStack() as stack:

        async def rows() -> AsyncIterator[dict[str, int]]:
            yield {"n": 0}
            await display.until("out of reach")
            served.append(stack.enter_context(receiver(port)))
            yield {"n": 1}
            await display.until("accepts data again")

        async with Sim() as sim:
            keywords = {
                "prompt": "{{ n }}",
                "model": "sim",
                "endpoint": Endpoint(base_url=sim.base_url, name="a", proxy=""),
                "otel": {"endpoint": f"http://127.0.0.1:{port}", "every_s": 1},
            }
            made = make_job(rows(), keywords, os.environ)
            report = await execute(made, Parts(display=display))
    assert report.not_exported is None
    assert list(display.told.values()) == [
        f"OpenTelemetry at 127.0.0.1:{port} is out of reach: connection refused; the job continues "
        "without it",
        f"OpenTelemetry at 127.0.0.1:{port} accepts data again",
    ]
    (seen,) = served
    assert seen.values("redline.rows", "kind")["done"] == 2


def started(folder: Path, url: str, *flags: str) -> subprocess.Popen[str]:
    """A job of the command line, with its settings in redline.toml."""
    rows = "".join(f'{{"prompt": "Say {n}"}}\n' for n in range(1_000))
    (folder / "in.jsonl").write_text(rows)
    (folder / "redline.toml").write_text(f'[otel]\nendpoint = "{url}"\nsample = 1.0\n')
    command = [sys.executable, "-m", "redline", "run", "in.jsonl", "--endpoint", "sim"]
    command += ["-o", "out.jsonl", *flags]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_held", [False, True])
def test_what_is_left_is_sent_after_ctrl_c(tmp_path: Path, is_held: bool) -> None:
    with receiver() as seen, started(tmp_path, seen.url, "--rps", "50") as process:
        seen.is_held = is_held
        assert process.stderr is not None
        out = tmp_path / "out.jsonl"
        while not (out.exists() and out.read_bytes().count(b"\n") > 20):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        # It ends although requests are held for as long as the receiver is there.
        assert process.wait() == 130
    rows = len(out.read_text().splitlines())
    assert 20 < rows < 1_000
    if is_held:
        lost = f"{rows} of {rows} spans and the last metrics did not reach OpenTelemetry at"
        assert f"{lost} 127.0.0.1:{seen.port}: no response" in said
    else:
        assert "OpenTelemetry" not in said
        assert len(seen.spans) == rows
        assert seen.values("redline.rows", "kind")["done"] == rows


def test_the_command_line_says_what_was_lost_and_prints_no_traceback(tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    with started(tmp_path, f"http://{host}", "--limit", "30") as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait() == 0
    lines = from_summary(said).splitlines()
    assert lines[0] == "30 rows = 30 succeeded + 0 failed + 0 unfinished"
    lost = "30 of 30 spans and the last metrics did not reach OpenTelemetry at"
    assert f"{lost} {host}: connection refused" in lines
    assert "Traceback" not in said
    assert "opentelemetry" not in said
