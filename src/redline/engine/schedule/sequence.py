"""Represents a sequence of tokens on its way through the engine.

state      meaning                                     may become
waiting    it is in the queue, without a slot          running, ended
running    it has a slot; steps compute its tokens     waiting (preempted), ended
ended      it is done; `ended` has the reason          -
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redline.engine.sample import Guide, SamplingParams
from redline.errors import RedlineError


@dataclass(eq=False)
class Sequence:
    """One answer and its prompt; the keys and values of the first `computed` tokens are in `slot`.

    tokens: prompt and answer. most_tokens: the maximum of both together. drafted: the draft tokens
    after `tokens`, for the next step to judge. under_way: the number of tokens that a step is
    computing now. seed: 64 bits. is_seeded: whether the user gave the seed. priority: lower comes
    first. number: the place in the order of arrival. guide: the grammar that the answer must
    follow. ended: the reason why the sequence ended; None before. asker: the receiver of the
    answer's tokens, which the scheduler does not use.
    """

    tokens: list[int]
    params: SamplingParams
    seed: int
    number: int
    most_tokens: int
    priority: int = 0
    is_seeded: bool = False
    guide: Guide | None = None
    asker: Any = None
    slot: int | None = None
    computed: int = 0
    under_way: int = 0
    drafted: list[int] = field(default_factory=list)
    ended: str | RedlineError | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def due(self) -> int:
        """The number of tokens that are not computed yet, drafts included; at least 1."""
        return len(self.tokens) + len(self.drafted) - self.computed

    @property
    def is_caught_up(self) -> bool:
        """Whether all but its last token are computed, so that the next step yields a new token."""
        return self.computed == len(self.tokens) - 1

    @property
    def order(self) -> tuple[int, int]:
        """The sort key: lower keys come first."""
        return (self.priority, self.number)
