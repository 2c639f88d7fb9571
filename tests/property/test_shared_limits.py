"""A tenant's limits in several workers: as in one, whatever they do in turn, and when one is lost.

The model is one process with the same calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits import Rate
from redline.process import SharedTable
from redline.serve.keys import (
    OWN,
    LimitStore,
    SharedStore,
    Started,
    TenantLimits,
    TenantSettings,
)
from redline.testing import ManualClock
from support.catching import assert_caught

DOLLAR = 1_000
WORKERS = 3
SETTINGS = TenantSettings(
    requests=(Rate(3, 1.0), Rate(8, 5.0)),
    tokens=(Rate(100, 2.0),),
    concurrency=4,
    picodollars_per_day=DOLLAR,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "settle", "cancel", "over", "reshape"]),
        st.integers(0, WORKERS - 1),
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 3.0, 40_000.0]),
        st.integers(0, 60),
        st.integers(0, 400),
        st.integers(0, 100),
    ),
    max_size=120,
)
Steps = Sequence[tuple[str, int, float, int, int, int]]


@contextmanager
def table_of(workers: int) -> Iterator[list[SharedTable]]:
    """One table, as each worker sees it."""
    first = SharedTable.make(workers)
    try:
        yield [first, *(SharedTable(first.fd) for _ in range(workers - 1))]
    finally:
        os.close(first.fd)


def check(steps: Steps, store: Callable[[SharedTable, int], LimitStore] = SharedStore) -> None:
    """Plays the steps in workers and in the model; both decide alike."""
    clock = ManualClock()
    other = TenantSettings(requests=(Rate(5, 2.0),), tokens=(Rate(90, 2.0),), concurrency=5)
    with table_of(WORKERS) as tables:
        shared = [
            TenantLimits("acme", SETTINGS, clock, store(table, number))
            for number, table in enumerate(tables)
        ]
        model = TenantLimits("acme", SETTINGS, clock, OWN)
        calls: list[tuple[Started, Started]] = []
        for what, worker, pause_s, tokens, cost, pick in steps:
            now_s = clock.advance(pause_s)
            if what == "reshape":
                for limits in (*shared, model):
                    limits.reshape(other if pick % 2 else SETTINGS)
            elif what == "start":
                found = shared[worker].try_start(now_s, tokens, cost)
                expected = model.try_start(now_s, tokens, cost)
                assert type(found) is type(expected), (found, expected)
                if isinstance(found, Started) and isinstance(expected, Started):
                    calls.append((found, expected))
            elif calls:
                for call in calls.pop(pick % len(calls)):
                    if what == "cancel":
                        call.cancel()
                    elif what == "settle":
                        call.settle(now_s, tokens // 2, cost // 2)
                    else:
                        # More than it had reserved.
                        call.settle(now_s, tokens + 50, cost + 5)
            for limits in shared:
                assert limits.in_flight == model.in_flight
                assert limits.money.spent == model.money.spent
                assert limits.money.reserved == model.money.reserved


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_workers_decide_as_one_process_would(steps: Steps) -> None:
    check(steps)


def test_limits_that_each_worker_has_for_itself_are_noticed() -> None:
    steps: Steps = [("start", number % WORKERS, 0.0, 1, 1, 0) for number in range(6)]
    assert_caught(lambda store: check(steps, store), SharedStore, lambda table, number: OWN)


@given(STEPS, st.integers(0, WORKERS - 1))
@settings(max_examples=100, deadline=None)
def test_what_a_lost_worker_had_is_free_and_what_it_spent_is_spent(steps: Steps, lost: int) -> None:
    clock = ManualClock()
    with table_of(WORKERS) as tables:
        shared = [
            TenantLimits("acme", SETTINGS, clock, SharedStore(table, number))
            for number, table in enumerate(tables)
        ]
        left: list[tuple[int, Started]] = []
        for what, worker, pause_s, tokens, cost, pick in steps:
            now_s = clock.advance(min(pause_s, 1.0))
            if what == "start":
                found = shared[worker].try_start(now_s, tokens, cost)
                if isinstance(found, Started):
                    left.append((worker, found))
            elif left:
                left.pop(pick % len(left))[1].settle(now_s, tokens // 2, cost // 2)
        committed = shared[0].money.committed
        tables[0].forget(lost)
        kept = [call for worker, call in left if worker != lost]
        assert all(limits.in_flight == len(kept) for limits in shared)
        # What it had reserved stays spent, and windows count what it began.
        assert shared[0].money.committed == committed
        for call in kept:
            call.cancel()
        assert all(limits.in_flight == 0 for limits in shared)


class Dying(SharedTable):
    """Its process is killed before it writes another word, after so many."""

    def __init__(self, fd: int, writes: int) -> None:
        super().__init__(fd)
        self.words = _Words(self.words, self)
        self.reals = _Words(self.reals, self)
        self.left = writes

    def write(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


class _Words:
    def __init__(self, words: Any, table: Dying) -> None:
        self._words = words
        self._table = table

    def __getitem__(self, at: Any) -> Any:
        return self._words[at]

    def __setitem__(self, at: int, value: Any) -> None:
        self._table.write()
        self._words[at] = value


@pytest.mark.parametrize("ends", ["settle", "cancel", "overrun"])
def test_sums_are_right_whenever_a_worker_is_killed(ends: str) -> None:
    narrow = TenantSettings(tokens=(Rate(100, 1000.0),), picodollars_per_day=200)
    clock = ManualClock()
    for writes in count():
        with table_of(2) as (table, _):
            other = TenantLimits("acme", narrow, clock, SharedStore(table, 1))
            other_call = other.try_start(clock.now_s(), 10, 10)
            assert isinstance(other_call, Started)
            is_killed = False
            dying = TenantLimits("acme", narrow, clock, SharedStore(Dying(table.fd, 10**9), 0))
            dying = TenantLimits("acme", narrow, clock, SharedStore(Dying(table.fd, writes), 0))
            try:
                call = dying.try_start(clock.now_s(), 20, 20)
                assert isinstance(call, Started)
                if ends == "cancel":
                    call.cancel()
                else:
                    tokens = 5 if ends == "settle" else 30
                    call.settle(clock.now_s(), tokens, tokens)
            except KeyboardInterrupt:
                is_killed = True
            table.forget(0)
            assert other.in_flight == 1
            # Whatever it had got to: what is counted is between nothing of the call and twice all.
            assert 10 <= other.money.committed <= 10 + 50
            now_s = clock.now_s()
            left = 0
            while isinstance(other.try_start(now_s, 1), Started):
                left += 1
            assert 60 <= left <= 90
            other_call.cancel()
            # The ten that it gives back can be had, and no more.
            assert [isinstance(other.try_start(now_s, 1), Started) for _ in range(11)] == (
                [True] * 10 + [False]
            )
        if not is_killed:
            break
    assert writes > 10
