"""Servers in processes that are forked from one which has imported redline.

A process that is begun from nothing takes most of a second of a core before it does anything. These
are for tests of what runs meanwhile, which claim nothing of such a beginning.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["redline.cli.commands.sim", "redline.sim.server", "redline.serve.batches"]
)


def started(serve: Callable[..., object], *args: object) -> tuple[BaseProcess, str]:
    """A process that calls a function of a module, and the first line that this writes to stdout.

    What else it writes is lost.
    """
    reader, writer = _FORKS.Pipe(duplex=False)
    with reader:
        with writer:
            given = (writer, dict(os.environ), os.getcwd(), serve, args)
            process = _FORKS.Process(target=_run, args=given, daemon=True)
            process.start()
        with open(reader.fileno(), closefd=False, encoding="utf-8") as lines:
            return process, lines.readline().strip()


def ended(process: BaseProcess, within_s: float = 20.0) -> None:
    """Waits until it has ended, as it has been asked to."""
    process.join(within_s)
    assert process.exitcode is not None


def _run(
    writer: Connection,
    environ: dict[str, str],
    folder: str,
    serve: Callable[..., object],
    args: tuple[object, ...],
) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), sys.stderr.fileno())
    os.dup2(writer.fileno(), sys.stdout.fileno())
    writer.close()
    serve(*args)
