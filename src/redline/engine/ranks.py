"""The coordinator's side of a model in many processes: starts them, hands works on, hears results.

The coordinator schedules and judges and has none of the model's weights. A rank that ends, or tells
of an error, ends them all.
"""

from __future__ import annotations

import os
import pickle
import queue
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

import torch
from torch import Tensor

from redline.engine.core import Computer
from redline.engine.load import dtype_of, load
from redline.engine.rank import Orders, Trouble
from redline.engine.runner import Runner, Work
from redline.engine.settings import EngineSettings
from redline.engine.shard import Part, Source, weight_files
from redline.engine.thread import EngineFailed
from redline.errors import ConfigError, RedlineError

# How long ranks may take to end when they are told to.
_END_S = 5.0
_MAIN = "import sys; from redline.engine.rank import main; main([int(fd) for fd in sys.argv[1:]])"
_HINT = "start the engine again; where memory is short, the system ends processes by SIGKILL"


def make_computer(settings: EngineSettings, config: Any, *, capacity: int, device: str) -> Computer:
    """The model in this process, or in as many ranks as the settings want. Raises ConfigError.

    capacity: tokens a slot. device: `cpu` or `cuda`.
    """
    if settings.tensor_parallel == settings.pipeline_parallel == 1:
        loaded = load(settings.model, config, dtype=settings.dtype, device=device)
        return Runner(loaded, loaded.cache(settings.max_batch_size, capacity))
    return Ranks(settings, config, capacity=capacity, device=device)


class Ranks:
    """tensor_parallel x pipeline_parallel processes as one computer, from now until `close`.

    parameter_bytes: of each rank. Raises ConfigError where the model cannot be split so.
    """

    def __init__(
        self, settings: EngineSettings, config: Any, *, capacity: int, device: str
    ) -> None:
        stages, shares = settings.pipeline_parallel, settings.tensor_parallel
        self._parts = [Part(rank, stages, shares) for rank in range(stages * shares)]
        self.steps_at_once = stages
        if device != "cpu" and torch.cuda.device_count() < len(self._parts):
            what = f"{len(self._parts)} ranks need as many GPUs"
            raise ConfigError(f"{what}, and this machine has {torch.cuda.device_count()}")
        orders = Orders(
            source=Source(settings.model, config, weight_files(settings.model)),
            part=self._parts[0],
            folder=tempfile.mkdtemp(prefix="redline-ranks-"),
            dtype=dtype_of(settings.dtype, config, device),
            device=device,
            threads=settings.threads,
            slots=settings.max_batch_size,
            capacity=capacity,
        )
        self._folder = orders.folder
        self._failure: RedlineError | None = None
        self._troubles: dict[int, Trouble] = {}
        self._told: queue.SimpleQueue[tuple[int, Any] | RedlineError] = queue.SimpleQueue()
        pipes = [Pipe() for _ in range(len(self._parts) + 1)]
        self._parent, *self._lines = [own for own, _ in pipes]
        self._process = self._start([theirs.fileno() for _, theirs in pipes])
        for _, theirs in pipes:
            theirs.close()
        self._listener = threading.Thread(target=self._listen, name="redline ranks", daemon=True)
        self._listener.start()
        for part in self._parts:
            self._send(part.rank, pickle.dumps(orders._replace(part=part)))
        try:
            sizes = dict(self._next() for _ in self._parts)
        except BaseException:
            self.close()
            raise
        self.parameter_bytes = [sizes[part.rank] for part in self._parts]

    def submit(self, work: Work) -> None:
        """Begins a step on all ranks. Raises EngineFailed where one has ended."""
        if self._failure is not None:
            raise self._failure
        data = pickle.dumps(work)
        for part in self._parts:
            self._send(part.rank, data)

    def result(self) -> Tensor:
        """(heard, vocabulary) float32 logits of the first step submitted that was not told yet.

        Raises EngineFailed.
        """
        return torch.from_numpy(self._next()[1])

    def close(self) -> None:
        """Ends the ranks, whatever they are in."""
        for part in self._parts:
            self._send(part.rank, pickle.dumps(None))
        self._listener.join(_END_S)
        if self._listener.is_alive():
            self._kill()
            self._listener.join()
        for line in (self._parent, *self._lines):
            line.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, fds: list[int]) -> subprocess.Popen[bytes]:
        """The process that makes the ranks; at the first pipe it tells how they end."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, *map(str, fds)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                # What it imports asks for GPUs, and where CUDA has answered no fork can use one.
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            },
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            # gloo writes there who is connected.
            stdout=subprocess.DEVNULL,
            # An interrupt from the terminal is for the coordinator, which then ends the ranks.
            start_new_session=True,
        )

    def _send(self, rank: int, data: bytes) -> None:
        # Of one that has ended the listener hears, and `result` tells it.
        with suppress(OSError):
            self._lines[rank].send_bytes(data)

    def _next(self) -> tuple[int, Any]:
        """The next that a rank has told, and which."""
        told = self._told.get()
        if isinstance(told, RedlineError):
            # Nothing else will come: who asks again is told again.
            self._told.put(told)
            raise told
        return told

    def _listen(self) -> None:
        """Takes in what ranks tell, until one has ended."""
        with selectors.DefaultSelector() as selector:
            for rank, line in enumerate(self._lines):
                selector.register(line, selectors.EVENT_READ, rank)
            selector.register(self._parent, selectors.EVENT_READ)
            while self._failure is None:
                for key, _ in selector.select():
                    if key.data is None:
                        self._fail()
                        break
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)

    def _hear(self, rank: int) -> bool:
        """Takes in one thing that the rank tells; False where it has ended."""
        try:
            told = self._lines[rank].recv()
        except (EOFError, OSError):
            return False
        if isinstance(told, Trouble):
            self._troubles[rank] = told
        else:
            self._told.put((rank, told))
        return True

    def _fail(self) -> None:
        """Ranks have ended, and the others do."""
        try:
            rank, status = self._parent.recv()
        except (EOFError, OSError):
            rank, status = None, 0
        for at, line in enumerate(self._lines):
            while line.poll() and self._hear(at):
                pass
        if status >= 0 and self._troubles:
            # One that has lost its peer fails after it.
            rank = min(self._troubles, key=lambda at: self._troubles[at].at_s)
        self._failure = self._cause(rank, status)
        if rank is None:
            self._kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._told.put(self._failure)

    def _cause(self, rank: int | None, status: int) -> RedlineError:
        if rank is None:
            return EngineFailed("the process that has made the ranks was ended", hint=_HINT)
        trouble = self._troubles.get(rank) if status >= 0 else None
        if trouble is not None and isinstance(trouble.error, RedlineError):
            return trouble.error
        part = self._parts[rank]
        who = f"rank {rank} of {len(self._parts)} (stage {part.stage}, share {part.share})"
        how = f"has ended with status {status}"
        if status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        elif trouble is not None:
            how = f"has failed: {trouble.error}"
        return EngineFailed(f"{who} {how}", hint=_HINT)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
