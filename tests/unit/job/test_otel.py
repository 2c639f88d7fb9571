"""What a job tells OpenTelemetry, through the providers of the program and the SDK's memory."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import redline
from redline.errors import ConfigError, Rejected, ServerFailed
from redline.job import execute
from redline.job.settings import make_job

SPANS = InMemorySpanExporter()
READER = InMemoryMetricReader()
DURATION = "gen_ai.client.operation.duration"


TRACERS = TracerProvider(shutdown_on_exit=False)
TRACERS.add_span_processor(SimpleSpanProcessor(SPANS))
METERS = MeterProvider([READER], shutdown_on_exit=False)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Of the program's providers, which the API lets a process set only once."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: TRACERS)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: METERS)
    SPANS.clear()
    yield SPANS
    SPANS.clear()


def points(name: str) -> list[Any]:
    """The data points of a metric now: of all jobs of the process so far."""
    data = READER.get_metrics_data()
    return [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def counts(name: str, by: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for point in points(name):
        value = point.count if hasattr(point, "count") else point.value
        found[point.attributes.get(by)] += value
    return found


class Answers:
    """A function that fails some rows first, by their number."""

    __name__ = "answers"

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    async def __call__(self, row: dict[str, int]) -> str:
        n = row["n"]
        self.asked[n] += 1
        if n == 1 and self.asked[n] < 3:
            raise ServerFailed("HTTP 503: the secret text", status=503)
        if n == 2:
            raise Rejected("it never will: the secret text")
        return "the secret answer"


async def ran(rows: int, **otel: Any) -> tuple[redline.Report, Answers]:
    answers = Answers()
    keywords = {"call": answers, "otel": otel, "concurrency": 8}
    job = make_job([{"n": n, "text": "the secret row"} for n in range(rows)], keywords, os.environ)
    return await execute(job), answers


async def test_a_call_is_a_span_and_a_failed_attempt_its_event(
    memory: InMemorySpanExporter,
) -> None:
    report, answers = await ran(3, sample=1)
    assert (report.succeeded, report.failed, report.not_exported) == (2, 1, None)
    spans = {span.attributes["redline.attempts"]: span for span in memory.get_finished_spans()
             if span.status.is_ok}  # fmt: skip
    assert len(memory.get_finished_spans()) == 3
    retried = spans[3]
    assert [event.name for event in retried.events] == ["redline.attempt.failed"] * 2
    assert [event.attributes["error.type"] for event in retried.events] == ["server_failed"] * 2
    assert [event.attributes["redline.attempt.number"] for event in retried.events] == [1, 2]
    (failed,) = [span for span in memory.get_finished_spans() if not span.status.is_ok]
    assert failed.attributes["error.type"] == "rejected"
    assert failed.status.description is None
    for span in memory.get_finished_spans():
        assert span.kind is trace.SpanKind.CLIENT
        assert span.name == "request"
        assert span.attributes["redline.endpoint"] == "answers"
        assert "secret" not in span.to_json()
    assert answers.asked.total() == 5


async def test_metrics_count_attempts(memory: InMemorySpanExporter) -> None:
    before, rows = counts(DURATION, "error.type"), counts("redline.rows", "kind")
    await ran(3, sample=0)
    since = counts(DURATION, "error.type") - before
    assert since == {None: 2, "server_failed": 2, "rejected": 1}
    assert counts("redline.rows", "kind") - rows == {"done": 2, "failed": 1}
    (point, *_) = points(DURATION)
    assert tuple(point.explicit_bounds) == tuple(0.01 * 2**n for n in range(14))
    assert not memory.get_finished_spans()
    assert "secret" not in str(READER.get_metrics_data())


async def test_each_call_is_as_likely_to_be_sampled(memory: InMemorySpanExporter) -> None:
    calls, share = 4_000, 0.25
    await ran(calls, sample=share)
    found = len(memory.get_finished_spans())
    # Six standard deviations of a binomial distribution.
    assert abs(found - calls * share) < 6 * (calls * share * (1 - share)) ** 0.5


async def test_spans_are_below_the_span_that_the_program_has_open(
    memory: InMemorySpanExporter,
) -> None:
    with trace.get_tracer("program").start_as_current_span("the program's") as outer:
        await ran(1, sample=1)
    inner, last = memory.get_finished_spans()
    assert last.name == "the program's"
    assert inner.parent.span_id == outer.get_span_context().span_id


async def test_counters_of_one_job_after_another_add_up(memory: InMemorySpanExporter) -> None:
    before = counts("redline.rows", "kind")
    await ran(4)
    await ran(4)
    assert counts("redline.rows", "kind") - before == {"done": 6, "failed": 2}


@pytest.mark.parametrize(
    ("stated", "what", "where"),
    [
        ({"endpont": "x"}, "unknown setting: endpont", "otel"),
        ({"endpoint": "127.0.0.1:4318"}, "endpoint is not an http:// or https:// URL", "otel"),
        ({"endpoint": 4318}, "endpoint must be text, not a whole number", "otel"),
        ({"endpoint": "http://a:b@h"}, "endpoint must not contain a user name or password", "otel"),
        ({"endpoint": "http://h/?a=b"}, "endpoint must not have a query or fragment", "otel"),
        (
            {"endpoint": "http://h:4318/v1/traces"},
            "endpoint must not end in the path of a signal, such as /v1/traces",
            "otel",
        ),
        ({"headers": "x"}, "headers must be a table, not text", "otel"),
        ({"headers": {"x": 1}}, "a value of headers must be text, not a whole number", "otel"),
        (
            {"headers": {1: "x"}},
            "a setting cannot be read: Expected `str`, got `int` - at `key` in `$.headers`",
            "otel",
        ),
        ({"headers": {"x y": "z"}}, "not a header: 'x y'", "otel, headers"),
        (
            {"headers": {"x": "planted\n"}},
            "the value of x is empty, or contains characters that are not allowed in a header",
            "otel, headers",
        ),
        (
            {"headers_env": {"x": "NOT_SET_ANYWHERE"}},
            "headers_env names NOT_SET_ANYWHERE, which is empty or not set",
            "[otel]",
        ),
        (
            {"headers_env": {"x": "planted-Key"}},
            "headers_env takes the name of an environment variable, but no variable with this "
            "name is set",
            "[otel]",
        ),
        ({"service_name": 3}, "service_name must be text, not a whole number", "otel"),
        (
            {"service_name": "x" * 256},
            "service_name must be a string of at most 255 printable characters",
            "otel",
        ),
        ({"sample": 1.5}, "sample must be a share of the calls, 0 to 1, not 1.5", "otel"),
        ({"sample": True}, "sample must be a share of the calls, 0 to 1, not True", "otel"),
        ({"sample": "nan"}, "sample must be a share of the calls, 0 to 1, not nan", "otel"),
        ({"every_s": 0}, "every_s must be 1 to 3,600 seconds, not 0", "otel"),
        ({"every_s": float("nan")}, "every_s must be 1 to 3,600 seconds, not nan", "otel"),
        ({"every_s": "10"}, "every_s must be a number, not text", "otel"),
        ({"every_s": True}, "every_s must be a number, not true or false", "otel"),
    ],
)
def test_a_wrong_setting_is_named(stated: dict[str, Any], what: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_job([], {"otel": stated}, {})
    assert (caught.value.what, caught.value.where) == (what, where)
    assert "planted" not in str(caught.value)


def test_settings_do_not_show_what_headers_hold() -> None:
    job = make_job([], {"otel": {"headers": {"x": "planted"}}}, {})
    assert "planted" not in repr(job)


@pytest.mark.parametrize("missing", ["opentelemetry", "requests"])
async def test_without_the_extra_the_command_that_installs_it_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    otel = {"endpoint": "http://127.0.0.1:9", "sample": 1}
    job = make_job([{"n": 1}], {"call": Answers(), "otel": otel}, {})
    with pytest.raises(ConfigError) as caught:
        await execute(job)
    assert "[otel] needs" in caught.value.what
    assert caught.value.hint == "pip install 'redline[otel]'"


async def test_names_are_those_that_the_conventions_package_has(
    memory: InMemorySpanExporter,
) -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
    from opentelemetry.semconv.attributes import error_attributes, server_attributes

    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics, error_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    await ran(3, sample=1)
    data = READER.get_metrics_data()
    assert data is not None
    found = {metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    for span in memory.get_finished_spans():
        found |= set(span.attributes)
    named = {name for name in found if not name.startswith("redline.")}
    assert len(named) >= 3
    assert named <= known
