"""Runs a program until Ctrl-C or SIGTERM, and distinguishes a task's end from its failures."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Unblocked(BaseException):
    """Raised by a signal handler in code that blocks the event loop, so that the run can end."""


def ends_task(error: BaseException) -> bool:
    """Whether the error is meant to end this task or the process, and is not a failure of its code.

    User code may raise any other BaseException, even the CancelledError of another task or future.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | Unblocked)


def first_of(error: BaseException) -> BaseException:
    """Returns the first leaf of an exception group, or the error itself if it is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def on_signals(told: Callable[[int], object]) -> None:
    """Makes the running event loop call `told` with the signal number at each Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if sys.platform == "win32":
            signal.signal(number, lambda found, _: loop.call_soon_threadsafe(told, found))
        else:
            loop.add_signal_handler(number, told, number)


def end_at_once(number: int) -> None:
    """Exits with the status 128 + `number`, without waiting for threads. number: the signal's."""
    os._exit(128 + number)


def end_at_second(stop: asyncio.Event) -> None:
    """Makes Ctrl-C or SIGTERM set the event, and a second signal end the process at once."""

    def close(_: int) -> None:
        on_signals(end_at_once)
        stop.set()

    on_signals(close)


def run_until_told(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Runs `main` and returns its result; Ctrl-C or SIGTERM sets the event that `main` gets."""

    async def told() -> T:
        stop = asyncio.Event()
        on_signals(lambda _: stop.set())
        return await main(stop)

    if sys.platform == "win32":
        return asyncio.run(told())
    import uvloop  # takes longer than most programs' other imports

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(told())
