"""Runs work in threads that do not delay the exit of the process, unlike the standard library's.

A user's function may never return, and a name server may take minutes. If a run no longer waits for
them, the program's exit must not wait for them either.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# More threads than a process has runs: a run whose object store hangs must not delay other runs.
_MOST_OWN = 256

_Work = tuple[Future[Any], Callable[[], Any]]


class RaisedStop(RuntimeError):
    """Raised in place of a StopIteration that a function has raised.

    An asyncio future cannot hold a StopIteration: in Python 3.11, its caller would wait forever.
    """


def called(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls the function. Raises RaisedStop in place of StopIteration."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RaisedStop(f"StopIteration: {error}") from error


class DaemonThreads(ThreadPoolExecutor):
    """A pool of at most `most` daemon threads, which are started when they are needed.

    It derives from ThreadPoolExecutor only because event loops require that. A future gets
    RaisedStop if its function raised StopIteration.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self._most = most
        self._name = name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._own: list[threading.Thread] = []
        self._turn = threading.Lock()
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs `fn` in a thread, in a copy of the current context, and returns its future.

        Raises RuntimeError after `shutdown`.
        """
        future: Future[T] = Future()
        call = partial(contextvars.copy_context().run, called, fn, *args, **kwargs)
        with self._turn:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.put((future, call))
            if not self._idle.acquire(blocking=False) and len(self._own) < self._most:
                thread = threading.Thread(
                    target=self._serve, name=f"{self._name}_{len(self._own)}", daemon=True
                )
                thread.start()
                self._own.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stops accepting work; with `wait`, waits for submitted work. May be called repeatedly."""
        with self._turn:
            self._is_shut = True
            while cancel_futures and not self._queue.empty():
                work = self._queue.get()
                if work is not None:
                    work[0].cancel()
            for _ in self._own:
                self._queue.put(None)
        if wait:
            self.join(None)

    def join(self, most_s: float | None) -> None:
        """Waits until all submitted work is done, for at most `most_s` seconds; None for no bound.

        Call it after `shutdown`: until then, idle threads do not end.
        """
        until_s = None if most_s is None else time.monotonic() + most_s
        for thread in self._own:
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del work, future, call
            self._idle.release()


def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Runs `work` as asyncio.to_thread does, but in one of redline's own threads.

    The user's code shares the event loop's pool, and its calls there may never end.
    """
    call = partial(work, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(_own_threads(), call)


@cache
def _own_threads() -> DaemonThreads:
    return DaemonThreads(_MOST_OWN, "redline-own")


if hasattr(os, "register_at_fork"):
    # A child process has none of its parent's threads.
    os.register_at_fork(after_in_child=_own_threads.cache_clear)


def is_in_loop() -> bool:
    """Returns whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
