"""The predicted end of real jobs of ten minutes, in virtual time, at each of their seconds."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from redline.calls import Endpoint, HttpBackend, Retry
from redline.job.settings import Job, Prompting
from redline.job.work import (
    Backpressure,
    Endpoints,
    Feed,
    Renderer,
    Runner,
    Sampler,
    Tally,
)
from redline.journal import NotKept, Result
from redline.limits import Limits
from redline.observe import Estimate, estimate
from redline.sources import open_source
from redline.testing import VirtualClock, virtual_run
from redline.timeline import TIMELINE_VERSION, Gatherer, RunFacts, Totals, Window
from support.catching import assert_caught
from support.raw_server import RawServer, Seen, answer, chat

LEAST_S, TOLERATED = 60, 0.15
Latency = Callable[[float], float]


class Shape(msgspec.Struct, frozen=True):
    """latency_s: of a call that arrives so long after the begin."""

    rows: int
    limits: Limits
    latency_s: Latency


class Ran(msgspec.Struct):
    """The windows that the job's own sampler made, and when it ended."""

    windows: list[Window]
    end_s: float


def constant() -> Shape:
    return Shape(2400, Limits(concurrency=8), lambda at_s: 2.0)


def long_waves() -> Shape:
    return Shape(160, Limits(concurrency=8), lambda at_s: 30.0)


def bursts() -> Shape:
    """All calls of a minute in its first seconds."""
    draw = random.Random(2)
    limits = Limits(concurrency=60, requests="200/60s", profile="moving")
    return Shape(2000, limits, lambda at_s: draw.uniform(0.5, 1.5))


def long_tail() -> Shape:
    draw = random.Random(3)
    latency_s: Latency = lambda at_s: min(60.0, draw.lognormvariate(0.4, 1.2))  # noqa: E731
    return Shape(1600, Limits(concurrency=8), latency_s)


def slow_start() -> Shape:
    """A server that works five times as fast once it is warm, after half a minute."""
    draw = random.Random(4)

    def latency_s(at_s: float) -> float:
        return draw.uniform(1.0, 3.0) * (5.0 - 4.0 * min(1.0, at_s / 30.0))

    return Shape(2300, Limits(concurrency=8), latency_s)


def ran(shape: Shape) -> Ran:
    """The job on a server of this shape."""

    async def serve(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(shape.latency_s(asyncio.get_running_loop().time()))
        writer.write(answer(chat("yes")))

    async def main() -> Ran:
        loop = asyncio.get_running_loop()
        clock, tally, gatherer = VirtualClock(loop), Tally(), Gatherer()

        def saved(results: list[Result]) -> None:
            tally.rows_saved(len(results), 0, {})

        job = Job(
            rows=[{"prompt": str(number)} for number in range(shape.rows)],
            endpoints=(Endpoint(base_url="http://127.0.0.1:9/v1"),),
            prompting=Prompting(prompt="{{ prompt }}", model="m"),
        )
        async with RawServer(serve) as server:
            endpoint = Endpoint(base_url=server.base_url, limits=shape.limits, proxy="")
            calls = HttpBackend(endpoint, attempts=tally, clock=clock, listener=tally)
            load = Backpressure()
            feed = Feed(open_source(job.rows), lambda keys, undone, marks: undone, None, load=load)
            runner = Runner(
                job=job,
                backend=Retry(calls, clock=clock, listener=tally, seed=1),
                slots=shape.limits.concurrency,
                supply=feed,
                source_name="rows",
                renderer=Renderer(job.prompting),
                results=NotKept(saved),
                load=load,
                record=gatherer,
                clock=clock,
            )
            facts = RunFacts(
                v=TIMELINE_VERSION, at=clock.wall_s(), pid=1, host="here", input="rows"
            )
            sampler = Sampler(
                facts=facts,
                gatherer=gatherer,
                runner=runner,
                feed=feed,
                tally=tally,
                endpoints=Endpoints(calls),
                clock=clock,
            )
            begun_s = loop.time()
            sampler.start(
                lambda: Totals(rows=shape.rows, done=tally.succeeded, attempts=tally.attempts)
            )
            await runner.run()
            end_s = loop.time() - begun_s
            await sampler.finish("finished")
            await feed.aclose()
            await calls.aclose()
        assert tally.succeeded == shape.rows
        return Ran(sampler.windows, end_s)

    return virtual_run(main(), limit_s=3600.0)


def of_ten_seconds(windows: Sequence[Window]) -> Estimate:
    """The rate of the last ten seconds goes on."""
    rows = sum(window.done for window in windows[-10:])
    return Estimate(windows[-1].totals.left * 10.0 / rows if rows else math.inf, False)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [constant, bursts, long_tail, slow_start, long_waves])
def test_the_end_of_a_job_is_predicted_at_each_second_after_the_first_minute(
    shape: Callable[[], Shape],
) -> None:
    found = ran(shape())
    assert 500 < found.end_s < 700

    def check(estimator: Callable[[Sequence[Window]], Estimate]) -> None:
        seconds = [n for n, window in enumerate(found.windows, 1) if window.end_s < found.end_s]
        assert len(seconds) > 480
        for count in seconds[LEAST_S:]:
            end_s, eta_s = found.windows[count - 1].end_s, estimator(found.windows[:count]).eta_s
            assert eta_s is not None, end_s
            off = (end_s + eta_s - found.end_s) / found.end_s
            assert abs(off) <= TOLERATED, (end_s, off)

    if shape in (bursts, long_waves):
        assert_caught(check, estimate, of_ten_seconds)
    else:
        check(estimate)
