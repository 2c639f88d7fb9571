"""Provides an event loop with virtual time, in which an hour of waiting takes milliseconds.

When nothing is ready, the loop does not wait for its next timer but advances its time to that
timer. Work outside the loop still takes real time:

  outside work                 what the loop does when nothing else is ready
  executor work                waits for it in real time; if a timer is set, up to
                               `THREAD_GRACE_S`: work that takes longer counts as stuck, and timers
                               fire while it is running
  a registered socket          gives the kernel `SETTLE_S` to deliver, then moves on to the timer;
                               without any timer, raises Deadlock after `THREAD_GRACE_S`
  none, with a timer set       moves on to the timer
  none, without any timer      raises Deadlock, which names the tasks and where each of them waits

So a process may talk to itself over loopback in virtual time; a test that waits for another
process, or for a thread that it started itself, needs a real loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from redline.errors import RedlineError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREAD_GRACE_S = 1.0  # far longer than a test's file write, far shorter than its time limit
SETTLE_S = 0.001  # loopback delivers within a send; this covers a busy kernel
LIMIT_S = 7 * 86400.0  # without a limit, a periodic timer would keep a stuck test running forever
_NAMED_TASKS = 8
_ASYNCIO = str(Path(asyncio.__file__).parent)


class Deadlock(RedlineError):
    """Raised if nothing more can happen in the loop, or if its time would pass the limit."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits for time to pass. `time()` starts at `start_s` seconds.

    limit_s: the virtual seconds after which the test is considered endless, 7 days by default.
    `run_until_complete` and `run_forever` raise Deadlock if nothing more can happen, or after that
    time.
    """

    def __init__(self, *, start_s: float = 0.0, limit_s: float = LIMIT_S) -> None:
        self._jumping = _JumpingSelector(start_s, limit_s)
        super().__init__(self._jumping)
        # The loop's own socket, with which it wakes itself, is not outside work.
        self._jumping.own_sockets = len(self._jumping.get_map())

    def time(self) -> float:
        """Returns the virtual time in seconds, which advances only when nothing is left to do."""
        return self._jumping.now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Runs a function in an executor, by default a pool of threads.

        Until it ends, virtual time stops, but for at most THREAD_GRACE_S seconds of real time.
        """
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads.add(future)
        future.add_done_callback(self._jumping.threads.discard)
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """Waits in real time until the executor's threads have ended."""
        self._jumping.is_closing_executor = True
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._jumping.is_closing_executor = False


def virtual_run(
    main: Coroutine[Any, Any, T], *, start_s: float = 0.0, limit_s: float = LIMIT_S
) -> T:
    """Runs `main` to its end in a new VirtualLoop, and returns its result.

    `asyncio.sleep`, `timeout` and `wait_for` take virtual time. An object with a parameter `clock`,
    such as a Limiter, needs a VirtualClock of the loop, because its default is the machine's clock.
    start_s: the loop's time at the beginning, in seconds. limit_s: the virtual seconds after which
    `main` is considered endless, 7 days by default. When `main` has ended, remaining tasks are
    cancelled. Raises what `main` raises, and Deadlock.
    """
    with asyncio.Runner(
        loop_factory=lambda: VirtualLoop(start_s=start_s, limit_s=limit_s)
    ) as runner:
        return runner.run(main)


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances time instead of waiting."""

    def __init__(self, start_s: float, limit_s: float) -> None:
        super().__init__()
        self.now_s = start_s
        self.threads: set[asyncio.Future[Any]] = set()
        self.own_sockets = 0
        self.is_closing_executor = False
        self._end_s = start_s + limit_s
        self._stuck: set[asyncio.Future[Any]] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Returns events that are ready or come from outside work; otherwise advances the time.

        timeout: seconds until the next timer; None if there is no timer. Raises Deadlock.
        """
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self.is_closing_executor:
            return super().select(None)
        if events := self._outside(has_timer=timeout is not None):
            return events
        if timeout is None:
            raise Deadlock(
                "nothing is ready, no timer is set, and no executor work is running",
                where=_waiting(),
                hint="something must set what these tasks wait for, or cancel them",
            )
        if self.now_s + timeout > self._end_s:
            raise Deadlock(
                f"virtual time would pass its limit, {self._end_s:g} s",
                where=_waiting(),
                hint="stop whatever keeps setting timers, or pass a larger limit_s",
            )
        self.now_s += timeout
        return events

    def _outside(self, *, has_timer: bool) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits in real time for executor threads and sockets, and returns their events."""
        self._stuck &= self.threads
        if self.threads - self._stuck:
            if events := super().select(THREAD_GRACE_S):
                return events
            self._stuck |= self.threads
        if not has_timer and self.threads:
            return super().select(None)
        if len(self.get_map()) > self.own_sockets:
            return super().select(SETTLE_S if has_timer else THREAD_GRACE_S)
        return []


def _waiting() -> str:
    """Lists the unfinished tasks of the running loop, each with the line where it waits."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    shown = [f"{task.get_name()} at {_line(task)}" for task in tasks[:_NAMED_TASKS]]
    if len(tasks) > _NAMED_TASKS:
        shown.append(f"and {len(tasks) - _NAMED_TASKS} more")
    return "; ".join(shown) or "no task is pending"


def _line(task: asyncio.Task[Any]) -> str:
    """Returns `file:line` where `task` waits: the innermost line that is not asyncio's own."""
    place = "an unknown line"
    is_asyncio = True
    step: object = task.get_coro()
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "ag_frame", None)
        if frame is not None:
            is_inside = frame.f_code.co_filename.startswith(_ASYNCIO)
            if is_asyncio or not is_inside:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                is_asyncio = is_inside
        step = getattr(step, "cr_await", None) or getattr(step, "ag_await", None)
    return place
