"""Counts what an engine's steps compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redline.engine.schedule.scheduler import Plan


@dataclass
class Figures:
    """Holds sums since the engine started.

    prompt_tokens: the tokens of all prompts, computed or reused. rows: the rows of all steps, so
    rows / steps is the mean batch size. computed_tokens: includes drafts, and tokens computed again
    after a preemption. new_tokens: the tokens of answers. drafts: rows with draft tokens.
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
        """Counts a step. drafted, kept: for each whole row, how many drafts it had and kept."""
        self.steps += 1
        self.rows += len(plan.rows)
        self.computed_tokens += sum(row.size for row in plan.rows)
        self.drafts += sum(map(bool, drafted))
        self.drafted_tokens += sum(drafted)
        self.accepted_tokens += sum(kept)
