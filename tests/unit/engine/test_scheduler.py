"""The scheduler as a state machine: whatever comes, its invariants hold, and all come to an end."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.schedule import Bounds, Scheduler, Sequence
from support.scheduler_driver import (
    LONGEST,
    MOST_DRAFTS,
    MOST_NEW,
    MOST_PROMPT,
    Driven,
    check_random,
    sequence_of,
)

# Prompts begin alike by chance, being of few tokens.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=MOST_PROMPT)
SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
)


class Machine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 5),
        step_tokens=st.integers(1, 16),
        cache_tokens=st.integers(LONGEST, 3 * LONGEST),
        reuses=st.booleans(),
        steps_at_once=st.integers(1, 3),
    )
    def begin_all(
        self, slots: int, step_tokens: int, cache_tokens: int, reuses: bool, steps_at_once: int
    ) -> None:
        bounds = Bounds(slots, step_tokens, cache_tokens, 8, 0.0, reuses, steps_at_once)
        self.driven = Driven(bounds)

    @rule(prompt=PROMPTS, new=st.integers(1, MOST_NEW), priority=st.integers(0, 2))
    def add(self, prompt: list[int], new: int, priority: int) -> None:
        self.driven.add(prompt, new, priority)

    @precondition(lambda self: self.driven.alive)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        self.driven.end(data.draw(st.sampled_from(self.driven.alive)))

    @rule(drafts=st.lists(st.integers(0, MOST_DRAFTS), min_size=1, max_size=4))
    def begin(self, drafts: list[int]) -> None:
        if len(self.driven.under_way) < self.driven.bounds.steps_at_once:
            self.driven.begin(drafts)

    @precondition(lambda self: self.driven.under_way)
    @rule(kept=st.lists(st.integers(0, MOST_DRAFTS), min_size=1, max_size=4))
    def finish(self, kept: list[int]) -> None:
        self.driven.finish(kept)

    @invariant()
    def check(self) -> None:
        if hasattr(self, "driven"):
            self.driven.check()

    def teardown(self) -> None:
        if hasattr(self, "driven"):
            self.driven.drain()


def test_whatever_comes_the_invariants_hold() -> None:
    run_state_machine_as_test(Machine, settings=SETTINGS)


def test_random_days_keep_the_invariants() -> None:
    check_random()


class NoPreemption(Scheduler):
    """Passes the cache's bound."""

    used_tokens = 0


class LongestFirst(Scheduler):
    """Reads prompts before it goes on with who generates."""

    def ready(self) -> list[Sequence]:
        return super().ready()[::-1]


class TwiceAtOnce(Scheduler):
    """Puts a sequence into two steps at once."""

    def ready(self) -> list[Sequence]:
        return list(self.running)


@pytest.mark.parametrize("kind", [NoPreemption, LongestFirst, TwiceAtOnce])
def test_wrong_schedulers_are_caught(kind: type[Scheduler]) -> None:
    with pytest.raises(AssertionError):
        check_random(kind)


def test_only_an_idle_engine_waits_for_more() -> None:
    scheduler = Scheduler(Bounds(2, 16, 100, 8, wait_s=0.5))
    assert scheduler.wait_s(0.0) == math.inf
    scheduler.add(sequence_of(0, [1], 2), 10.0)
    assert scheduler.wait_s(10.2) == pytest.approx(0.3)
    scheduler.add(sequence_of(1, [1], 2), 10.4)
    assert scheduler.wait_s(10.4) == 0.0, "as many wait as there are slots"
    scheduler.end(scheduler.waiting[0][1], "cancelled")
    assert scheduler.wait_s(10.6) == 0.0, "since the first of them came"
    (row,) = scheduler.plan().rows
    scheduler.add(sequence_of(2, [1], 2), 11.0)
    assert scheduler.wait_s(11.0) == 0.0
    scheduler.computed(row, [7], 0)
    scheduler.end(row.sequence, "stop")
    assert scheduler.wait_s(11.0) == 0.0, "who came while others ran has waited enough"
    scheduler.end(scheduler.waiting[0][1], "cancelled")
    assert scheduler.is_idle
    scheduler.add(sequence_of(3, [1], 2), 20.0)
    assert scheduler.wait_s(20.0) == 0.5


def test_drafts_give_way_before_anyone_does() -> None:
    driven = Driven(Bounds(2, 32, 24, 8))
    for _ in range(2):
        driven.add([1] * 8, 8)
    driven.begin([])
    driven.finish([0])
    for _ in range(3):
        # 9 and 9 tokens, then 10 and 10, then 11 and 11: with three drafts each it would be more.
        driven.begin([3])
        driven.finish([0])
    assert driven.scheduler.preemptions == 0
    driven.drain()
    assert driven.scheduler.preemptions > 0


def test_a_prompt_of_any_length_holds_up_nobody_who_generates() -> None:
    driven = Driven(Bounds(3, 4, 1000, 8, 0.0, reuses_prefixes=False))
    driven.add([1], 8)
    driven.begin([])
    driven.finish([0])
    driven.add([0] * 100, 8)
    driven.add([0] * 90, 8, priority=-1)
    for _ in range(7):
        assert 0 in [row.sequence.number for row in driven.begin([3]).rows]
        driven.finish([0])
    driven.drain()


def test_drafts_leave_room_for_prompts() -> None:
    driven = Driven(Bounds(8, 16, 1000, 8))
    for _ in range(4):
        driven.add([1], 12)
    driven.begin([])
    driven.finish([0])
    # Alone they may have all of the step for their drafts.
    assert [row.size for row in driven.begin([3]).rows] == [4] * 4
    driven.finish([0])
    driven.add([0] * 20, 2)
    for size in (8, 8, 4):
        rows = driven.begin([3]).rows
        assert sum(row.size for row in rows[:4]) == 8
        assert [row.size for row in rows[4:]] == [size]
        driven.finish([0])
    driven.drain()


def test_one_in_several_steps_is_in_one_of_them() -> None:
    driven = Driven(Bounds(4, 16, 100, 8, steps_at_once=3))
    driven.add([1, 0], 3)
    assert driven.begin([]).rows
    assert not driven.begin([]).rows
    driven.finish([0])
    driven.drain()


def test_who_is_cancelled_in_a_step_keeps_the_slot_until_its_end() -> None:
    driven = Driven(Bounds(1, 16, 100, 8, steps_at_once=2))
    driven.add([1, 0], 3)
    driven.add([1, 1], 3)
    first = driven.begin([]).rows[0].sequence
    driven.end(first)
    assert first.slot == 0
    assert not driven.begin([]).rows
    driven.finish([0])
    assert first.slot is None
    assert driven.begin([]).rows
    driven.drain()
