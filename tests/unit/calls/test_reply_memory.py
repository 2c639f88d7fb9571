"""Who may read on: the bound holds, and it never comes to a standstill."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from redline.calls import Timeouts
from redline.calls.wire import Connection, ReplyMemory, Timing
from redline.calls.wire import reply_memory as intake
from redline.testing import ManualClock
from support.asking import Asked
from support.catching import assert_caught
from support.wires import FakeTransport

MB = 1 << 20
CHUNK = MB


class Reader:
    """An answer of `size` bytes on its way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.come = 0
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


class World:
    """A server that sends as it likes, and callers that let go of answers late.

    is_late: an answer is let go of only where nothing else can happen.
    """

    def __init__(
        self,
        seed: int,
        most: int,
        *,
        is_late: bool,
        intake: Any = ReplyMemory,
        reader: Any = Reader,
    ) -> None:
        self.random = random.Random(seed)
        self.reader = reader
        self.intake = intake(most)
        self.most = most
        self.is_late = is_late
        self.reading: dict[Reader, None] = {}
        self.intake.follow(self.reading)
        self.held: list[tuple[int, intake.Held]] = []
        self.left = 80
        self.at_once = self.random.choice((2, 20, 64))

    def run(self) -> int:
        """Does everything; the most bytes that were held. Raises AssertionError at a standstill."""
        most = 0
        while self.left or self.reading or self.held:
            ready = [reader for reader in self.reading if not reader.is_paused]
            may_send = self.left and not self.intake.is_full and len(self.reading) < self.at_once
            if may_send and (not ready or self.random.random() < 0.5):
                self._send()
            elif ready:
                self._come(self.random.choice(ready))
            else:
                assert self.held, "it stands still"
            if self.held and (not ready or not (self.is_late or self.random.random() < 0.9)):
                self.held.pop(self.random.randrange(len(self.held)))[1].release()
            most = max(most, self._bytes())
        assert not self.intake.is_full
        return most

    def _send(self) -> None:
        self.left -= 1
        # Most are short; of the long ones some are as long as may be.
        size = self.random.choice(
            (100, CHUNK, 10 * MB, self.random.randrange(self.most), self.most)
        )
        self.reading[self.reader(size)] = None

    def _come(self, reader: Reader) -> None:
        reader.come = min(reader.size, reader.come + self.random.choice((1000, CHUNK, CHUNK)))
        if reader.come > intake.LONG_BYTES:
            self.intake.read(reader, reader.come)
        if reader.come < reader.size and self.random.random() > 0.001:
            return
        del self.reading[reader]
        if reader.come > intake.LONG_BYTES:
            self.intake.leave(reader)
            # The others have broken.
            if reader.come == reader.size:
                self.held.append((reader.size, self.intake.hold(reader.size)))

    def _bytes(self) -> int:
        whole = sum(size for size, _ in self.held)
        return whole + sum(reader.come for reader in self.reading)


def check(kinds: dict[str, Any]) -> None:
    reached = 0
    for seed in range(6):
        for is_late in (False, True):
            most = (4 * MB, 64 * MB, 300 * MB)[seed % 3]
            held = World(seed, most, is_late=is_late, **kinds).run()
            short = 64 * intake.LONG_BYTES
            assert held <= 256 * MB + max(128 * MB, most) + CHUNK + short, held / MB
            reached = max(reached, held)
    # It is a bound that runs come to.
    assert reached > 256 * MB


class Unpaused(Reader):
    def pause(self) -> None:
        pass


class Unresumed(Reader):
    def resume(self) -> None:
        pass


class Unread(ReplyMemory):
    def read(self, reader: Any, size_bytes: int) -> None:
        pass


class Unleft(ReplyMemory):
    def leave(self, reader: Any) -> None:
        pass


class Unheld(ReplyMemory):
    def hold(self, size_bytes: int) -> intake.Held:
        return super().hold(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reader": Unpaused},
        {"reader": Unresumed},
        {"intake": Unread},
        {"intake": Unleft},
        {"intake": Unheld},
    ],
)
def test_it_holds_its_bound_and_never_stands_still(wrong: dict[str, Any]) -> None:
    assert_caught(check, {}, wrong)


def test_who_waits_to_send_goes_on_when_it_opens_and_may_give_up() -> None:
    async def main() -> None:
        full = ReplyMemory(MB)
        await full.room()
        held = full.hold(300 * MB)
        waiting = [asyncio.create_task(full.room()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        held.release()
        held.release()
        await asyncio.gather(*waiting[1:])
        assert not full.is_full

    asyncio.run(main())


# A connection that is held up.

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
ALLOWED = Timeouts(first_byte_s=5, attempt_s=20)


class Line:
    """One of some connections whose answers go through one intake."""

    def __init__(self, clock: ManualClock, shared: ReplyMemory) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(lambda _: None, shared, clock)
        self.connection.connection_made(self.transport)
        self.asked = Asked(Timing(ALLOWED, clock))
        assert self.asked.may_leave()
        self.connection.open(self.asked, is_streamed=False)
        self.connection.leave()
        # The one clock of the connection.
        self.alarm: Any = self.asked.alarm

    def get(self, data: bytes) -> None:
        for at in range(0, len(data), 100_000):
            self.connection.data_received(data[at : at + 100_000])


def test_a_connection_that_is_held_up_has_a_clock_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        clock = ManualClock()
        shared = ReplyMemory(4 * MB)
        large, small, silent = lines = [Line(clock, shared) for _ in range(3)]
        shared.follow([line.connection for line in lines[:2]])
        shared.follow([silent.connection])
        clock.advance(1)
        large.get(HEAD % (2 * MB) + b"x" * MB)
        assert shared.is_full
        assert not large.transport.is_paused
        small.get(HEAD % (MB // 2) + b"x" * (MB // 4))
        assert [line.transport.is_paused for line in lines] == [False, True, True]
        # The server is not to blame for this time.
        clock.advance(1000)
        assert [line.alarm.when_s for line in lines[1:]] == [float("inf")] * 2
        large.get(b"x" * MB)
        assert len(await large.connection.whole()) == 2 * MB
        assert large.connection.release()
        assert not shared.is_full
        assert [line.transport.is_paused for line in lines] == [False, False, False]
        assert [line.alarm.when_s for line in lines] == [20, 1020, 1005]
        silent.get(HEAD % 10 + b"x" * 5)
        assert silent.alarm.when_s == 1020
        small.get(b"x" * (MB // 4))
        assert len(await small.connection.whole()) == MB // 2
        assert small.connection.release()
        silent.get(b"x" * 5)
        assert len(await silent.connection.whole()) == 10
        assert silent.connection.release()
        assert not shared.is_full
        # What fills it may be an answer's end.
        large, small = Line(clock, shared), Line(clock, shared)
        large.get(HEAD % MB + b"x" * 900_000)
        small.get(HEAD % 180_000 + b"x" * 180_000)
        assert shared.is_full
        assert len(await small.connection.whole()) == 180_000
        assert small.connection.release()
        assert not small.transport.is_paused

    monkeypatch.setattr(intake, "FULL_BYTES", MB)
    monkeypatch.setattr(intake, "_OPEN_BYTES", MB // 2)
    monkeypatch.setattr(intake, "_FIRST_BYTES", MB)
    asyncio.run(main())
