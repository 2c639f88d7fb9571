"""Starts workers, replaces those that are lost, and ends them all.

a worker  from                    until
starting  a new process           it has reported its base URL, or has ended
serving   its base URL            it ends, or gets SIGTERM
lost      its unexpected end      a pause is over; then it is starting again. Its counts of calls
                                  in flight are cleared at once
ending    SIGTERM                 its calls in flight have ended

When a worker's standard input ends, which means that this process has ended, the worker ends as
after SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from redline.clock import SYSTEM
from redline.job.settings import Embedded
from redline.process import SharedTable, on_signals
from redline.serve.workers.address import reserved
from redline.serve.workers.worker import Worker

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
# If a worker has served for this long, its settings are not the reason for its end.
_SETTLED_S = 30.0
_MOST_URL_BYTES = 4096
_COMMAND = (sys.executable, "-P", "-m", "redline", "serve")


async def supervise(
    stop: asyncio.Event,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
    *,
    workers: int,
    address: tuple[str, int],
    embedded: Embedded | None,
    flags: dict[str, Any],
) -> int:
    """Runs workers until `stop` is set; returns their highest exit status.

    Also returns if a worker ends before all of them serve for the first time.

    on_url: called with the base URL once all workers listen. on_note: called with each notice.
    workers: their number. embedded: a server that this process runs and all workers use. flags: the
    flags of the command line. A second signal ends all workers and this process at once. Raises
    ConfigError if the address or the embedded server cannot be used.
    """
    # SIGHUP has no effect before there are workers: they read the settings when they start.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
    table = SharedTable.make(workers)
    folder = tempfile.mkdtemp(prefix="redline-")
    try:
        with reserved(*address) as port:
            async with nullcontext() if embedded is None else embedded.open() as inside:
                described = [
                    Worker(
                        number=number,
                        workers=workers,
                        fd=table.fd,
                        folder=folder,
                        port=port,
                        inside=inside,
                        flags=flags,
                    )
                    for number in range(workers)
                ]
                return await _Supervisor(described, table, stop, on_note).run(on_url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Child:
    """Runs one worker's process, and its replacement if the process is lost."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._process: Process | None = None
        self._is_ending = False
        self._is_serving = False
        self._is_outdated = False  # the settings have changed since it was started

    async def start(self) -> str:
        """Starts the process; returns its base URL once it listens, "" if it ended before that."""
        self._is_serving = self._is_outdated = False
        # The URL does not come on standard output, which is shared: a served function may print.
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                url_fd = theirs.fileno()
                self._process = await asyncio.create_subprocess_exec(
                    *_COMMAND,
                    stdin=PIPE,
                    env=self.worker.environment(url_fd),
                    pass_fds=(self.worker.fd, url_fd),
                    # Ctrl-C signals only this process, which then ends its workers.
                    start_new_session=True,
                )
            if self._is_ending:
                self.tell(signal.SIGTERM)
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            url = (await loop.sock_recv(ours, _MOST_URL_BYTES)).decode()
        self._is_serving = bool(url)
        if self._is_serving and self._is_outdated:
            self.tell(signal.SIGHUP)
        return url

    async def wait(self) -> int:
        """Returns the worker's exit status; 128 + the signal's number if a signal ended it.

        Returns 0 if the worker was not started, or if the SIGTERM of `end` ended it before it began
        to serve.
        """
        if self._process is None:
            return 0
        status = await self._process.wait()
        if self._is_ending and status == -signal.SIGTERM:
            # The worker had not begun to serve.
            return 0
        return status if status >= 0 else 128 - status

    def hang_up(self) -> None:
        """Makes the worker reload its settings once it serves; until then, SIGHUP would end it."""
        self._is_outdated = True
        if self._is_serving:
            self.tell(signal.SIGHUP)

    def end(self) -> None:
        """Sends SIGTERM only once: a second signal would not let the worker's calls finish."""
        if not self._is_ending:
            self._is_ending = True
            self.tell(signal.SIGTERM)

    def tell(self, number: int) -> None:
        """Sends a signal to the worker if it is running."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class _Supervisor:
    def __init__(
        self,
        workers: list[Worker],
        table: SharedTable,
        stop: asyncio.Event,
        on_note: Callable[[str], None],
    ) -> None:
        self._children = [_Child(worker) for worker in workers]
        self._table = table
        self._stop = stop
        self._on_note = on_note

    async def run(self, on_url: Callable[[str], None]) -> int:
        """Runs the workers until they have ended; returns their highest exit status."""
        on_signals(self._close)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        starting = loop.create_task(self._start_all())
        stopping = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            url = starting.result() if starting.done() else ""
            if url:
                on_url(url)
                keeping = [loop.create_task(self._keep(child)) for child in self._children]
                await stopping
                await asyncio.gather(*keeping)
        finally:
            starting.cancel()
            stopping.cancel()
            for child in self._children:
                child.end()
        statuses = [await child.wait() for child in self._children]
        for child, status in zip(self._children, statuses, strict=True):
            if not url and status > 128:
                # A signal ended the worker, for example for lack of memory. In all other cases,
                # the worker has reported the reason itself.
                self._on_note(
                    f"{child.worker.name} ended with status {status} before it could serve"
                )
        return max(statuses)

    async def _start_all(self) -> str:
        """Starts all workers; returns their base URL, or "" if one of them ended instead."""
        first, *others = self._children
        # The first worker owns resources that the others need, so it must be ready before them.
        url = await first.start()
        if not url:
            return ""
        return url if all(await asyncio.gather(*(child.start() for child in others))) else ""

    async def _keep(self, child: _Child) -> None:
        """Restarts a worker whenever it ends, until `stop` is set."""
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = SYSTEM.now_s()
            status = await child.wait()
            # Its calls in flight have ended with it, so clear their counts.
            self._table.forget(child.worker.number)
            if self._stop.is_set():
                return
            if SYSTEM.now_s() - began_s > _SETTLED_S:
                pause_s = _FIRST_PAUSE_S
            self._on_note(f"{child.worker.name} ended with status {status}; starting it again")
            try:
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
                return
            except TimeoutError:
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            try:
                await child.start()
            except OSError as error:
                self._on_note(f"{child.worker.name} cannot be started: {error.strerror or error}")

    def _close(self, number: int) -> None:
        """Ends all workers; a second signal kills them and ends this process at once."""
        if self._stop.is_set():
            for child in self._children:
                child.tell(signal.SIGKILL)
            shutil.rmtree(self._children[0].worker.folder, ignore_errors=True)
            os._exit(128 + number)
        self._stop.set()
        for child in self._children:
            child.end()

    def _hang_up(self) -> None:
        for child in self._children:
            child.hang_up()
