"""`ThroughputMetrics` on whatever answers, and what it says of this process."""

from __future__ import annotations

import asyncio
import functools
import math
import sys
import time
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest

import redline
from redline.errors import ConfigError
from redline.measure import Answer, caller_of, figures_lines
from redline.measure.figures import ClientUse
from redline.measure.resources import bottleneck, gpu_reader
from redline.testing import ScriptedBackend
from redline.timeline import Quantiles
from redline.waist import Attempt

BACKEND = ScriptedBackend([redline.Reply(output="yes", input_tokens=3, output_tokens=5)])
USAGE = {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}


async def coroutine(row: Any) -> Any:
    await asyncio.sleep(0)
    return USAGE


def plain(row: Any) -> Any:
    return USAGE


async def generator(row: Any) -> AsyncIterator[str]:
    for word in ("a", "b", "c"):
        yield word


def plain_generator(row: Any) -> Iterator[str]:
    yield "a"


class Handler:
    async def __call__(self, row: Any) -> Any:
        return USAGE


async def of_lists(rows: list[Any]) -> list[Any]:
    return [USAGE for _ in rows]


async def returns_one(rows: list[Any]) -> list[Any]:
    return rows[:1]


async def raises(row: Any) -> Any:
    raise ValueError("no number in it")


async def raises_rate_limited(row: Any) -> Any:
    raise redline.errors.RateLimited("slow down", status=429)


def asked(handler: Any, *requests: Any, **options: Any) -> Answer:
    caller = caller_of(handler, **options)
    try:
        return asyncio.run(caller.ask(requests or ("x",)))
    finally:
        caller.close()


@pytest.mark.parametrize(
    "handler", [coroutine, plain, Handler(), functools.partial(coroutine), lambda row: USAGE]
)
def test_a_function_of_any_kind_answers_and_its_usage_is_read(handler: Any) -> None:
    answer = asked(handler)
    assert (answer.kind, answer.input_tokens, answer.output_tokens) == ("", 3, 5)


def returns_a_stream(row: Any) -> AsyncIterator[str]:
    return generator(row)


async def begins_a_stream(row: Any) -> AsyncIterator[str]:
    return generator(row)


@pytest.mark.parametrize("handler", [generator, returns_a_stream, begins_a_stream])
def test_the_items_of_an_async_generator_are_the_pieces_of_a_stream(handler: Any) -> None:
    answer = asked(handler)
    assert len(answer.texts_s) == 3
    assert answer.output_tokens is None


def returns_a_generator(row: Any) -> Iterator[str]:
    return plain_generator(row)


@pytest.mark.parametrize("handler", [plain_generator, returns_a_generator])
def test_a_generator_that_would_never_run_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match="never run"):
        redline.ThroughputMetrics.measure(handler, ["a"], limit=4)


def test_a_function_of_lists_gets_lists() -> None:
    answer = asked(of_lists, "a", "b", batch_size=4)
    assert (answer.weight, answer.output_tokens) == (2, 10)
    short = asked(returns_one, "a", "b", batch_size=4)
    assert short.example == "ValueError: it returned 1 answer for 2 requests"


def test_what_a_function_raises_is_a_failure_by_its_type() -> None:
    assert asked(raises).example == "ValueError: no number in it"
    assert asked(lambda row: next(iter(()))).kind == "StopIteration"
    answer = asked(raises_rate_limited)
    assert (answer.kind, answer.example) == ("rate_limited", "slow down")


@pytest.mark.parametrize("handler", [5, "text", Handler, None])
def test_what_cannot_answer_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot be called|is a class"):
        caller_of(handler)


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (coroutine, {"concurrency": 2}),
        (plain, {"concurrency": 2}),
        (of_lists, {"batch_size": 4}),
        (BACKEND, {}),
        (redline.Client(BACKEND), {}),
    ],
)
def test_a_limited_load_is_measured_whole(handler: Any, options: Any) -> None:
    metrics = redline.ThroughputMetrics.measure(handler, ["a", "b"], limit=20, **options)
    assert (metrics.succeeded, metrics.failed) == (20, 0)
    assert metrics.requests_per_s > 0
    assert metrics.batch_efficiency is not None
    assert 0 <= metrics.batch_efficiency <= 1
    assert metrics.concurrent_users == pytest.approx(
        metrics.requests_per_s * metrics.latency.mean_s if metrics.latency else 0
    )
    assert metrics.tokens_per_s == pytest.approx(8 * metrics.requests_per_s)


def test_the_input_of_answers_without_a_usage_is_unknown_and_not_zero() -> None:
    metrics = redline.ThroughputMetrics.measure(generator, ["a"], limit=4)
    assert metrics.is_token_count_estimated
    assert metrics.input_tokens_per_s is None
    assert metrics.tokens_per_s == metrics.output_tokens_per_s
    (line,) = (line for line in figures_lines(metrics) if line.startswith("tokens"))
    assert line.endswith(" output tokens/s")


def test_waited_is_the_time_for_a_slot_and_for_limits_without_that_for_a_connection() -> None:
    steps = {"eligible_s": 1.0, "slot_s": 3.0, "ahead_s": 7.0, "connected_s": 8.0}
    ends = {"granted_s": 16.0, "sent_s": None, "first_byte_s": None, "complete_s": 20.0}
    attempt = Attempt(endpoint="e", error=None, **steps, **ends)
    outcome = redline.Outcome(
        status="succeeded", reply=redline.Reply(output="yes"), tried=(attempt,)
    )
    figures = redline.ThroughputMetrics.measure(ScriptedBackend([outcome]), ["a"], limit=3)
    assert figures.waited is not None
    assert figures.waited.p50_s == 2 + 4 + 8


async def test_in_a_running_loop_it_is_awaited() -> None:
    with pytest.raises(ConfigError, match="ameasure"):
        redline.ThroughputMetrics.measure(coroutine, ["a"], limit=3)
    metrics = await redline.ThroughputMetrics.ameasure(coroutine, ["a"], limit=3, think_time_s=10.0)
    assert metrics.concurrent_users is not None
    assert metrics.concurrent_users >= 10 * metrics.requests_per_s


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rate_per_s": 0.0}, "a rate must be above 0"),
        ({"duration_s": 1.0, "warm_up_s": 2.0}, "the warm-up of 2 s leaves none of the 1 s"),
        ({"duration_s": 0.0}, "the duration must be above 0 s"),
        ({"duration_s": "5s"}, "duration_s must be a finite number, not '5s'"),
        ({"rate_per_s": "5"}, "rate_per_s must be a finite number, not '5'"),
        ({"warm_up_s": math.nan}, "warm_up_s must be a finite number, not nan"),
        ({"think_time_s": -5}, "think_time_s must be 0 s or more, not -5 s"),
        ({"concurency": 3}, "did you mean concurrency"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"arrivals": "poisson"}, "arrivals need a rate"),
        ({"rate_per_s": 1.0, "arrivals": "bursty"}, "arrivals must be one of constant, poisson"),
        ({"slo": 5}, "slo must be a text, not 5"),
        ({"seed": "7"}, "seed must be a whole number, not '7'"),
        ({"stream": "no"}, "stream must be True or False, not 'no'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        redline.ThroughputMetrics.measure(coroutine, ["a"], **options)


@pytest.mark.parametrize("requests", [5, None, "hello", {"model": "m"}])
def test_requests_are_several(requests: Any) -> None:
    with pytest.raises(ConfigError, match="requests must be a list or another iterable"):
        redline.ThroughputMetrics.measure(coroutine, requests, limit=3)


def test_a_load_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are no requests"):
        redline.ThroughputMetrics.measure(coroutine, [])


def quantiles(p50_s: float) -> Quantiles:
    return Quantiles(count=9, mean_s=p50_s, p50_s=p50_s, p95_s=p50_s, p99_s=p50_s, max_s=p50_s)


def test_a_client_that_is_the_bottleneck_says_so() -> None:
    idle = ClientUse(cpu=0.2, process_cpu=0.2, loop_lag_s=0.004, late_s=0.001)
    assert bottleneck(idle, quantiles(0.05)) == ""
    busy = ClientUse(cpu=0.97, process_cpu=1.0, loop_lag_s=0.0, late_s=0.0)
    assert "97% of a core" in bottleneck(busy, quantiles(10.0))
    lagging = ClientUse(cpu=0.2, process_cpu=0.2, loop_lag_s=0.04, late_s=0.0)
    assert "event loop was up to 40 ms late" in bottleneck(lagging, quantiles(0.2))
    # Of a latency of 10 s, 40 ms are nothing.
    assert bottleneck(lagging, quantiles(10.0)) == ""
    late = ClientUse(cpu=0.2, process_cpu=0.2, loop_lag_s=0.0, late_s=0.05)
    assert "calls were made up to 50 ms late" in bottleneck(late, None)


def test_a_loop_that_is_kept_busy_is_noticed() -> None:
    async def burns(row: Any) -> None:
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass

    metrics = redline.ThroughputMetrics.measure(burns, ["a"], limit=20, concurrency=2)
    assert metrics.client is not None
    assert metrics.client.bottleneck


class NVMLError(Exception):
    pass


def nvml(*used: int, fails: bool = False) -> ModuleType:
    """A driver's library with GPUs that are busy for these shares of the time, in percent."""
    module: Any = ModuleType("pynvml")
    module.NVMLError = NVMLError

    def begin() -> None:
        if fails:
            raise NVMLError

    module.nvmlInit = begin
    module.nvmlDeviceGetCount = lambda: len(used)
    module.nvmlDeviceGetHandleByIndex = lambda at: at
    module.nvmlDeviceGetUtilizationRates = lambda at: type("Rates", (), {"gpu": used[at]})()
    found: ModuleType = module
    return found


def test_gpus_are_read_if_the_library_of_their_driver_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, expected in ((nvml(90, 70), 0.8), (nvml(), None), (nvml(50, fails=True), None)):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        reader = gpu_reader()
        assert (None if reader is None else reader()) == expected
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_reader() is None


def test_gpu_utilization_is_in_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(row: Any) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setitem(sys.modules, "pynvml", nvml(60))
    metrics = redline.ThroughputMetrics.measure(slow, ["a"], limit=3, concurrency=1)
    assert metrics.gpu_utilization == pytest.approx(0.6)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    metrics = redline.ThroughputMetrics.measure(slow, ["a"], limit=3, concurrency=1)
    assert metrics.gpu_utilization is None
