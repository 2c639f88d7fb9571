"""Handles SIGINT and SIGTERM: the first signal drains a run, the second ends it within a second.

A signal that comes before the run has begun cancels the run.

What may delay the abort of a run, and how it is handled:

  a function in a thread, a call that never ends   the runner abandons it (Runner.abort)
  code that blocks the event loop                  a signal raises `Unblocked` in it
  anything else, such as a disk that hangs         `GivenUp` is raised out of the event loop
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from redline.job.work import Runner
from redline.process import Unblocked

# Seconds from the second interrupt until an event loop that has not handled it counts as blocked,
# and until everything that has not ended is abandoned.
_BLOCKED_S = 0.2
GIVE_UP_S = 0.8
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class GivenUp(KeyboardInterrupt):
    """Raised if a run has not ended within a second of the second Ctrl-C; lists the work left."""


class Interrupts:
    """Passes interrupts to one run, from signals and from other threads.

    count: the number of interrupts so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._runner: Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._give_up: Callable[[], None] | None = None
        self._is_early = False  # interrupted before there was a runner
        self._has_turned = threading.Event()  # the loop has handled the second interrupt
        self._is_over = threading.Event()
        self._error: type[BaseException] | None = None  # what the next signal raises
        self._lock = threading.RLock()

    def watch(self, runner: Runner) -> None:
        """Makes interrupts drain or abort this runner from now on. Call it in the run's loop."""
        with self._lock:
            # The runner is set last, so that a thread that sees it also sees the loop.
            self._loop = asyncio.get_running_loop()
            self._runner = runner
        if self._is_early:
            runner.drain()

    def watch_upload(self, give_up: Callable[[], None]) -> None:
        """Makes interrupts call `give_up` to abandon the upload; the run itself has ended."""
        self._give_up = give_up

    def interrupt_from_outside(self) -> None:
        """Interrupts the run from another thread; a run without a runner drains once it has one."""
        with self._lock:
            if self._runner is None:
                self._is_early = True
                self.count += 1
                return
        self.interrupt()

    def interrupt(self) -> None:
        """Drains the run; aborts it if it is draining already. In an upload, abandons the upload.

        May be called in any thread. Raises KeyboardInterrupt if there is no runner yet.
        """
        if self._runner is None or self._loop is None:
            raise KeyboardInterrupt
        self.count += 1
        if self._give_up is not None:
            self._give_up()
            self._has_turned.set()
            return
        is_second = self._runner.is_draining or self.count > 1
        self._loop.call_soon_threadsafe(self._abort if is_second else self._runner.drain)

    def given_up(self) -> GivenUp:
        """Returns the error to raise for an abandoned run; it lists the work that has not ended."""
        left = ["the start of the run"]
        if self._runner is not None:
            left = self._runner.abandoned or ["an operation that did not end"]
        return GivenUp(f"abandoned: {'; '.join(left)}; results on disk are safe")

    @contextmanager
    def handled(self, loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any]) -> Generator[None]:
        """Within the context, SIGINT and SIGTERM interrupt the run.

        Has no effect outside the main thread.

        main: the run's task. If there is no runner yet, a signal cancels the task, and the context
        raises KeyboardInterrupt instead of CancelledError. Raises GivenUp after a second signal if
        the run does not end.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: object) -> None:
            self._on_signal(loop, main)

        before = {number: signal.signal(number, handle) for number in _NUMBERS}
        try:
            yield
        except asyncio.CancelledError:
            if self._is_early:
                raise (self.given_up() if self.count > 1 else KeyboardInterrupt()) from None
            raise
        except GivenUp:
            raise self.given_up() from None
        finally:
            self._is_over.set()
            with self._lock:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _on_signal(self, loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any]) -> None:
        if self._is_over.is_set():
            return
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._runner is None:
            self.count += 1
            self._is_early = True
            loop.call_soon_threadsafe(main.cancel)
            self._has_turned.set()
        else:
            self.interrupt()
        if self.count == 2:
            threading.Thread(target=self._insist, name="redline interrupt", daemon=True).start()

    def _abort(self) -> None:
        assert self._runner is not None
        self._has_turned.set()
        self._runner.abort()

    def _insist(self) -> None:
        """Makes sure that the second interrupt ends the run. Runs in a thread of its own."""
        if not self._has_turned.wait(_BLOCKED_S):
            self._raise_in_main(Unblocked)
        if not self._is_over.wait(GIVE_UP_S - _BLOCKED_S):
            self._raise_in_main(GivenUp)

    def _raise_in_main(self, error: type[BaseException]) -> None:
        with self._lock:
            if not self._is_over.is_set():
                self._error = error
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
