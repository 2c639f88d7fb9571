"""Models that are tables, and a cache that is looked into: only the engine's own parts cost.

The next token's logits hang on the last two tokens, and on nothing else. Both are read where the
cache has them, so that a token in a wrong place, of another sequence or of a draft that was
refused, changes what is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from redline.engine.model import Runner, Work

TOKENS = 6


def tables(seed: int = 7, tokens: int = TOKENS) -> tuple[Tensor, Tensor]:
    """(tokens, tokens, tokens) float32 logits of a target and of a draft that resembles it."""
    chance = torch.Generator().manual_seed(seed)
    size = (tokens, tokens, tokens)
    target = 1.5 * torch.randn(size, generator=chance)
    return target, target + torch.randn(size, generator=chance)


class TableRunner(Runner):
    """Reads its logits from `table`, by the two tokens before in a cache that holds tokens.

    last: the logits of the last run.
    """

    def __init__(self, table: Tensor, slots: int, *, capacity: int = 256) -> None:
        self.table = table
        self.held = torch.full((slots, capacity), -1)
        self.last: Tensor | None = None

    def run(self, work: Work) -> Tensor:
        for source, target, tokens in work.copies:
            self.held[target, :tokens] = self.held[source, :tokens]
        slots = [piece.slot for piece in work.pieces for _ in range(piece.size)]
        places = [at for one in work.pieces for at in range(one.start, one.start + one.size)]
        self.held[slots, places] = torch.tensor(work.tokens)
        heard = torch.tensor(work.heard, dtype=torch.int64)
        slot, place = torch.tensor(slots)[heard], torch.tensor(places)[heard]
        # Place -1 is the last of the slot, which is never written: it stands for no token.
        before, here = self.held[slot, place - 1].clamp(min=0), self.held[slot, place]
        self.last = self.table[before, here]
        return self.last


class TableComputer(TableRunner):
    """Has so many steps under way, as a model in stages has."""

    def __init__(
        self, table: Tensor, slots: int, steps_at_once: int = 1, *, capacity: int = 256
    ) -> None:
        super().__init__(table, slots, capacity=capacity)
        self.steps_at_once = steps_at_once
        self._results: deque[Tensor] = deque()

    def submit(self, work: Work) -> None:
        assert len(self._results) < self.steps_at_once
        self._results.append(self.run(work))

    def result(self) -> Tensor:
        return self._results.popleft()


def said_greedily(table: Tensor, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that the table says after the prompt."""
    tokens = [0, *prompt]
    for _ in range(count):
        tokens.append(int(table[tokens[-2], tokens[-1]].argmax()))
    return tokens[-count:] if count else []
