"""The engine's thread: whoever asks hears an end, whatever happens, and nothing is left running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.schedule import Bounds, QueueFull, Scheduler
from redline.engine.step import Ask, Core, EngineFailed, EngineThread
from support.engine_driver import GREEDY
from support.engine_tables import TableComputer, said_greedily, tables

TARGET, _ = tables()
SLOTS = 3
NEW = 12


class Gated(TableComputer):
    """Computes while the gate is open; `fails_with` is raised by the next step."""

    def __init__(self, steps_at_once: int = 1) -> None:
        super().__init__(TARGET, SLOTS, steps_at_once)
        self.gate = threading.Event()
        self.gate.set()
        self.is_at_gate = threading.Event()
        self.fails_with: Exception | None = None

    def watch(self, told: Callable[[Any], None]) -> None:
        self.told = told

    def submit(self, work: Any) -> None:
        self.is_at_gate.set()
        assert self.gate.wait(30)
        super().submit(work)
        if self.fails_with is not None:
            raise self.fails_with


class Counting(Scheduler):
    """Counts how often the thread asks whether there is a step to make."""

    asked = 0

    def wait_s(self, now_s: float) -> float:
        self.asked += 1
        return super().wait_s(now_s)


class Told:
    """An asker that hands what it hears on to the event loop, as a request does."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self.tokens: list[int] = []
        self.reasons: list[object] = []
        self.is_over = asyncio.Event()
        self.at_heard: Callable[[], None] = lambda: None
        self.at_ended: Callable[[], None] = lambda: None

    def heard(self, tokens: list[int], chances: list[Any]) -> str | None:
        self._thread.post(lambda: self.tokens.extend(tokens))
        self.at_heard()
        return None

    def ended(self, reason: object) -> None:
        self.at_ended()
        self._thread.post(lambda: self._over(reason))

    def _over(self, reason: object) -> None:
        self.reasons.append(reason)
        self.is_over.set()

    async def reason(self) -> object:
        await asyncio.wait_for(self.is_over.wait(), 30)
        await asyncio.sleep(0)
        (reason,) = self.reasons
        return reason


def ask(asker: Told, start: int = 1) -> Ask:
    return Ask([start, 2], GREEDY, 2 + NEW, asker)


class World:
    def __init__(self, waiting: int = 100, steps_at_once: int = 1) -> None:
        self.computer = Gated(steps_at_once)
        bounds = Bounds(SLOTS, 64, 10_000, waiting, steps_at_once=steps_at_once)
        self.scheduler = Counting(bounds)
        self.core = Core(self.scheduler, self.computer, ends=frozenset())
        self.thread = EngineThread(self.core)

    def asked(self, count: int) -> list[Told]:
        """So many, asked together."""
        askers = [Told(self.thread) for _ in range(count)]
        self.thread.ask([ask(asker) for asker in askers])
        return askers


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.thread.start()
    yield made
    made.computer.gate.set()
    await made.thread.close()


async def test_all_hear_their_tokens_and_one_end(world: World) -> None:
    askers = world.asked(7)
    assert [await asker.reason() for asker in askers] == ["length"] * 7
    assert {tuple(asker.tokens) for asker in askers} == {tuple(said_greedily(TARGET, [1, 2], NEW))}
    assert world.core.scheduler.is_idle


async def test_an_idle_thread_sleeps(world: World) -> None:
    await world.asked(1)[0].reason()
    await asyncio.sleep(0.05)
    before = world.scheduler.asked
    await asyncio.sleep(0.1)
    assert world.scheduler.asked == before


@pytest.mark.parametrize("steps_at_once", [1, 2])
async def test_a_failure_ends_all_and_whoever_comes_later(steps_at_once: int) -> None:
    world = World(steps_at_once=steps_at_once)
    world.thread.start()
    world.computer.gate.clear()
    askers = world.asked(8)
    world.computer.fails_with = RuntimeError("a rank has died")
    world.computer.gate.set()
    for asker in [*askers, *world.asked(2)]:
        reason = await asker.reason()
        assert isinstance(reason, EngineFailed)
        assert "RuntimeError: a rank has died" in str(reason)
    # What was under way stays in the scheduler, and is not waited for.
    before = world.scheduler.asked
    await asyncio.sleep(0.1)
    assert world.scheduler.asked <= before + 2
    await world.thread.close()


async def test_an_idle_thread_hears_of_a_failure(world: World) -> None:
    world.computer.told(EngineFailed("a rank has died"))
    await asyncio.wait_for(world.thread.has_failed(), 30)
    assert "a rank has died" in str(await world.asked(1)[0].reason())


@pytest.mark.parametrize("error", [ValueError("a defect"), BaseException("ValueError: a defect")])
async def test_whatever_a_step_raises_everybody_hears_of_it(
    world: World, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(world.core, "step", fail)
    for asker in world.asked(SLOTS + 2):
        assert "ValueError: a defect" in str(await asker.reason())
    await asyncio.wait_for(world.thread.has_failed(), 30)


async def test_who_cannot_be_taken_in_hears_of_it_and_so_do_those_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = world.core.add, iter(range(100))

    def fail(ask: Ask, now_s: float) -> Any:
        if next(calls) == 1:
            raise ValueError("a defect")
        return add(ask, now_s)

    monkeypatch.setattr(world.core, "add", fail)
    for asker in world.asked(3):
        assert "ValueError: a defect" in str(await asker.reason())


@pytest.mark.parametrize("where", ["at_heard", "at_ended"])
async def test_an_asker_that_raises_leaves_nobody_waiting(world: World, where: str) -> None:
    def fail() -> None:
        setattr(askers[1], where, lambda: None)
        raise ValueError("a defect")

    world.computer.gate.clear()
    askers = world.asked(SLOTS + 2)
    setattr(askers[1], where, fail)
    world.computer.gate.set()
    for asker in askers:
        reason = await asker.reason()
        assert reason == "length" or "ValueError: a defect" in str(reason)
    assert "ValueError: a defect" in str(await askers[1].reason())
    assert world.thread.failure is not None


async def test_a_call_that_fails_in_the_event_loop_stops_no_other(world: World) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    askers = world.asked(SLOTS)

    def fail() -> None:
        raise ValueError("a defect")

    askers[0].at_heard = lambda: world.thread.post(fail)
    assert [await asker.reason() for asker in askers] == ["length"] * SLOTS
    assert [len(asker.tokens) for asker in askers] == [NEW] * SLOTS
    assert {str(found["exception"]) for found in failures} == {"a defect"}


async def test_of_some_choices_the_queue_takes_those_it_has_room_for() -> None:
    world = World(waiting=4)
    world.thread.start()
    # Beside those who wait there are as many as find a slot.
    askers = world.asked(SLOTS + 4 + 2)
    reasons = [await asker.reason() for asker in askers]
    assert reasons[: SLOTS + 4] == ["length"] * (SLOTS + 4)
    assert all(isinstance(reason, QueueFull) for reason in reasons[SLOTS + 4 :])
    await world.thread.close()


@pytest.mark.parametrize("steps_at_once", [1, 2, 3])
async def test_who_cancels_in_a_step_hears_nothing_more(steps_at_once: int) -> None:
    world = World(steps_at_once=steps_at_once)
    world.thread.start()
    world.computer.gate.clear()
    world.computer.is_at_gate.clear()
    askers = world.asked(SLOTS)
    await asyncio.to_thread(world.computer.is_at_gate.wait, 30)
    world.thread.cancel(askers[0])
    world.thread.cancel(askers[0])
    world.computer.gate.set()
    assert [await asker.reason() for asker in askers[1:]] == ["length"] * (SLOTS - 1)
    world.thread.cancel(askers[1])
    (last,) = world.asked(1)
    assert await last.reason() == "length"
    assert not askers[0].reasons
    # A step that was over before the thread looked has still brought it a token.
    assert len(askers[0].tokens) <= 1
    assert world.core.scheduler.is_idle
    await world.thread.close()


async def test_closing_ends_all_and_may_be_repeated() -> None:
    world = World()
    world.thread.start()
    world.computer.gate.clear()
    askers = world.asked(SLOTS + 4)
    closing = [asyncio.create_task(world.thread.close()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(EngineFailed, match="closed"):
        world.asked(1)
    world.computer.gate.set()
    await asyncio.wait_for(asyncio.gather(*closing), 30)
    for asker in askers:
        assert "closed" in str(await asker.reason())
    await world.thread.close()


async def test_one_that_has_not_begun_is_closed_too() -> None:
    world = World()
    await world.thread.close()
    with pytest.raises(EngineFailed, match="closed"):
        world.asked(1)


def test_the_thread_ends_when_nobody_is_left_to_be_told() -> None:
    async def leave() -> World:
        world = World()
        world.thread.start()
        world.computer.gate.clear()
        world.asked(1)
        await asyncio.to_thread(world.computer.is_at_gate.wait, 30)
        return world

    before = set(threading.enumerate())
    world = asyncio.run(leave())
    own = set(threading.enumerate()) - before
    assert own
    world.computer.gate.set()
    for thread in own:
        thread.join(30)
        assert not thread.is_alive()
