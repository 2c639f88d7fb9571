"""Commands and servers in processes that are forked from one which has imported redline.

A process that is begun from nothing takes most of a second of a core before it does anything. These
are for tests of what runs meanwhile, which claim nothing of such a beginning.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *(f"redline.cli.commands.{name}" for name in ("run", "serve", "sim")),
        *("redline.job", "redline.serve.gateway", "redline.sim.server"),
    ]
)


class Command:
    """`redline WORDS` with text in pipes, as `subprocess.Popen` has it.

    environ: None for that of this process. stdin: subprocess.PIPE, the descriptor of a file, or
    None for one that is at its end.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: int | None = None,
    ) -> None:
        self.args = ["redline", *words]
        (given, writer), *pipes = (_FORKS.Pipe(duplex=False) for _ in range(3))
        self.stdin = _file(writer, "w")
        self.stdout, self.stderr = (_file(reader, "r") for reader, _ in pipes)
        if stdin != subprocess.PIPE:
            self.stdin.close()
            if stdin is not None:
                given = Connection(os.dup(stdin), writable=False)
        streams = (given, *(written for _, written in pipes))
        environ = os.environ if environ is None else environ
        self._process = _begun(streams, environ, str(cwd or Path.cwd()), _command, (self.args,))
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        found = ["", ""]

        def read(place: int, stream: TextIO) -> None:
            if not stream.closed:
                with stream:
                    found[place] = stream.read()

        with suppress(BrokenPipeError):
            self.stdin.close()
        streams = enumerate((self.stdout, self.stderr))
        readers = [threading.Thread(target=read, args=one, daemon=True) for one in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        return found[0], found[1]


def started(serve: Callable[..., object], *args: object) -> tuple[BaseProcess, str]:
    """A process that calls a function of a module, and the first line that this writes to stdout.

    What else it writes is lost.
    """
    reader, writer = _FORKS.Pipe(duplex=False)
    process = _begun((None, writer, None), os.environ, os.getcwd(), serve, args)
    with _file(reader, "r") as lines:
        return process, lines.readline().strip()


def ended(process: BaseProcess, within_s: float = 20.0) -> None:
    """Waits until it has ended, as it has been asked to."""
    process.join(within_s)
    assert process.exitcode is not None


def _begun(
    streams: Sequence[Connection | None],
    environ: Mapping[str, str],
    folder: str,
    function: Callable[..., object],
    args: Sequence[object],
) -> BaseProcess:
    """The process. streams: its stdin, stdout and stderr, which are closed here; None for none."""
    given = (streams, dict(environ), folder, function, args)
    process = _FORKS.Process(target=_run, args=given, daemon=True)
    process.start()
    for stream in streams:
        if stream is not None:
            stream.close()
    return process


def _file(end: Connection, mode: str) -> TextIO:
    """A file of this end of a pipe."""
    with end:
        return open(os.dup(end.fileno()), mode, encoding="utf-8")


def _run(
    streams: Sequence[Connection | None],
    environ: dict[str, str],
    folder: str,
    function: Callable[..., object],
    args: Sequence[object],
) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, stream in enumerate(streams):
        os.dup2(nothing if stream is None else stream.fileno(), number)
        if stream is not None:
            stream.close()
    os.close(nothing)
    # Its own was closed by multiprocessing.
    sys.stdin = os.fdopen(0, closefd=False)
    function(*args)


def _command(words: list[str]) -> None:
    # As `python -m redline` begins.
    sys.argv = words
    sys.path.insert(0, os.getcwd())
    from redline.cli import main

    main()
