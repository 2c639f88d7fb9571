"""Drives a scheduler by hand, beside a cache that keeps the token written at each place.

So a prefix that a slot does not really hold is seen, and so is a slot that is given away while a
step still writes to it.
"""

from __future__ import annotations

import random
from collections import deque

from redline.engine.sample import SamplingParams
from redline.engine.schedule import Bounds, Plan, Row, Scheduler, Sequence
from redline.errors import RedlineError

MOST_PROMPT, MOST_NEW, MOST_DRAFTS = 14, 8, 3
LONGEST = MOST_PROMPT + MOST_NEW


def sequence_of(number: int, prompt: list[int], new: int, priority: int = 0) -> Sequence:
    most = len(prompt) + new
    return Sequence(list(prompt), SamplingParams(), number, number, most, priority)


class Driven:
    """A scheduler, the cache it decides about, and what the sequences must be."""

    def __init__(self, bounds: Bounds, kind: type[Scheduler] = Scheduler) -> None:
        self.bounds = bounds
        self.scheduler = kind(bounds)
        self.cache: list[dict[int, int]] = [{} for _ in range(bounds.slots)]
        self.under_way: deque[Plan] = deque()
        self.known: dict[int, list[int]] = {}
        self.alive: list[Sequence] = []
        self.plans = 0

    def add(self, prompt: list[int], new: int, priority: int = 0) -> None:
        """It comes, or is refused by a full queue."""
        sequence = sequence_of(len(self.known), prompt, new, priority)
        free = self.bounds.slots - len(self.scheduler.running)
        has_place = len(self.scheduler.waiting) < self.bounds.waiting + free
        try:
            self.scheduler.add(sequence, 0.0)
        except RedlineError:
            assert not has_place
            return
        assert has_place
        self.known[sequence.number] = list(prompt)
        self.alive.append(sequence)

    def end(self, sequence: Sequence) -> None:
        self.alive.remove(sequence)
        self.scheduler.end(sequence, "stop")

    def begin(self, drafts: list[int]) -> Plan:
        """The next step begins, with up to so many drafts in turn."""
        running = list(self.scheduler.running)
        for place, one in enumerate(self.scheduler.ready()):
            if one.is_caught_up and drafts:
                count = min(drafts[place % len(drafts)], one.most_tokens - len(one.tokens) - 1)
                one.drafted = [(one.number + each) % 2 for each in range(count)]
        idle = [one for one in running if not one.under_way]
        plan = self.scheduler.plan()
        self.plans += 1
        self._check_choice(plan, idle, running)
        for source, target, tokens in plan.copies:
            self.cache[target].update({at: self.cache[source][at] for at in range(tokens)})
        for row in plan.rows:
            self._compute(row)
        used = sum(one.computed + one.under_way for one in self.scheduler.running)
        assert used <= self.bounds.cache_tokens
        if plan.rows:
            self.under_way.append(plan)
        else:
            # Of those that make up a step all may have given way; then the others make the next.
            has_given_way = any(one.slot is None for one in idle)
            assert self.under_way or self.scheduler.is_idle or has_given_way, "nothing is done"
        return plan

    def _check_choice(self, plan: Plan, idle: list[Sequence], running: list[Sequence]) -> None:
        rows = [row.sequence for row in plan.rows]
        assert sum(row.size for row in plan.rows) <= self.bounds.step_tokens
        assert len({one.slot for one in rows}) == len(rows)
        left = [one for one in idle if one.slot is None]
        stayed = [one for one in idle if one.slot is not None]
        came = [one for one in self.scheduler.running if one not in running]
        waiting = [one for _, one in self.scheduler.waiting]
        assert not left or not came
        if left and stayed:
            assert min(one.order for one in left) > max(one.order for one in stayed)
        if came and waiting:
            assert max(one.order for one in came) < min(one.order for one in waiting)
        # A prompt, however long, and drafts, however many, hold up nobody who generates.
        generating = [one for one in stayed if one.is_caught_up]
        if len(running) == len(idle) and self.bounds.steps_at_once == 1:
            assert sum(one in generating for one in rows) == min(
                len(generating), self.bounds.step_tokens
            )

    def _compute(self, row: Row) -> None:
        """Writes the row's tokens, after a look at all that stands before them."""
        one = row.sequence
        assert one.slot is not None
        held = self.cache[one.slot]
        begin, count = one.computed, row.size
        assert [held.get(at) for at in range(begin)] == one.tokens[:begin]
        assert count <= len(one.tokens) + len(one.drafted) - begin
        assert row.is_whole or not one.drafted
        known = [*one.tokens, *one.drafted]
        held.update({at: known[at] for at in range(begin, begin + count)})
        # Who takes the slot next finds nothing behind, or what a lost step has left there.
        assert row.is_whole == (begin + count == len(known))

    def finish(self, kept: list[int]) -> None:
        """The first step that is under way has been computed; drafts stay in turn."""
        for place, row in enumerate(self.under_way.popleft().rows):
            one, new = row.sequence, []
            count = min(kept[place % len(kept)], len(one.drafted)) if row.is_whole else 0
            if row.is_whole:
                new = [*one.drafted[:count], len(one.tokens) % 2]
            is_over = one.ended is not None
            self.scheduler.computed(row, new, count)
            if is_over:
                assert one.slot is None
                continue
            self.known[one.number] += new
            if len(one.tokens) >= one.most_tokens:
                self.end(one)

    def check(self) -> None:
        scheduler = self.scheduler
        for one in self.alive:
            assert one.tokens == self.known[one.number]
            assert (one.slot is None) == (one in [waits for _, waits in scheduler.waiting])
            assert one.computed <= len(one.tokens)
        slots = [one.slot for one in scheduler.running]
        assert len(set(slots)) == len(slots)
        assert set(slots) <= set(range(self.bounds.slots))
        assert len(scheduler.waiting) + len(scheduler.running) >= len(self.alive)
        assert scheduler.is_idle == (scheduler.wait_s(1e9) > 0)

    def drain(self) -> None:
        """All come to their end, in so many plans as they have pieces, and leave nothing."""
        tokens = sum(one.most_tokens for one in self.alive)
        # A piece may be one token, and whoever has been preempted is computed anew.
        bound = self.plans + 20 + (2 + len(self.alive)) * (tokens + 1) * self.bounds.steps_at_once
        while not self.scheduler.is_idle or self.under_way:
            while len(self.under_way) < self.bounds.steps_at_once and self.begin([]).rows:
                pass
            if self.under_way:
                self.finish([0])
            assert self.plans < bound, "somebody starves"
        assert not self.alive
        assert self.scheduler.used_tokens == 0
        self.check()


def check_random(kind: type[Scheduler] = Scheduler, seeds: range = range(400)) -> None:
    """Random days of a scheduler, the same each time: what the machine does, and much faster."""
    for seed in seeds:
        draws = random.Random(seed)
        cache_tokens = draws.choice([LONGEST, 2 * LONGEST, 100 * LONGEST])
        bounds = Bounds(
            draws.randint(1, 5),
            draws.randint(1, 16),
            cache_tokens,
            8,
            0.0,
            draws.random() < 0.7,
            draws.randint(1, 3),
        )
        driven = Driven(bounds, kind)
        for _ in range(80):
            turn = draws.random()
            if turn < 0.25:
                prompt = draws.choices([0, 1], k=draws.randint(1, MOST_PROMPT))
                driven.add(prompt, draws.randint(1, MOST_NEW), draws.randint(0, 2))
            elif turn < 0.3 and driven.alive:
                driven.end(draws.choice(driven.alive))
            elif turn < 0.7 and len(driven.under_way) < bounds.steps_at_once:
                driven.begin(draws.choices(range(MOST_DRAFTS + 1), k=3))
            elif driven.under_way:
                driven.finish(draws.choices(range(MOST_DRAFTS + 1), k=3))
            driven.check()
        driven.drain()
