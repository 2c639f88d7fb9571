"""Describes a worker to its process, and shares limits and counts among workers."""

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
    """One of several processes that serve an address, as described in its environment.

    number: from 0. workers: how many there are. fd: the file descriptor of the shared memory table.
    folder: for files that the workers exchange. inside: the base URL of the embedded server in the
    parent; None without one. flags: the flags of the command line. url_fd: the file descriptor to
    which the worker writes its base URL; -1 in the parent.
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
        """Returns the environment variables for the process that will be this worker."""
        described = msgspec.structs.replace(self, url_fd=url_fd)
        return {**os.environ, _VARIABLE: msgspec.json.encode(described).decode()}

    def tell(self, url: str) -> None:
        """Reports the base URL to the parent process; to be called once."""
        # If the parent has ended, the worker is about to end, too.
        with suppress(OSError):
            os.write(self.url_fd, url.encode())
        os.close(self.url_fd)

    @property
    def name(self) -> str:
        """The worker's name in notices."""
        return f"worker {self.number + 1}"

    @property
    def is_first(self) -> bool:
        """Whether this worker owns the resources that only one worker can own."""
        return not self.number

    @cached_property
    def table(self) -> SharedTable:
        return SharedTable(self.fd)

    @property
    def door(self) -> Path:
        """The Unix socket on which the first worker serves the others."""
        return Path(self.folder) / "door"

    def sharer(self, demand: Callable[[str], Demand]) -> Sharer:
        """Returns the object through which this worker shares slots. demand: see Sharer."""
        return Sharer(self.table, self.number, demand)

    def flights(self, name: str) -> Flights:
        """Returns a count of calls in flight in all workers. name: the same in all workers."""
        return SharedFlights(self.table, name, self.number)

    def sharing(self, endpoint: Endpoint, state: Path) -> Endpoint:
        """Returns the endpoint with rates that all workers share through a ledger in `state`.

        Rates that are discovered, not configured, stay separate in each worker.
        """
        limits = endpoint.limits
        if limits.share or limits.rate == AUTO or not rated(limits):
            return endpoint
        # Changed rates get a different ledger: while settings are reloaded, some workers still use
        # the old rates.
        words = f"{account_of(endpoint)} {described(limits)}"
        name = blake2b(words.encode(), digest_size=8).hexdigest()
        state.mkdir(parents=True, exist_ok=True)
        return msgspec.structs.replace(
            endpoint, limits=msgspec.structs.replace(limits, share=str(state / f"{name}.ledger"))
        )

    def on_orphaned(self, told: Callable[[], object]) -> None:
        """Makes the running event loop call `told` once the parent process has ended.

        The folder of the workers is then removed.
        """
        loop = asyncio.get_running_loop()
        fd = sys.stdin.fileno()

        def ended() -> None:
            loop.remove_reader(fd)
            # The parent would have removed the folder.
            shutil.rmtree(self.folder, ignore_errors=True)
            told()

        loop.add_reader(fd, ended)


def slots_of(
    sharer: Sharer, endpoint: Endpoint, count: int, *, pool: str, most: int | None
) -> Slots:
    """Returns the slots of an endpoint, shared by all workers.

    count: the most calls in flight at the endpoint. pool: the name of its pool. most: the most
    calls in flight at all endpoints of the pool together; None for no such bound.
    """
    label = endpoint.label
    counts = [SharedCount(sharer, f"endpoint/{account_of(endpoint)}", count, label)]
    if most is not None:
        counts.append(SharedCount(sharer, f"pool/{pool}", most, label))
    return SharedSlots(sharer, counts)


def this_worker() -> Worker | None:
    """Returns this process's worker on the first call; None later, or if it is not a worker."""
    text = os.environ.pop(_VARIABLE, None)
    if text is None:
        return None
    worker = msgspec.json.decode(text, type=Worker)
    # Processes that the worker starts must not inherit these.
    for fd in (worker.fd, worker.url_fd):
        os.set_inheritable(fd, False)
    return worker
