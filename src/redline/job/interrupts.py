"""Ctrl-C and SIGTERM: the first drains a run, the second aborts it and returns within a second.

What may hold up an abort, and how it is handled:

  a function in a thread, a call that continues    the runner abandons it (Runner.abort)
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

# After a second interrupt: the time after which a loop that has not run counts as blocked, and the
# time after which everything that is left is abandoned.
_BLOCKED_S = 0.2
GIVE_UP_S = 0.8
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class GivenUp(KeyboardInterrupt):
    """A run did not end within a second of the second Ctrl-C; the text lists what has not ended."""


class Interrupts:
    """Ctrl-C of one run, from a signal or from another thread."""

    def __init__(self) -> None:
        self.count = 0
        self._runner: Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._give_up: Callable[[], None] | None = None
        self._is_early = False  # interrupted before there was a runner
        self._has_turned = threading.Event()  # the loop knows of the second interrupt
        self._is_over = threading.Event()
        self._error: type[BaseException] | None = None  # the exception of the next signal
        self._lock = threading.RLock()

    def watch(self, runner: Runner) -> None:
        """Directs interrupts to this runner from now on."""
        with self._lock:
            # The runner last: another thread that sees it finds the loop as well.
            self._loop = asyncio.get_running_loop()
            self._runner = runner
        if self._is_early:
            runner.drain()

    def watch_upload(self, give_up: Callable[[], None]) -> None:
        """Makes interrupts abandon the run's upload from now on, since the run has ended."""
        self._give_up = give_up

    def interrupt_from_outside(self) -> None:
        """Interrupts from another thread; without a runner, the run drains when it starts."""
        with self._lock:
            if self._runner is None:
                self._is_early = True
                self.count += 1
                return
        self.interrupt()

    def interrupt(self) -> None:
        """Notifies the runner, from any thread. Raises KeyboardInterrupt if there is none yet."""
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
        """Returns the error of an abandoned run."""
        left = ["the start of the run"]
        if self._runner is not None:
            left = self._runner.abandoned or ["an operation that did not end"]
        return GivenUp(f"abandoned: {'; '.join(left)}; results on disk are safe")

    @contextmanager
    def handled(self, loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any]) -> Generator[None]:
        """While entered, SIGINT and SIGTERM interrupt the run. No effect outside the main thread.

        main: cancelled if there is no runner yet; KeyboardInterrupt is then raised in its place.
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
        """Makes sure that the second interrupt ends the run. In a thread of its own."""
        if not self._has_turned.wait(_BLOCKED_S):
            self._raise_in_main(Unblocked)
        if not self._is_over.wait(GIVE_UP_S - _BLOCKED_S):
            self._raise_in_main(GivenUp)

    def _raise_in_main(self, error: type[BaseException]) -> None:
        with self._lock:
            if not self._is_over.is_set():
                self._error = error
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
