"""Chooses the tokens that the next step computes.

Prefill and decode are not separate: each sequence has tokens, some of which are computed. A step
advances every running sequence, within a budget of tokens. Sequences with the fewest missing
tokens come first, so neither a long prompt nor drafts delay sequences that generate. The rest of
the budget is for prompts, in order of priority and arrival, a piece at a time; drafts leave half of
a step for prompts.

A slot is released when its sequence ends. Until the slot is used again, the keys and values stay in
it, for a later prompt with the same beginning. If the cache is full, drafts are dropped first. If
that is not enough, the last sequence in order is preempted: it releases its slot and waits again.
Its tokens are later computed again, which costs time but changes no result.

If a model is split into stages, several steps are under way at once, each with its own sequences:
a sequence is in only one step at a time.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import NamedTuple

from redline.engine.schedule.sequence import Sequence
from redline.errors import RedlineError
from redline.process import counted


class Row(NamedTuple):
    """The next `size` tokens of a sequence, which this step computes.

    is_whole: the row ends with the last of the sequence's tokens and drafts, so new tokens follow.
    """

    sequence: Sequence
    size: int
    is_whole: bool


class Copied(NamedTuple):
    """A copy to make before the step: the first `tokens` keys and values of one slot to another."""

    source: int
    target: int
    tokens: int


class Plan(NamedTuple):
    """One step: first the copies, then the rows."""

    copies: list[Copied]
    rows: list[Row]


class QueueFull(RedlineError):
    """Raised for a sequence that does not fit in the queue."""


class Bounds(NamedTuple):
    """The bounds of a scheduler.

    slots: the most sequences that run at once. cache_tokens: the most tokens in all slots together.
    EngineSettings describes the others: step_tokens is its max_step_tokens, waiting max_waiting,
    wait_s max_wait_s, and steps_at_once pipeline_parallel.
    """

    slots: int
    step_tokens: int
    cache_tokens: int
    waiting: int
    wait_s: float = 0.0
    reuses_prefixes: bool = True
    steps_at_once: int = 1


class Scheduler:
    """Plans steps for the running and waiting sequences. Has no clock: times are passed in."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.running: list[Sequence] = []
        self.waiting: list[tuple[tuple[int, int], Sequence]] = []
        self.preemptions = 0
        self.ends: Counter[str] = Counter()  # ended sequences, by reason
        self.reused_tokens = 0
        # The tokens whose keys and values are in each slot, even after its sequence has left.
        self._held: list[list[int]] = [[] for _ in range(bounds.slots)]
        self._since_s = math.inf  # when the first sequence joined the idle engine's queue

    @property
    def used_tokens(self) -> int:
        """The number of cached tokens that belong to running sequences or are being computed."""
        return sum(sequence.computed + sequence.under_way for sequence in self.running)

    @property
    def _free(self) -> set[int]:
        """The slots that no running sequence has."""
        return set(range(self.bounds.slots)) - {one.slot for one in self.running}

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    def add(self, sequence: Sequence, now_s: float) -> None:
        """Adds a sequence to the queue. Raises QueueFull if there is no room."""
        # Sequences that fit into free slots do not count: an idle engine must accept a burst.
        if len(self.waiting) >= self.bounds.waiting + len(self._free):
            raise QueueFull(
                f"{counted(self.bounds.waiting, 'request is', 'requests are')} already waiting",
                hint="send fewer at once",
            )
        if self.is_idle:
            self._since_s = now_s
        heapq.heappush(self.waiting, (sequence.order, sequence))

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until the next step is due; inf if there is nothing to do.

        Only an idle engine waits for more sequences; running ones are never delayed.
        """
        if self.running:
            return 0.0
        if not self.waiting:
            return math.inf
        if len(self.waiting) >= self.bounds.slots:
            return 0.0
        return max(0.0, self._since_s + self.bounds.wait_s - now_s)

    def plan(self) -> Plan:
        """Returns the next step; empty if everything that may be computed is under way.

        Running sequences must have their drafts already; drafts without room are dropped.
        """
        budget = self.bounds.step_tokens
        counts: dict[Sequence, int] = {}
        ready = self.ready()
        generating = sum(one.is_caught_up for one in ready)
        # Each generating sequence gets a token before any sequence gets drafts. While there is a
        # prompt to read, these tokens and the drafts together leave the prompt half of the step.
        reads = generating < len(ready) or bool(self.waiting and self._free)
        drafts = max(0, (budget // 2 if reads else budget) - generating)
        for sequence in ready:
            del sequence.drafted[drafts:]
            drafts -= len(sequence.drafted)
            counts[sequence] = min(sequence.due, budget)
            budget -= counts[sequence]
        copies: list[Copied] = []
        most = -(-self.bounds.slots // self.bounds.steps_at_once)
        if not self._has_room(counts):
            # No sequence is admitted while running sequences lack room.
            self._make_room(counts)
            budget = 0
        while budget > 0 and self.waiting and self._free and len(counts) < most:
            sequence = self.waiting[0][1]
            if not self._may_come(sequence):
                break
            heapq.heappop(self.waiting)
            copies += self._admit(sequence)
            counts[sequence] = min(sequence.due, budget)
            budget -= counts[sequence]
        rows = [
            Row(sequence, count, count == sequence.due)
            for sequence in self.running
            if (count := counts.get(sequence, 0))
        ]
        self._check(rows)
        for row in rows:
            row.sequence.under_way = row.size
        return Plan(copies, rows)

    def ready(self) -> list[Sequence]:
        """Returns the sequences for the next plan, with the fewest missing tokens first.

        If several steps are under way at once, each takes its share of the running sequences.
        """
        share = -(-len(self.running) // self.bounds.steps_at_once)
        ready = [one for one in self.running if not one.under_way]
        return sorted(ready, key=lambda one: (len(one.tokens) - one.computed, one.order))[:share]

    def computed(self, row: Row, new_tokens: list[int], kept: int) -> None:
        """Records that a step has computed the row.

        new_tokens: the accepted drafts and the token after them; empty for a row that is not whole.
        kept: the number of accepted drafts.
        """
        sequence = row.sequence
        assert sequence.slot is not None
        assert sequence.under_way == row.size
        sequence.under_way = 0
        if sequence.ended is not None:
            self._leave(sequence)
            return
        before = sequence.computed
        if row.is_whole:
            # The keys and values of rejected drafts will be overwritten.
            sequence.computed = len(sequence.tokens) + kept
            sequence.tokens += new_tokens
        else:
            sequence.computed += row.size
        sequence.drafted = []
        held = self._held[sequence.slot]
        held += sequence.tokens[before : sequence.computed]
        assert len(held) == sequence.computed < len(sequence.tokens) + 1

    def end(self, sequence: Sequence, reason: str | RedlineError) -> None:
        """Ends a sequence that is done, cancelled or failed.

        Its slot is free at once, or after the step that is writing to the slot.
        """
        sequence.ended = reason
        self.ends[reason if isinstance(reason, str) else "failed"] += 1
        if sequence.slot is not None:
            if isinstance(reason, RedlineError):
                # Its keys and values might make the next sequence with this prefix fail, too.
                self._held[sequence.slot] = []
            if not sequence.under_way:
                self._leave(sequence)
        else:
            self.waiting = [entry for entry in self.waiting if entry[1] is not sequence]
            heapq.heapify(self.waiting)

    def _admit(self, sequence: Sequence) -> list[Copied]:
        """Assigns a slot and reuses the longest prefix in any slot; returns the copy, if needed."""
        # The sequence's last token is always computed, for the logits of the next one.
        most = len(sequence.tokens) - 1 if self.bounds.reuses_prefixes else 0
        alike = [common(held, sequence.tokens, most) for held in self._held]
        free = self._free
        source = max(range(self.bounds.slots), key=lambda at: (alike[at], at in free))
        slot, reused = source if source in free else min(free), alike[source]
        self._held[slot] = self._held[source][:reused]
        sequence.slot, sequence.computed = slot, reused
        self.running.append(sequence)
        self.reused_tokens += reused
        return [Copied(source, slot, reused)] if source != slot else []

    def _may_come(self, sequence: Sequence) -> bool:
        """Returns whether the cache has room for the sequence and all tokens of running ones."""
        known = sum(len(one.tokens) + len(one.drafted) for one in self.running)
        return not self.running or known + len(sequence.tokens) < self.bounds.cache_tokens

    def _has_room(self, counts: dict[Sequence, int]) -> bool:
        return self.used_tokens + sum(counts.values()) <= self.bounds.cache_tokens

    def _make_room(self, counts: dict[Sequence, int]) -> None:
        """Drops drafts, then preempts sequences, the last in order first, until the step fits."""
        for one in self.running:
            if not one.under_way and one.drafted:
                counts[one] -= len(one.drafted)
                one.drafted = []
        while not self._has_room(counts):
            idle = [one for one in self.running if not one.under_way]
            if len(idle) < 2 and len(idle) < len(self.running):
                # Wait for the steps that are under way.
                counts.clear()
                return
            last = max(idle, key=lambda one: one.order)
            assert len(self.running) > 1, "one sequence alone fits: its length is bounded"
            counts.pop(last, None)
            self._leave(last)
            last.computed = 0
            self.preemptions += 1
            heapq.heappush(self.waiting, (last.order, last))

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.running.remove(sequence)
        sequence.slot = None

    def _check(self, rows: list[Row]) -> None:
        slots = {sequence.slot for sequence in self.running}
        assert len(slots) == len(self.running) <= self.bounds.slots
        assert sum(row.size for row in rows) <= self.bounds.step_tokens
        for row in rows:
            assert 1 <= row.size <= row.sequence.due
            assert not row.sequence.under_way


def common(held: list[int], wanted: list[int], most: int) -> int:
    """Returns the length of the common prefix of both lists, at most `most`."""
    low, high = 0, min(len(held), most)
    if not high or held[0] != wanted[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if held[low:middle] == wanted[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
