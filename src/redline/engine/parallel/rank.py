"""Runs one rank: a process that holds a part of the model and computes its part of every step.

A rank receives its work through a pipe from the coordinator, which sends the same work to every
rank in the same order. The ranks of a stage exchange sums, and each stage passes its states to the
next. When the pipe closes, for any reason, the process ends at once.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch import distributed as dist

from redline.engine.model import Runner, Work, dtype_of, reading
from redline.engine.parallel.shard import Placement, Source, load_shard
from redline.engine.settings import EngineSettings
from redline.errors import RedlineError


class Orders(NamedTuple):
    """The first message to every rank. capacity: tokens per slot. device: `cpu` or `cuda`."""

    settings: EngineSettings
    source: Source
    capacity: int
    device: str


class Trouble(NamedTuple):
    """The error that ends a rank. at_s: when, on the monotonic clock that all processes share."""

    at_s: float
    error: str | RedlineError


def main(fds: Sequence[int], runner: type[Runner] = Runner) -> NoReturn:
    """Starts the ranks; when one ends, kills the others and reports its number and exit status.

    fds: the file descriptors of this process's own pipe to the coordinator, then of each rank's
    pipe. Ranks are forks, because their imports take seconds and hundreds of megabytes.
    """
    own, *lines = [Connection(fd) for fd in fds]
    # The ranks meet in a file without a name, so no file is left behind, whatever ends first.
    meeting = os.memfd_create("redline ranks")
    ranks: dict[int, int] = {}
    for rank, line in enumerate(lines):
        pid = os.fork()
        if pid == 0:
            for other in (own, *lines):
                if other is not line:
                    other.close()
            _run(rank, line, f"file:///proc/self/fd/{meeting}", runner)
        ranks[pid] = rank
    for line in lines:
        line.close()
    ended = dict([os.wait()])
    with suppress(ChildProcessError):
        while (more := os.waitpid(-1, os.WNOHANG))[0]:
            ended.update([more])
    for pid in ranks.keys() - ended.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    # A rank that was killed is reported rather than ranks that failed because they lost their peer.
    status, rank = min((os.waitstatus_to_exitcode(how), ranks[pid]) for pid, how in ended.items())
    with suppress(OSError):  # the coordinator may have ended before
        own.send((rank, status))
    # Python would take seconds to release the imported modules.
    os._exit(0)


def _run(rank: int, line: Connection, meeting: str, runner: type[Runner]) -> NoReturn:
    try:
        orders: Orders = line.recv()
        works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(line, works), daemon=True).start()
        settings = orders.settings
        torch.set_num_threads(settings.threads)
        part = Placement(rank, settings.pipeline_parallel, settings.tensor_parallel)
        # With GPUs, each rank has its own.
        device = torch.device("cpu") if orders.device == "cpu" else torch.device("cuda", rank)
        dtype = dtype_of(settings.dtype, orders.source.config, orders.device)
        group = _meet(part, meeting, device)
        with reading("cannot load a part of the model in", orders.source.name):
            loaded = load_shard(orders.source, part, group, dtype=dtype, device=device)
        sharers = part.stages * part.shares if device.type == "cpu" else 1
        cache = loaded.cache(settings.max_batch_size, orders.capacity, sharers)
        computing = runner(loaded, cache)
        line.send((rank, *computing.parameter_bytes))
        _compute(computing, part, works, line)
    except Exception as error:
        # Whatever the error is, the coordinator must learn why this rank ended.
        told = error if isinstance(error, RedlineError) else f"{type(error).__name__}: {error}"
        line.send(Trouble(time.monotonic(), told))
    finally:
        os._exit(1)


def _listen(line: Connection, works: queue.SimpleQueue[Work]) -> None:
    """Receives work until None or the end of the pipe, and then ends the process at once."""
    try:
        while (work := line.recv()) is not None:
            works.put(work)
    finally:
        os._exit(0)


def _compute(
    runner: Runner, part: Placement, works: queue.SimpleQueue[Work], line: Connection
) -> NoReturn:
    loaded = runner.loaded
    # States on their way to the next stage, which may not have received them yet.
    sending: deque[tuple[Any, Tensor]] = deque()
    while True:
        work, states = works.get(), None
        if not part.is_first:
            size = (len(work.tokens), loaded.hidden_size)
            states = torch.empty(size, dtype=loaded.dtype, device=loaded.device)
            dist.recv(states, part.rank - part.shares)
        found = runner.run(work, states)
        if not part.is_last:
            sending.append((dist.isend(found, part.rank + part.shares), found))
            if len(sending) > 2 * part.stages:
                sending.popleft()[0].wait()
        elif part.share == 0:
            line.send(found.cpu().numpy())


def _meet(part: Placement, meeting: str, device: torch.device) -> Any:
    """Joins the other ranks, and returns the group of the ranks in this stage."""
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    # All ranks are on this machine, whose host name may not resolve.
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault(f"{backend.upper()}_SOCKET_IFNAME", loopback)
    count = part.stages * part.shares
    dist.init_process_group(backend, init_method=meeting, rank=part.rank, world_size=count)
    return dist.new_subgroups(part.shares)[0]  # type: ignore[no-untyped-call]
