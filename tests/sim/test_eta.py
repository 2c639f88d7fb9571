"""The predicted end of real jobs of ten minutes, in virtual time, at each of their seconds."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable, Sequence

import msgspec
import pytest

from redline.calls import Endpoint, HttpBackend, Retry
from redline.job.settings import Job, Prompting
from redline.job.show import Meter, RowCount, View, screen, text_of
from redline.job.work import (
    Backpressure,
    Bill,
    Endpoints,
    Feed,
    Renderer,
    Runner,
    Sampler,
    Selection,
    Tally,
)
from redline.journal import NotKept, Result
from redline.limits import Limits
from redline.observe import Alerts
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
    """The windows that the job's own sampler made, and when it ended.

    shown: what the live view said of the end, second by second, and when.
    """

    windows: list[Window]
    shown: list[tuple[float, str]]
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
            view = View(
                job=job,
                tally=tally,
                runner=runner,
                bill=Bill(job, None),
                sampler=sampler,
                alerts=Alerts([]),
                source_name="rows",
                found_limits=list,
                feed=feed,
                selection=Selection(job, None, None, None),
                row_count=RowCount(shape.rows, None),
                journal=None,
                before=None,
            )
            shown = list[tuple[float, str]]()
            looking = asyncio.create_task(look(view, clock, shown))
            sampler.start(
                lambda: Totals(rows=shape.rows, done=tally.succeeded, attempts=tally.attempts)
            )
            await runner.run()
            end_s = loop.time() - begun_s
            looking.cancel()
            await sampler.finish("finished")
            await feed.aclose()
            await calls.aclose()
        assert tally.succeeded == shape.rows
        return Ran(sampler.windows, shown, end_s)

    return virtual_run(main(), limit_s=3600.0)


async def look(view: View, clock: VirtualClock, shown: list[tuple[float, str]]) -> None:
    """Draws the live view once a second, and keeps when, and what it says of the end."""
    meter = Meter(view, clock)
    while True:
        await asyncio.sleep(1.0)
        line = text_of(screen(meter.read(), view.source_name, 79)[0])
        shown.append((round(clock.now_s(), 6), line.partition("  ETA ")[2]))


def shown_s(text: str) -> float:
    """The seconds of a text like `9 m 05 s` or `4.2 s`."""
    assert re.fullmatch(r"(\d+ m )?[\d.]+ s", text), text
    parts = re.findall(r"([\d.]+) ([ms])", text)
    return sum(float(value) * {"m": 60, "s": 1}[unit] for value, unit in parts)


def of_ten_seconds(windows: Sequence[Window]) -> float:
    """The seconds to the end if the rate of the last ten goes on."""
    rows = sum(window.done for window in windows[-10:])
    return windows[-1].totals.left * 10.0 / rows if rows else math.inf


@pytest.mark.slow
@pytest.mark.parametrize("shape", [constant, bursts, long_tail, slow_start, long_waves])
def test_the_end_of_a_job_is_predicted_at_each_second_after_the_first_minute(
    shape: Callable[[], Shape],
) -> None:
    found = ran(shape())
    assert 500 < found.end_s < 700

    def check(ends: Sequence[tuple[float, float]]) -> None:
        later = [one for one in ends if LEAST_S <= one[0] < found.end_s]
        assert len(later) > 420
        for at_s, eta_s in later:
            off = (at_s + eta_s - found.end_s) / found.end_s
            assert abs(off) <= TOLERATED, (at_s, off)

    on_screen = [(at_s, shown_s(text)) for at_s, text in found.shown if at_s >= LEAST_S]
    if shape in (bursts, long_waves):
        plain = [
            (window.end_s, of_ten_seconds(found.windows[:count]))
            for count, window in enumerate(found.windows, 1)
        ]
        assert_caught(check, on_screen, plain)
    check(on_screen)
