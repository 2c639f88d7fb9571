"""The windows that a sampler makes of a run, in virtual time."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redline.calls import Endpoint, HttpBackend
from redline.job.settings import Job, Prompting
from redline.job.work import Backpressure, Endpoints, Feed, Renderer, Runner, Sampler, Tally
from redline.journal import NotKept
from redline.sources import open_source
from redline.testing import VirtualClock, virtual_run
from redline.timeline import TIMELINE_VERSION, Gatherer, RunFacts, Totals

SCHEDSTAT = Path("/proc/thread-self/schedstat")
SPIN = "while True: pass"


@contextmanager
def no_descriptor_free() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_for_a_cpu(for_s: float) -> None:
    """Shares one CPU with another process until this thread has waited so long for it."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        with subprocess.Popen([sys.executable, "-c", SPIN]) as other:
            try:
                while waited_s() < for_s:
                    time.thread_time()
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, cpus)


def waited_s() -> float:
    return int(SCHEDSTAT.read_bytes().split()[1]) / 1e9


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="only Linux tells how long a thread has waited")
def test_a_run_is_no_less_busy_while_no_descriptor_is_free() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        clock, tally, gatherer, load = VirtualClock(loop), Tally(), Gatherer(), Backpressure()
        job = Job(
            rows=[{"prompt": "Yes?"}],
            endpoints=(Endpoint(base_url="http://127.0.0.1:9/v1"),),
            prompting=Prompting(prompt="{{ prompt }}", model="m"),
        )
        calls = HttpBackend(job.endpoints[0], clock=clock)
        feed = Feed(open_source(job.rows), lambda keys, undone, marks: undone, None, load=load)
        runner = Runner(
            job=job,
            backend=calls,
            slots=1,
            supply=feed,
            source_name="rows",
            renderer=Renderer(job.prompting),
            results=NotKept(lambda results: None),
            load=load,
            record=gatherer,
            clock=clock,
        )
        sampler = Sampler(
            facts=RunFacts(v=TIMELINE_VERSION, at=clock.wall_s(), input="rows"),
            gatherer=gatherer,
            runner=runner,
            feed=feed,
            tally=tally,
            endpoints=Endpoints(calls),
            clock=clock,
        )
        sampler.start(Totals)
        wait_for_a_cpu(0.2)
        await asyncio.sleep(3.0)
        with no_descriptor_free():
            await asyncio.sleep(3.0)
        await asyncio.sleep(3.0)
        await sampler.finish("finished")
        await feed.aclose()
        await calls.aclose()
        return [window.busy for window in sampler.windows]

    busy = virtual_run(main())
    assert len(busy) == 9
    assert min(busy) >= 0.0
