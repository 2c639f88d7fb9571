"""Runs the forward pass of one step in the process that holds the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redline.engine.model.attention import Piece, Step
from redline.engine.model.kv_cache import SlotCache
from redline.engine.model.loading import Loaded
from redline.engine.model.packed import pack
from redline.engine.schedule import Copied
from redline.errors import RedlineError


class Work(NamedTuple):
    """The work of one step, the same on every rank.

    tokens: the tokens of all pieces, one piece after the other. heard: places in `tokens`
    whose logits are returned.
    """

    copies: Sequence[Copied]
    pieces: Sequence[Piece]
    tokens: Sequence[int]
    heard: Sequence[int]


class Runner:
    """Computes one step at a time with a cache and a model, or a stage of one, in this process."""

    steps_at_once = 1

    def __init__(self, loaded: Loaded, cache: SlotCache) -> None:
        pack(loaded.model)
        self.loaded = loaded
        self.cache = cache
        self._logits: Tensor | None = None

    @property
    def parameter_bytes(self) -> list[int]:
        """The bytes of the model's parameters in this process, as the only item."""
        return [self.loaded.parameter_bytes]

    def submit(self, work: Work) -> None:
        """Computes a step."""
        assert self._logits is None
        self._logits = self.run(work)

    def result(self) -> Tensor:
        """Returns (heard, vocabulary) float32 logits of the submitted step."""
        logits, self._logits = self._logits, None
        assert logits is not None
        return logits

    def watch(self, told: Callable[[RedlineError], None]) -> None:
        """Does nothing: a failure in this process surfaces in a step."""

    def close(self) -> None:
        """Does nothing: no resource outlives the process."""

    @torch.inference_mode()
    def run(self, work: Work, states: Tensor | None = None) -> Tensor:
        """Returns float32 logits (heard, vocabulary), or a stage's states (tokens, hidden).

        states: those of the previous stage; None in the first stage. The last stage returns logits.
        """
        for source, target, tokens in work.copies:
            self.cache.copy(source, target, tokens)
        step = Step(work.pieces, self.cache)
        device = self.loaded.device
        given: dict[str, Any] = {"position_ids": step.positions, "use_cache": False, "step": step}
        if states is None:
            given["input_ids"] = torch.tensor([work.tokens], device=device)
        else:
            given["inputs_embeds"] = states[None]
        found: Tensor
        if self.loaded.has_head:
            heard = torch.tensor(work.heard, dtype=torch.long, device=device)
            found = self.loaded.model(**given, logits_to_keep=heard).logits[0].float()
        else:
            found = self.loaded.model.model(**given).last_hidden_state[0]
        return found
