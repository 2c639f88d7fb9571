"""What one of several workers gets from its parent process, and what the workers share."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from redline.calls import Endpoint
from redline.calls.http import account_of
from redline.limits import Slots
from redline.limits.rule import AUTO
from redline.limits.shared import (
    Demand,
    Flights,
    SharedCount,
    SharedFlights,
    SharedSlots,
    Sharer,
    described,
    rated,
)
from redline.process import SharedTable

_VARIABLE = "REDLINE_WORKER"


class Worker(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One of the processes that serve an address, as its parent describes it in its environment.

    number: from 0. fd: of the shared memory table. folder: for the messages between workers.
    inside: the base URL of the embedded server in the parent, if there is one. flags: of the
    command line. url_fd: where the worker writes its base URL; -1 in the parent.
    """

    number: int
    workers: int
    fd: int
    folder: str
    port: int
    inside: str | None
    flags: dict[str, Any]
    url_fd: int = -1

    def environment(self, url_fd: int) -> dict[str, str]:
        """The environment variables of the process that is to be this worker."""
        described = msgspec.structs.replace(self, url_fd=url_fd)
        return {**os.environ, _VARIABLE: msgspec.json.encode(described).decode()}

    def tell(self, url: str) -> None:
        """Tells the parent process the base URL, once."""
        # Without a parent, the worker is about to end.
        with suppress(OSError):
            os.write(self.url_fd, url.encode())
        os.close(self.url_fd)

    @property
    def name(self) -> str:
        """Its name in notes."""
        return f"worker {self.number + 1}"

    @property
    def is_first(self) -> bool:
        """It owns what only one worker can have."""
        return not self.number

    @cached_property
    def table(self) -> SharedTable:
        return SharedTable(self.fd)

    @property
    def door(self) -> Path:
        """The socket of the first worker for the others."""
        return Path(self.folder) / "door"

    def sharer(self, demand: Callable[[str], Demand]) -> Sharer:
        """This worker's part in sharing slots. demand: see Sharer."""
        return Sharer(self.table, self.number, demand)

    def flights(self, name: str) -> Flights:
        """The calls in flight in all workers. name: equal in all of them."""
        return SharedFlights(self.table, name, self.number)

    def sharing(self, endpoint: Endpoint, state: Path) -> Endpoint:
        """The endpoint with rates that all workers share, by a ledger in `state`.

        Rates that are discovered, and not configured, remain separate in each worker.
        """
        limits = endpoint.limits
        if limits.share or limits.rate == AUTO or not rated(limits):
            return endpoint
        # Changed rates get another ledger: while settings change, some workers still use the old
        # one.
        words = f"{account_of(endpoint)} {described(limits)}"
        name = blake2b(words.encode(), digest_size=8).hexdigest()
        state.mkdir(parents=True, exist_ok=True)
        return msgspec.structs.replace(
            endpoint, limits=msgspec.structs.replace(limits, share=str(state / f"{name}.ledger"))
        )

    def on_orphaned(self, told: Callable[[], object]) -> None:
        """Makes the running event loop call `told` once the parent process has ended."""
        loop = asyncio.get_running_loop()
        fd = sys.stdin.fileno()

        def ended() -> None:
            loop.remove_reader(fd)
            # No other process is left to do it.
            shutil.rmtree(self.folder, ignore_errors=True)
            told()

        loop.add_reader(fd, ended)


def slots_of(
    sharer: Sharer, endpoint: Endpoint, count: int, *, pool: str, most: int | None
) -> Slots:
    """The slots of an endpoint, shared by all workers.

    pool: its name. most: how many calls may be at all of its endpoints together; None for the sum
    of what each allows.
    """
    label = endpoint.label
    counts = [SharedCount(sharer, f"endpoint/{account_of(endpoint)}", count, label)]
    if most is not None:
        counts.append(SharedCount(sharer, f"pool/{pool}", most, label))
    return SharedSlots(sharer, counts)


def this_worker() -> Worker | None:
    """The worker that this process is to be, returned once; None if it is not a worker."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    worker = msgspec.json.decode(text, type=Worker)
    # Processes that it starts do not inherit these.
    for fd in (worker.fd, worker.url_fd):
        os.set_inheritable(fd, False)
    return worker
