"""An event loop with a network of its own: connections without sockets, threads without threads.

What would depend on the machine is made to depend on the script alone: time is virtual, work for a
thread is done at once and its result comes a moment later, and sets of tasks are in the order in
which those were made.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple

from redline.testing import VirtualLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Of one run, which takes 40 s at most.
LONGEST_S = 2_000.0
# How long a connection takes to be made, at most.
HANDSHAKE_S = 0.005
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
# A reading of the input, an fsync: from at once to several groups of lines late.
_WORK_S = (0.0, 0.0, 0.0, 0.001, 0.02, 0.2)


class Numbered:
    """Equal to itself alone, and hashed by its number in the loop that it was made in.

    The order of a set follows from hashes, and those of other objects are their addresses.
    """

    __slots__ = ()

    def number_it(self) -> int:
        loop: Any = asyncio.get_running_loop()
        return int(next(loop.numbers))


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: Any, **more: Any) -> None:
        self._number: int = next(loop.numbers)
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class World(Protocol):
    """What a loop's connections lead to."""

    def refuses(self, number: int) -> str:
        """What becomes of the number-th connection: `made`, `refused` or `hangs`."""
        ...

    def asked(self, wire: Wire, body: bytes) -> None: ...
    def left(self, wire: Wire) -> None: ...


class FaultLoop(VirtualLoop):
    """The loop of one run. world: answers its connections; set before the first.

    complaints: what a task or a callback raised that nobody took.
    """

    def __init__(self, *, start_s: float, chance: random.Random) -> None:
        super().__init__(start_s=start_s, limit_s=LONGEST_S)
        self.numbers = itertools.count(1)
        self.world: Any = None
        self.wires: list[Wire] = []
        self.complaints: list[str] = []
        self._chance = chance
        self._connections = itertools.count(1)
        self.set_task_factory(lambda loop, coro, **more: _Task(coro, loop=loop, **more))
        self.set_exception_handler(self._complain)

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """The function's result, which comes after a moment; the function is called now."""
        future: asyncio.Future[T] = self.create_future()
        give: Callable[[], None]
        try:
            give = partial(future.set_result, func(*args))
        except Exception as error:
            give = partial(future.set_exception, error)

        def settle() -> None:
            if not future.cancelled():
                give()

        self.call_later(self._chance.choice(_WORK_S), settle)
        return future

    async def create_connection(self, protocol_factory: Any, *place: Any, **more: Any) -> Any:
        """A connection to the world, after a moment, or not."""
        number = next(self._connections)
        fate = self.world.refuses(number)
        await asyncio.sleep(self._chance.choice((0.0, 0.0, HANDSHAKE_S)))
        if fate == "hangs":
            await self.create_future()
        if fate == "refused":
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        protocol = protocol_factory()
        wire = Wire(self, protocol, self.world)
        self.wires.append(wire)
        protocol.connection_made(wire)
        return wire, protocol


class Wire(asyncio.Transport):
    """A client's end of a connection; the world sends, ends and resets the other one."""

    def __init__(self, loop: FaultLoop, protocol: Any, world: World) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._world = world
        self._unread = b""
        self._unheard: list[Callable[[], None]] = []
        self._is_paused = False
        self.is_closed = False  # by the client
        self.is_ended = False  # by the server
        self.asking: Any = None  # what the server is about to answer

    # What the client does.

    def write(self, data: Any) -> None:
        if not self.is_closed and not self.is_ended:
            self._unread += data
            self._loop.call_soon(self._read)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def abort(self) -> None:
        self._lose(None)

    def close(self) -> None:
        self._lose(None)

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._tell)

    def get_write_buffer_size(self) -> int:
        return 0

    # What the server does.

    def send(self, data: bytes) -> None:
        self._hear(lambda: self._protocol.data_received(data))

    def end(self) -> None:
        """The server closes its end."""
        if not self.is_ended:
            self.is_ended = True
            self._hear(self._end)

    def reset(self) -> None:
        """The connection breaks."""
        if not self.is_ended:
            self.is_ended = True
            self._hear(lambda: self._lose(ConnectionResetError(errno.ECONNRESET, "reset by peer")))

    def _end(self) -> None:
        if not self._protocol.eof_received():
            self._lose(None)

    def _hear(self, tell: Callable[[], None]) -> None:
        self._unheard.append(tell)
        self._tell()

    def _tell(self) -> None:
        while self._unheard and not self._is_paused and not self.is_closed:
            self._unheard.pop(0)()

    def _lose(self, error: Exception | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, error)
            self._world.left(self)

    def _read(self) -> None:
        """Hands each whole request to the world."""
        while not self.is_ended and not self.is_closed:
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            found = _LENGTH.search(head)
            size = int(found[1]) if found else 0
            if not end or len(rest) < size:
                return
            self._unread = rest[size:]
            self._world.asked(self, rest[:size])
