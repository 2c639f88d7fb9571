"""Runs the engine in its own thread, which computes what the event loop requests.

Each side passes functions for the other side to call. Before each step, the thread calls all that
it has received; after the step, it passes all results to the event loop together.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from redline.clock import SYSTEM
from redline.engine.schedule import QueueFull
from redline.engine.schedule import Sequence as Running
from redline.engine.step.core import Ask, Asker, Core
from redline.errors import NoEndpoint, RedlineError

CLOSED = "the engine was closed"


class EngineFailed(NoEndpoint):
    """Raised if the engine can no longer compute; every sequence ends with this error."""


class EngineThread:
    """Runs a core from `start` to `close`. Call its methods, except `post`, in the event loop only.

    If the core fails, every sequence ends with EngineFailed, and so do those requested later.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._running: dict[Asker, Running] = {}
        self._posts: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="redline engine", daemon=True)
        self._failed = asyncio.Event()
        self.failure: EngineFailed | None = None

    def start(self) -> None:
        """Starts the thread, which reports to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._core.computer.watch(lambda error: self._inbox.put(partial(self._fail, error)))
        self._thread.start()

    def ask(self, asks: Sequence[Ask]) -> None:
        """Begins sequences together, in the next turn of the thread.

        Each asker is notified when its sequence ends, unless it is cancelled. Raises EngineFailed
        once the engine is being closed.
        """
        if self._is_closing:
            raise EngineFailed(CLOSED)
        self._inbox.put(partial(self._begin, asks))

    def cancel(self, asker: Asker) -> None:
        """Cancels the asker's sequence, whose end is then not reported."""
        self._inbox.put(partial(self._cancel, asker))

    async def close(self) -> None:
        """Ends every sequence, the thread and its computer."""
        self._is_closing = True
        if self._thread.is_alive():
            self._inbox.put(lambda: None)  # only to wake the thread
            await asyncio.to_thread(self._thread.join)

    def discard(self) -> None:
        """Closes the computer of an engine that was never started."""
        self._core.computer.close()

    async def has_failed(self) -> None:
        """Waits until the engine has failed; `failure` then has the reason."""
        await self._failed.wait()

    def post(self, call: Callable[[], None]) -> None:
        """Schedules `call` on the event loop. May be called only in the engine's thread."""
        self._posts.append(call)

    def _run(self) -> None:
        while not self._is_closing:
            try:
                self._turn()
            except BaseException as error:
                # Any error counts: no request may wait for an answer that never arrives.
                self._fail(error)
            self._hand_on()
        self._take(0.0)
        self._end_all(EngineFailed(CLOSED))
        self._hand_on()
        self._core.computer.close()

    def _turn(self) -> None:
        """Calls the received functions, then runs a step if one is due."""
        scheduler = self._core.scheduler
        # Sequences that are still in the scheduler after a failure are not completed.
        self._take(math.inf if self.failure else scheduler.wait_s(SYSTEM.now_s()))
        if self.failure is None and scheduler.wait_s(SYSTEM.now_s()) == 0.0:
            for sequence in self._core.step():
                del self._running[sequence.asker]
                assert sequence.ended is not None
                self._tell(sequence.asker, sequence.ended)

    def _tell(self, asker: Asker, reason: str | RedlineError) -> None:
        """Notifies the asker that its sequence ended; if that raises, the engine has failed."""
        try:
            asker.ended(reason)
        except Exception as error:
            asker.ended(self._fail(error))

    def _fail(self, error: BaseException) -> EngineFailed:
        """Stops computing and returns the reason, which is the first error."""
        if self.failure is None:
            if isinstance(error, EngineFailed):
                self.failure = error
            else:
                what = f"the engine has failed: {type(error).__name__}: {error}"
                self.failure = EngineFailed(what)
                self.failure.__cause__ = error
            self._end_all(self.failure)
            self._posts.append(self._failed.set)
        return self.failure

    def _take(self, wait_s: float) -> None:
        """Calls the received functions; waits up to wait_s seconds for the first one."""
        try:
            self._inbox.get(timeout=None if wait_s == math.inf else wait_s)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _begin(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            if self.failure is not None:
                ask.asker.ended(self.failure)
                continue
            try:
                self._running[ask.asker] = self._core.add(ask, SYSTEM.now_s())
            except QueueFull as error:
                ask.asker.ended(error)
            except Exception as error:
                ask.asker.ended(self._fail(error))

    def _cancel(self, asker: Asker) -> None:
        if (sequence := self._running.pop(asker, None)) is not None:
            self._core.scheduler.end(sequence, "cancelled")

    def _end_all(self, error: EngineFailed) -> None:
        for asker, sequence in self._running.items():
            self._core.scheduler.end(sequence, "failed")
            asker.ended(error)
        self._running.clear()

    def _hand_on(self) -> None:
        posts, self._posts = self._posts, []
        if not posts or (loop := self._loop) is None:
            return
        try:
            # One wake-up for all posts, but a call for each, so a failing post stops no other.
            loop.call_soon_threadsafe(lambda: [loop.call_soon(post) for post in posts])
        except RuntimeError:
            # The event loop has ended; no request is left to answer.
            self._is_closing = True
