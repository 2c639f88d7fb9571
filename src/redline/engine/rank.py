"""One rank: a process that holds a part of the model and computes its part of every step.

Its works come by a pipe from the coordinator, the same to every rank and in one order. Between the
ranks go the sums of a stage, and the states from each stage to the next. When the pipe is closed,
however that came, the process ends at once.
"""

from __future__ import annotations

import os
import queue
import shutil
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

from redline.engine.runner import Runner, Work
from redline.engine.shard import Part, Source, load_part
from redline.errors import RedlineError


class Orders(NamedTuple):
    """What a rank is told first.

    folder: where the ranks meet. device: `cpu` or `cuda`. capacity: tokens of a slot.
    """

    source: Source
    part: Part
    folder: str
    dtype: torch.dtype
    device: str
    threads: int
    slots: int
    capacity: int


class Trouble(NamedTuple):
    """Why a rank ends, and when that was, on the clock that all processes share."""

    at_s: float
    error: str | RedlineError


def main(fds: Sequence[int], runner: type[Runner] = Runner) -> NoReturn:
    """Makes the ranks; waits until one has ended, ends the others, and tells which it was, and how.

    fds: of this process's own pipe to the coordinator, and of each rank's.
    Ranks are forks, because what they import takes seconds and hundreds of megabytes.
    """
    own, *lines = [Connection(fd) for fd in fds]
    ranks: dict[int, int] = {}
    for rank, line in enumerate(lines):
        pid = os.fork()
        if pid == 0:
            for other in (own, *lines):
                if other is not line:
                    other.close()
            _run(line, runner)
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
    # One that was killed comes before those that have lost it.
    first = min(ended, key=lambda pid: os.waitstatus_to_exitcode(ended[pid]))
    own.send((ranks[first], os.waitstatus_to_exitcode(ended[first])))
    # Python would take seconds to put away what was imported.
    os._exit(0)


def _run(line: Connection, runner: type[Runner]) -> NoReturn:
    try:
        _serve(line, line.recv(), runner)
    except Exception as error:
        # Whatever it is, the coordinator must hear why this rank is no more.
        told = error if isinstance(error, RedlineError) else f"{type(error).__name__}: {error}"
        line.send(Trouble(time.monotonic(), told))
    finally:
        os._exit(1)


def _serve(line: Connection, orders: Orders, runner_kind: type[Runner]) -> NoReturn:
    works: queue.SimpleQueue[Work] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(line, works, orders.folder), daemon=True).start()
    torch.set_num_threads(orders.threads)
    part = orders.part
    # With GPUs each rank has one of its own.
    device = torch.device("cpu") if orders.device == "cpu" else torch.device("cuda", part.rank)
    loaded = load_part(
        orders.source, part, _meet(orders, device), dtype=orders.dtype, device=device
    )
    runner = runner_kind(loaded, loaded.cache(orders.slots, orders.capacity))
    line.send(sum(each.numel() * each.element_size() for each in loaded.model.parameters()))
    # What is on its way to the next stage: this one goes on before it is taken.
    sending: deque[tuple[Any, Tensor]] = deque()
    while True:
        work, states = works.get(), None
        if not part.is_first:
            size = (len(work.tokens), loaded.hidden_size)
            states = torch.empty(size, dtype=loaded.dtype, device=device)
            dist.recv(states, part.rank - part.shares)
        found = runner.run(work, states)
        if not part.is_last:
            sending.append((dist.isend(found, part.rank + part.shares), found))
            if len(sending) > 2 * part.stages:
                sending.popleft()[0].wait()
        elif part.share == 0:
            line.send(found.cpu().numpy())


def _listen(line: Connection, works: queue.SimpleQueue[Work], folder: str) -> None:
    """Takes works in, until None or the end; then the process ends, whatever it is in."""
    try:
        while (work := line.recv()) is not None:
            works.put(work)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _meet(orders: Orders, device: torch.device) -> Any:
    """Joins the other ranks. Returns the group of those of its stage."""
    part = orders.part
    # All are on this machine, and its name need not lead to it.
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    backend = "nccl" if device.type == "cuda" else "gloo"
    os.environ.setdefault(f"{backend.upper()}_SOCKET_IFNAME", loopback)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    count = part.stages * part.shares
    place = f"file://{orders.folder}/ranks"
    dist.init_process_group(backend, init_method=place, rank=part.rank, world_size=count)
    groups = [
        dist.new_group(list(range(first, first + part.shares)))
        for first in range(0, count, part.shares)
    ]
    return groups[part.stage]
