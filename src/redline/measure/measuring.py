"""Measures one load, or several loads with rising concurrency, from the plan to the figures."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from redline.clock import SYSTEM, Clock
from redline.errors import RedlineError
from redline.measure.callers import Answer, Caller
from redline.measure.figures import Figures
from redline.measure.knee import levels, rises_no_more
from redline.measure.load import Load, Plan
from redline.measure.resources import Watch
from redline.measure.slo import Objective
from redline.measure.tally import Tally

T = TypeVar("T")


class Started(msgspec.Struct, frozen=True):
    """A load that has begun, for a progress display and for interrupts. begun_s: monotonic."""

    load: Load
    tally: Tally
    plan: Plan
    begun_s: float


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """The target and the settings of a measurement.

    target: its name in the figures. words: the load in words. objectives: what an answer must meet
    to count as goodput. cost_of: returns the cost of an answer in picodollars; None if unknown.
    on_start: called with each load as it begins.
    """

    caller: Caller
    target: str
    words: str = ""
    objectives: tuple[Objective, ...] = ()
    cost_of: Callable[[Answer], int | None] | None = None
    on_start: Callable[[Started], None] | None = None
    clock: Clock = SYSTEM


async def measured(what: Measuring, plan: Plan, requests: Iterator[Any]) -> Figures:
    """Measures one load with these requests; the load ends early if they run out.

    Raises RedlineError if an error that every call would meet ended the load before any success.
    """
    clock, watch = what.clock, Watch(what.clock)
    begun_s = clock.now_s()
    tally = Tally(begun_s, plan.warm_up_s, what.objectives, what.cost_of)
    load = Load(plan, what.caller, requests, tally, watch=watch, begun_s=begun_s, clock=clock)
    if what.on_start is not None:
        what.on_start(Started(load, tally, plan, begun_s))
    ended = await load.run()
    if load.stopped is not None and not tally.succeeded:
        raise load.stopped
    figures = tally.figures(what.target, what.words, plan.concurrency, ended)
    fill = None
    if what.caller.takes > 1:
        fill = tally.batch_fill()
    elif plan.schedule is None:
        fill = min(1.0, figures.in_flight / plan.concurrency)
    return replace(
        figures,
        client=watch.use(figures.ttft or figures.latency),
        gpu_utilization=watch.gpu_utilization,
        batch_efficiency=fill,
    )


async def swept(what: Measuring, plan: Plan, requests: Iterator[Any]) -> AsyncIterator[Figures]:
    """Measures closed loops of 1, 2, 4, ... users, up to the plan's concurrency.

    Each level has the plan's duration; `most` applies to all levels together. The sweep ends when
    throughput stops rising, when `most` requests have been made, or after a level that ended early
    or at which most requests failed.
    """
    done, left = list[Figures](), plan.most
    for level in levels(plan.concurrency):
        one = replace(plan, concurrency=level, most=left, schedule=None)
        figures = await measured(what, one, requests)
        done.append(figures)
        yield figures
        if left is not None:
            left -= figures.warm_up + figures.scheduled
        if figures.ended or rises_no_more(done) or (left is not None and left <= 0):
            return


class Interrupts:
    """Handles Ctrl-C and SIGTERM: the first ends the load, later ones raise KeyboardInterrupt.

    If no load has begun, the first one raises it, too.
    """

    def __init__(self) -> None:
        self.count = 0
        self._load: Load | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, started: Started) -> None:
        """Makes interrupts end this load from now on."""
        self._load, self._loop = started.load, asyncio.get_running_loop()
        if self.count:
            self._loop.call_soon(self._load.interrupt)

    def interrupt(self) -> None:
        """Interrupts the load; may be called from any thread.

        Raises KeyboardInterrupt if there is no load yet, and on the second and later calls.
        """
        self.count += 1
        if self._load is None or self._loop is None or self.count > 1:
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self._load.interrupt)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Makes signals interrupt the load within the block, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with ExitStack() as stack:
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, lambda *_: self.interrupt())
                stack.callback(signal.signal, number, before)
            yield


def in_own_loop(work: Callable[[], Coroutine[Any, Any, T]], interrupts: Interrupts) -> T:
    """Runs `work` to its end in a new event loop of this thread, and returns its result."""
    with interrupts.handled(), asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(work())


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def nothing_measured(figures: Figures) -> RedlineError | None:
    """Returns an error that says why the figures are meaningless; None if they are not."""
    if figures.succeeded:
        return None
    if figures.failures:
        worst = figures.failures[0]
        return RedlineError(
            f"no request succeeded; {figures.failed:,} failed, most often with: {worst.example}",
            where=figures.target,
        )
    if figures.warm_up:
        return RedlineError(
            f"no request was measured: {figures.warm_up:,} in the warm-up, none after it",
            hint="make the duration longer or the limit larger, or the warm-up shorter",
        )
    return RedlineError(
        f"no request was answered in {figures.seconds:.1f} s",
        where=figures.target,
        hint="measure for longer than an answer takes",
    )
