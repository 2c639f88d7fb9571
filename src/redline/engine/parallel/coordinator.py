"""Coordinates a model in many processes: starts them, sends work and receives results.

The coordinator schedules and judges, but holds none of the model's weights. If a rank ends or
reports an error, all ranks end.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from redline.engine.model import Work
from redline.engine.parallel.rank import Orders, Trouble
from redline.engine.parallel.shard import Source, weight_files
from redline.engine.settings import EngineSettings
from redline.engine.step import Computer, EngineFailed, open_runner, try_ranks
from redline.errors import ConfigError, RedlineError

# Ranks that are still running this many seconds after the order to end are killed.
_END_S = 5.0
_MAIN = """
import sys
from redline.engine.parallel.rank import main
main([int(fd) for fd in sys.argv[1:]])
"""
_HINT = (
    "start the engine again; if memory ran out, the OOM killer may have ended the process (SIGKILL)"
)


def make_computer(settings: EngineSettings, config: Any, *, capacity: int, device: str) -> Computer:
    """Opens the model in this process, or in the ranks of the settings.

    capacity: tokens per slot. device: `cpu` or `cuda`. Raises ConfigError if the model cannot run,
    and EngineFailed if a rank ends before it is ready.
    """
    if settings.tensor_parallel == settings.pipeline_parallel == 1:
        return open_runner(settings.model, config, settings, capacity=capacity, device=device)
    ranks = Ranks(settings, config, capacity=capacity, device=device)
    try_ranks(ranks, settings, config, capacity)
    return ranks


class Ranks:
    """Runs tensor_parallel x pipeline_parallel processes as one Computer, until `close`.

    parameter_bytes: the bytes of the parameters in each rank. Raises ConfigError if the model
    cannot be split in this way on this machine, and EngineFailed if a rank ends before it is ready.
    """

    def __init__(
        self, settings: EngineSettings, config: Any, *, capacity: int, device: str
    ) -> None:
        self._shares, self.steps_at_once = settings.tensor_parallel, settings.pipeline_parallel
        count = self._shares * self.steps_at_once
        if not hasattr(os, "memfd_create"):
            raise ConfigError("splitting a model needs Linux", hint="use one process")
        if device != "cpu" and torch.cuda.device_count() < count:
            has = f"this machine has {torch.cuda.device_count()}"
            raise ConfigError(f"{count} ranks need as many GPUs, but {has}")
        source = Source(settings.model, config, weight_files(settings.model))
        self._failure: RedlineError | None = None
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watchers: list[Callable[[RedlineError], None]] = [self._told.put]
        pipes = [Pipe() for _ in range(count + 1)]
        self._parent, *self._lines = [own for own, _ in pipes]
        self._process = self._start([theirs.fileno() for _, theirs in pipes])
        for _, theirs in pipes:
            theirs.close()
        self._listener = threading.Thread(target=self._listen, name="redline ranks", daemon=True)
        self._listener.start()
        self._tell(Orders(settings, source, capacity, device))
        try:
            sizes = sorted(self._next() for _ in range(count))
        except BaseException:
            self.close()
            raise
        self.parameter_bytes: list[int] = [size for _, size in sizes]

    def submit(self, work: Work) -> None:
        """Begins a step on all ranks. Raises EngineFailed if a rank has ended."""
        if self._failure is not None:
            raise self._failure
        self._tell(work)

    def result(self) -> Tensor:
        """Returns (heard, vocabulary) float32 logits of the oldest step not yet returned.

        Raises EngineFailed if a rank has ended.
        """
        return torch.from_numpy(self._next())

    def watch(self, told: Callable[[RedlineError], None]) -> None:
        """Registers `told`, which is called in another thread with the reason when a rank ends.

        If a rank has already ended, `told` is called at once.
        """
        self._watchers.append(told)
        if self._failure is not None:
            told(self._failure)

    def close(self) -> None:
        """Ends the ranks, whatever they are doing."""
        self._tell(None)
        self._listener.join(_END_S)
        if self._listener.is_alive():
            self._kill()
            self._listener.join()
        for line in (self._parent, *self._lines):
            line.close()

    def _start(self, fds: list[int]) -> subprocess.Popen[bytes]:
        """Starts the process that forks the ranks.

        fds: the pipe in which that process reports which rank ended first, and how; then a pipe for
        each rank.
        """
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, *map(str, fds)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                # Its imports look for GPUs, and once CUDA is initialized, no fork can use a GPU.
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            },
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            # gloo prints its connections to standard output.
            stdout=subprocess.DEVNULL,
            # An interrupt from the terminal is for the coordinator, which then ends the ranks.
            start_new_session=True,
        )

    def _tell(self, what: Orders | Work | None) -> None:
        data = pickle.dumps(what)
        for line in self._lines:
            # The listener notices a rank that has ended, and `result` reports it.
            with suppress(OSError):
                line.send_bytes(data)

    def _next(self) -> Any:
        """Returns the next message from any rank. Raises the reason if the ranks have ended."""
        told = self._told.get()
        if isinstance(told, RedlineError):
            # No other message will arrive: repeated calls raise the same error.
            self._told.put(told)
            raise told
        return told

    def _listen(self) -> None:
        """Receives the ranks' messages until all ranks have ended; once one ends, all do."""
        ranks: dict[Any, int | None] = {line: rank for rank, line in enumerate(self._lines)}
        ranks[self._parent] = None
        ended: tuple[int, int] | None = None
        troubles: list[tuple[float, int, str | RedlineError]] = []
        while ranks:
            for line in wait(ranks):
                assert isinstance(line, Connection)
                rank = ranks[line]
                try:
                    told = line.recv()
                except (EOFError, OSError):
                    del ranks[line]
                    if line is self._parent:
                        self._kill()
                    continue
                if rank is None:
                    ended = told
                elif isinstance(told, Trouble):
                    troubles.append((told.at_s, rank, told.error))
                else:
                    self._told.put(told)
        self._failure = self._cause(ended, troubles)
        for told in self._watchers:
            told(self._failure)

    def _cause(
        self, ended: tuple[int, int] | None, troubles: list[tuple[float, int, str | RedlineError]]
    ) -> RedlineError:
        if ended is None:
            return EngineFailed("the process that started the ranks has ended", hint=_HINT)
        rank, status = ended
        how = f"exited with status {status}"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        elif troubles:
            # The earliest failure is the cause: ranks that lose their peer fail after it.
            _, rank, error = min(troubles)
            if isinstance(error, RedlineError):
                return error
            how = f"failed: {error}"
        stage, share = divmod(rank, self._shares)
        who = f"rank {rank} of {len(self._lines)} (stage {stage}, share {share})"
        return EngineFailed(f"{who} {how}", hint=_HINT)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
