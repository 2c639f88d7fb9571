"""The engine in a thread of its own: the event loop asks, the thread computes.

Requests and cancellations go in by a queue; the thread takes all that are there before each step.
What a step has brought is handed to the event loop in one call.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Sequence

from redline.clock import SYSTEM
from redline.engine.core import Ask, Asker, Core
from redline.engine.scheduler import QueueFull
from redline.engine.sequence import Sequence as Running
from redline.errors import NoEndpoint, RedlineError

_Message = Sequence[Ask] | Asker | RedlineError | None
_CLOSED = "the engine was closed"


class EngineFailed(NoEndpoint):
    """The engine cannot compute any more; every sequence ended with it."""


class EngineThread:
    """Runs a core from `start` to `close`. Its other methods may be called in the event loop only.

    A failure of the core ends every sequence, and whatever is asked after it, with EngineFailed.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._running: dict[Asker, Running] = {}
        self._posts: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="redline engine", daemon=True)
        self._failed = asyncio.Event()
        self.failure: EngineFailed | None = None

    def start(self) -> None:
        """Begins; from now on the running event loop is told."""
        self._loop = asyncio.get_running_loop()
        self._core.computer.watch(self._inbox.put)
        self._thread.start()

    def ask(self, asks: Sequence[Ask]) -> None:
        """Takes sequences that begin together. Each asker hears its end, whatever it is.

        Raises EngineFailed once the engine is being closed.
        """
        if self._is_closing:
            raise EngineFailed(_CLOSED)
        self._inbox.put(asks)

    def cancel(self, asker: Asker) -> None:
        """The asker's sequence is not wanted any more; it hears no end of it."""
        self._inbox.put(asker)

    async def close(self) -> None:
        """Ends every sequence, the thread, and what it computes with."""
        self._is_closing = True
        if self._thread.is_alive():
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)

    async def has_failed(self) -> None:
        """Returns when the engine has failed; `failure` tells why."""
        await self._failed.wait()

    def post(self, call: Callable[[], None]) -> None:
        """Has the event loop make this call. In the engine's thread only."""
        self._posts.append(call)

    def _run(self) -> None:
        scheduler = self._core.scheduler
        while not self._is_closing:
            # What a failure has left in the scheduler is not seen through.
            self._take(math.inf if self.failure else scheduler.wait_s(SYSTEM.now_s()))
            if self.failure is None and scheduler.wait_s(SYSTEM.now_s()) == 0.0:
                self._step()
            self._hand_on()
        self._take(0.0)
        self._end_all(EngineFailed(_CLOSED))
        self._hand_on()
        self._core.computer.close()

    def _step(self) -> None:
        try:
            for sequence in self._core.step():
                del self._running[sequence.asker]
                sequence.asker.ended(sequence.ended)
        except Exception as error:
            # Whatever it is: nobody may wait for an answer that does not come.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = _failure(error)
            self._end_all(self.failure)
            self._posts.append(self._failed.set)

    def _take(self, wait_s: float) -> None:
        """Takes in all that was asked; waits so long for the first of it."""
        try:
            self._taken(self._inbox.get(timeout=None if wait_s == math.inf else wait_s))
            while True:
                self._taken(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _taken(self, message: _Message) -> None:
        if message is None:
            return  # only to be woken by
        if isinstance(message, RedlineError):
            self._fail(message)
        elif isinstance(message, Sequence):
            for ask in message:
                self._begin(ask)
        elif (sequence := self._running.pop(message, None)) is not None:
            self._core.scheduler.end(sequence, "cancelled")

    def _begin(self, ask: Ask) -> None:
        if self.failure is not None:
            ask.asker.ended(self.failure)
            return
        try:
            self._running[ask.asker] = self._core.add(ask, SYSTEM.now_s())
        except QueueFull as error:
            ask.asker.ended(error)

    def _end_all(self, error: RedlineError) -> None:
        for asker, sequence in self._running.items():
            self._core.scheduler.end(sequence, "failed")
            asker.ended(error)
        self._running.clear()

    def _hand_on(self) -> None:
        posts, self._posts = self._posts, []
        if posts and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(_make, self._loop, posts)
            except RuntimeError:
                # The event loop has ended; nobody is left to be told.
                self._is_closing = True


def _failure(error: Exception) -> EngineFailed:
    """What those who wait are told."""
    if isinstance(error, EngineFailed):
        return error
    failure = EngineFailed(f"the engine has failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _make(loop: asyncio.AbstractEventLoop, calls: Sequence[Callable[[], None]]) -> None:
    """Each on its own, so that the others are made where one fails."""
    for call in calls:
        loop.call_soon(call)
