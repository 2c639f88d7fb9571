"""Long answers that have no room yet: they come all the same, whole, and no clock runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from redline.calls import Call, Client, Endpoint, Request, Timeouts
from redline.calls.http import backend as http
from redline.calls.wire import reply_memory as intake
from redline.clock import SYSTEM
from redline.errors import BadReply, TimedOut
from support.asking import Asker, wire
from support.raw_server import RawServer, Seen, answer, chat

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy", "narrow")]

Run = Callable[[Coroutine[Any, Any, None]], None]
KB = 1024
SIZE = 600 * KB
FULL, MOST = 2400 * KB, 1000 * KB
# What either loop reads at once.
A_READ = 256 * KB


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four answers fill it, and one then goes on."""
    monkeypatch.setattr(intake, "FULL_BYTES", FULL)
    monkeypatch.setattr(intake, "_OPEN_BYTES", FULL * 3 // 4)
    monkeypatch.setattr(intake, "_FIRST_BYTES", MOST)


async def long(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """An answer in ten pieces, so that several are on the way at once."""
    data = answer(seen.target.encode() * (SIZE // len(seen.target)))
    step = len(data) // 10 + 1
    for at in range(0, len(data), step):
        writer.write(data[at : at + step])
        await writer.drain()
        await asyncio.sleep(0.005)


class Tally:
    """What all intakes count: long answers that are read, and whole ones that are held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading: dict[Any, int] = {}
        self.most_bytes = 0
        self.held_bytes = 0
        for name in ("read", "leave", "hold", "drop"):
            monkeypatch.setattr(intake.ReplyMemory, name, self.noted(name))

    def noted(self, name: str) -> Any:
        do, note = getattr(intake.ReplyMemory, name), getattr(self, name)

        def noting(counted: intake.ReplyMemory, *given: Any) -> Any:
            note(*given)
            return do(counted, *given)

        return noting

    def read(self, reader: Any, size_bytes: int) -> None:
        self.reading[reader] = size_bytes
        self.most_bytes = max(self.most_bytes, sum(self.reading.values()))

    def leave(self, reader: Any) -> None:
        self.reading.pop(reader, None)

    def hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def drop(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes


def test_many_long_answers_come_one_after_the_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(monkeypatch)

    async def main() -> None:
        async with RawServer(long) as server, Asker(server.base_url, max_reply_bytes=MOST) as asker:
            targets = [f"/{number:04}" for number in range(40)]
            answers = await asyncio.gather(*[asker.ask(wire(target)) for target in targets])
            for target, got in zip(targets, answers, strict=True):
                assert got.body == target.encode() * (SIZE // len(target))
            assert FULL < tally.most_bytes < FULL + MOST + A_READ
            assert not tally.reading
            assert not asker.transport.intake.is_full

    run(main())


def test_no_clock_runs_out_while_a_whole_answer_is_waited_for(run: Run) -> None:
    """But that of the row, and nothing is sent meanwhile."""

    async def main() -> None:
        allowed = Timeouts(first_byte_s=1, attempt_s=1, connect_s=8)
        settings = {"timeouts": allowed, "max_reply_bytes": MOST}
        async with RawServer(long) as server, Asker(server.base_url, **settings) as asker:
            first = asyncio.gather(*[asker.ask() for _ in range(3)])
            while len(server.seen) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            held = asker.transport.intake.hold(10 * FULL)
            late = wire(deadline_s=SYSTEM.now_s() + 0.5)
            with pytest.raises(TimedOut, match="row"):
                await asker.ask(late)
            second = asyncio.ensure_future(asker.ask())
            await asyncio.sleep(1)
            assert not second.done()
            assert len(server.seen) == 3
            held.release()
            answers = [*await first, await second]
            assert {len(got.body) for got in answers} == {SIZE // 2 * 2}

    run(main())


ASK = Request(body={"model": "m", "messages": []})


def replying(body: object) -> Any:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body))

    return handle


def test_a_long_answer_counts_until_its_caller_lets_go_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(monkeypatch)

    async def main() -> None:
        for text, is_long in (("x" * 10, False), ("x" * SIZE, True)):
            async with RawServer(replying(chat(text))) as server:
                backend = http.HttpBackend(Endpoint(base_url=server.base_url))
                call = Call()
                # A call that is answered again keeps its last answer alone.
                for _ in range(2):
                    outcome = await backend.send(ASK, call)
                assert outcome.reply is not None
                taken = 2 * len(outcome.reply.body) if is_long else 0
                assert tally.held_bytes == taken
                call.let_go()
                assert (tally.held_bytes, tally.reading) == (0, {})
                await backend.aclose()
                async with Client(server.base_url) as client:
                    assert (await client.call(ASK)).output == text
                    assert tally.held_bytes == 0

    run(main())


def test_an_error_keeps_nothing_of_its_answer() -> None:
    """Its frames would, for as long as its row waits to be tried again, and in its outcome."""

    async def main() -> None:
        async with RawServer(replying(b"<" + b"x" * SIZE)) as server:
            backend = http.HttpBackend(Endpoint(base_url=server.base_url))
            outcome = await backend.send(ASK, Call())
            await backend.aclose()
        error, chain = outcome.error, []
        while error is not None:
            assert error.__traceback__ is None
            chain.append(type(error))
            error = error.__cause__ or error.__context__
        # The parser's own, as well.
        assert chain[0] is BadReply
        assert msgspec.DecodeError in chain

    asyncio.run(main())
