"""The counters of an engine's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redline.engine.schedule.scheduler import Plan


@dataclass
class Figures:
    """Sums since the start.

    prompt_tokens: of what was asked, whether they were computed or not. rows: of all steps, so that
    rows / steps is the mean batch. computed_tokens: prompts, drafts and what was computed again
    after a preemption among them. new_tokens: that answers grew by. drafts: rows that had some.
    """

    prompt_tokens: int = 0
    steps: int = 0
    rows: int = 0
    computed_tokens: int = 0
    new_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, plan: Plan, drafted: Sequence[int], kept: Sequence[int]) -> None:
        """Counts a step: for each row that got tokens, its drafts and those that were kept."""
        self.steps += 1
        self.rows += len(plan.rows)
        self.computed_tokens += sum(row.size for row in plan.rows)
        self.drafts += sum(map(bool, drafted))
        self.drafted_tokens += sum(drafted)
        self.accepted_tokens += sum(kept)
