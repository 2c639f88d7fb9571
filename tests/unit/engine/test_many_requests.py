"""A thousand requests that come, are cancelled and end as they like: all comes back, none is kept.

The models are tables, so what each greedy answer must be is known, also after preemptions, of
reused prefixes, and of slots that were given away.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.draft import Drafter, Drafts, LookupDrafter, ModelDrafter
from redline.engine.sample import SamplingParams
from redline.engine.schedule import (
    Bounds,
    QueueFull,
    Scheduler,
    Sequence,
)
from redline.engine.step import (
    Ask,
    Core,
    EngineThread,
    Speculation,
)
from support.catching import assert_caught
from support.engine_driver import Fixed
from support.engine_tables import TOKENS, TableComputer, TableRunner, said_greedily, tables

REQUESTS = 1_000
SLOTS = 8
MOST_PROMPT, MOST_NEW = 30, 20
TARGET, GUESS = tables()


@dataclass(eq=False)
class Request:
    """What one asks for, and hears. gives_up: it wants no more after so many tokens; -1 never.

    stops: an asker that ends the answer itself after so many tokens, as a stop string does.
    """

    prompt: list[int]
    params: SamplingParams
    new: int
    priority: int
    gives_up: int
    stops: int
    tokens: list[int] = field(default_factory=list)
    reasons: list[Any] = field(default_factory=list)
    is_cancelled: bool = False

    def heard(self, tokens: list[int], chances: list[Any]) -> str | None:
        assert not self.reasons
        self.tokens += tokens
        return "stop" if 0 <= self.stops <= len(self.tokens) else None

    def ended(self, reason: Any) -> None:
        self.reasons.append(reason)

    @property
    def ask(self) -> Ask:
        most = len(self.prompt) + self.new
        return Ask(self.prompt, self.params, most, self, self.priority)

    @property
    def wants_no_more(self) -> bool:
        return not self.is_cancelled and 0 <= self.gives_up <= len(self.tokens)

    def check(self) -> str:
        """How it ended. All that was heard is what the table says, and the end is the right one."""
        assert len(self.reasons) == (not self.is_cancelled)
        if self.is_cancelled:
            return "cancelled"
        (reason,) = self.reasons
        if isinstance(reason, QueueFull):
            assert not self.tokens
            return "refused"
        said = len(self.tokens)
        if self.params.temperature == 0:
            assert self.tokens == said_greedily(TARGET, self.prompt, said)
        is_stopped = self.tokens[-1] in self.params.stop_token_ids or 0 <= self.stops <= said
        assert not set(self.tokens[:-1]).intersection(self.params.stop_token_ids)
        assert reason == ("stop" if is_stopped else "length")
        assert is_stopped or said == self.new
        return str(reason)


def drawn(draws: random.Random) -> Request:
    greedy = draws.random() < 0.6
    params = SamplingParams(
        temperature=0.0 if greedy else draws.choice([0.5, 1.0]),
        top_k=draws.choice([0, 3]),
        frequency_penalty=0.0 if greedy else draws.choice([0.0, 0.0, 0.5]),
        seed=draws.choice([None, 5]),
        stop_token_ids=draws.choice([(), (), (4,), (1, 5)]),
        logprobs=draws.choice([None, None, 2]),
    )
    size = draws.choice([1, 2, 3, draws.randint(1, MOST_PROMPT)])
    return Request(
        prompt=draws.choices(range(TOKENS), k=size),
        params=params,
        new=draws.randint(1, MOST_NEW),
        priority=draws.choice([0, 0, 0, -1, 3]),
        gives_up=draws.choice([-1, -1, -1, 0, draws.randint(0, MOST_NEW)]),
        stops=draws.choice([-1, -1, -1, draws.randint(1, MOST_NEW)]),
    )


def make_core(
    draft: str | None,
    steps_at_once: int,
    waiting: int = 60,
    lookup: type[LookupDrafter] = LookupDrafter,
) -> Core:
    # Room for one and a half of the longest, so that many are preempted.
    bounds = Bounds(SLOTS, 24, 80, waiting, steps_at_once=steps_at_once)
    drafter: Drafter | None = None
    if draft == "model":
        drafter = ModelDrafter(TableRunner(GUESS, SLOTS))
    elif draft == "lookup":
        drafter = lookup()
    return Core(
        Scheduler(bounds),
        TableComputer(TARGET, SLOTS, steps_at_once),
        ends=frozenset(),
        speculation=Speculation(drafter, Fixed(3)) if drafter else None,
    )


def check_nothing_is_left(core: Core, kept: list[weakref.ref[Any]]) -> None:
    scheduler = core.scheduler
    assert scheduler.is_idle
    assert scheduler.used_tokens == 0
    gc.collect()
    assert not [one for one in kept if one() is not None]


def run_core(core: Core, count: int, draws: random.Random) -> tuple[Counter[str], list[Any]]:
    """So many requests through the core, a few before each step."""
    running: dict[Request, Sequence] = {}
    done: Counter[str] = Counter()
    kept: list[Any] = []
    left, said = count, core.figures.new_tokens
    while left or not core.scheduler.is_idle:
        for _ in range(min(left, draws.choice([0, 1, 1, 3, 80 if left % 50 == 0 else 1]))):
            left -= 1
            request = drawn(draws)
            try:
                running[request] = core.add(request.ask, 0.0)
            except QueueFull as error:
                request.ended(error)
                done[request.check()] += 1
            else:
                kept += [weakref.ref(request), weakref.ref(running[request])]
        for sequence in core.step():
            request = sequence.asker
            request.ended(sequence.ended)
            del running[request]
            said += len(request.tokens)
            done[request.check()] += 1
        for request in [one for one in running if one.wants_no_more]:
            request.is_cancelled = True
            core.scheduler.end(running.pop(request), "cancelled")
            said += len(request.tokens)
            done[request.check()] += 1
    assert not running
    assert core.figures.new_tokens == said
    return done, kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "steps_at_once"), [(None, 2), ("lookup", 1), ("lookup", 3), ("model", 1)]
)
def test_all_come_to_an_end_and_none_is_kept(draft: str | None, steps_at_once: int) -> None:
    core, draws = make_core(draft, steps_at_once), random.Random(steps_at_once)
    blocks = []
    for _ in range(3):
        done, kept = run_core(core, REQUESTS // 10, draws)
        assert done.total() == REQUESTS // 10
        assert min(done[end] for end in ("cancelled", "stop", "length")) > 5
        check_nothing_is_left(core, kept)
        del kept
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert core.scheduler.preemptions > 0
    assert core.scheduler.reused_tokens > 0
    # The first have warmed up; a token kept of each request would be hundreds.
    assert blocks[2] - blocks[1] < 200


def test_a_drafter_that_keeps_its_sequences_is_caught() -> None:
    class Keeping(LookupDrafter):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Sequence] = []

        def draft(self, sequences: list[Sequence], most: list[int]) -> Drafts:
            self.kept += sequences
            return super().draft(sequences, most)

    def check(kind: type[LookupDrafter]) -> None:
        core = make_core("lookup", 1, lookup=kind)
        check_nothing_is_left(core, run_core(core, 60, random.Random(3))[1])

    assert_caught(check, LookupDrafter, Keeping)


async def wait_for_all(thread: EngineThread, count: int, draws: random.Random) -> list[Any]:
    """So many requests through the thread, forty at a time, some of which are cancelled."""
    gate = asyncio.Semaphore(40)
    kept: list[Any] = []
    cancelled: list[list[Any]] = []
    done: Counter[str] = Counter()

    async def one() -> None:
        async with gate:
            request = drawn(draws)
            is_over = asyncio.Event()
            posted = Posted(request, thread, is_over)
            kept.extend([weakref.ref(request), weakref.ref(posted)])
            thread.ask([request.ask._replace(asker=posted)])
            if request.gives_up >= 0 and draws.random() < 0.7:
                for _ in range(request.gives_up):
                    await asyncio.sleep(0)
                if not request.reasons:
                    request.is_cancelled = True
                    thread.cancel(posted)
                    cancelled.append(request.reasons)
                    return
            await asyncio.wait_for(is_over.wait(), 60)
            done[request.check()] += 1

    await asyncio.gather(*(one() for _ in range(count)))
    assert done["stop"] > 20
    assert done["length"] > 20
    assert len(cancelled) > 20
    # An end may have been on its way already.
    assert max(map(len, cancelled)) <= 1
    return kept


class Posted:
    """Hands on what it hears to the event loop, as a request of the backend does."""

    def __init__(self, request: Request, thread: EngineThread, is_over: asyncio.Event) -> None:
        self._request = request
        self._thread = thread
        self._is_over = is_over

    def heard(self, tokens: list[int], chances: list[Any]) -> str | None:
        return self._request.heard(tokens, chances)

    def ended(self, reason: Any) -> None:
        self._thread.post(lambda: self._over(reason))

    def _over(self, reason: Any) -> None:
        self._request.ended(reason)
        self._is_over.set()


@pytest.mark.slow
async def test_the_thread_gives_all_back() -> None:
    core, draws = make_core("lookup", 1, waiting=1_000), random.Random(9)
    thread = EngineThread(core)
    thread.start()
    blocks = []
    for _ in range(3):
        kept = await wait_for_all(thread, REQUESTS // 3, draws)
        for _ in range(1_000):
            # Those cancelled last may be under way still.
            await asyncio.sleep(0.01)
            if core.scheduler.is_idle:
                break
        check_nothing_is_left(core, kept)
        del kept
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert thread.failure is None
    assert core.scheduler.preemptions > 0
    assert blocks[2] - blocks[1] < 400
    await thread.close()
