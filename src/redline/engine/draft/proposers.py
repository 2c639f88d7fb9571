"""Proposes draft tokens, with a smaller model or from the sequence's own past."""

from __future__ import annotations

from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from redline.engine.draft.acceptance import noise_of, past_of
from redline.engine.draft.lookup import Lookup
from redline.engine.model import Piece, Runner, Work
from redline.engine.sample import Purpose, distribution, masked, sample
from redline.engine.schedule import Sequence, common

# The most tokens per step that a draft model reads to catch up with sequences. While drafts do not
# pay off, the model computes nothing, and without a bound the next step with drafts would be long.
_MOST_CATCH_UP = 256
# If all drafts of a step were kept, the last draft and the token after it are new to the model.
_USUALLY_MISSING = 2


class Drafts(NamedTuple):
    """The result of drafting for a step, besides each sequence's `drafted`.

    laws: by sequence number, the distributions (drafts, V) from which the drafts were drawn; empty
    if the drafts were looked up. is_usual: False if the draft model also had to catch up.
    """

    laws: dict[int, Tensor]
    is_usual: bool = True


class Drafter(Protocol):
    """Proposes tokens that may follow a sequence."""

    def draft(self, sequences: list[Sequence], most: list[int]) -> Drafts:
        """Sets each sequence's `drafted`. most: the most tokens for each sequence, at least 1."""


class LookupDrafter:
    """Proposes what followed the last tokens at an earlier occurrence in the sequence."""

    def __init__(self) -> None:
        self._indices: WeakKeyDictionary[Sequence, Lookup] = WeakKeyDictionary()

    def draft(self, sequences: list[Sequence], most: list[int]) -> Drafts:
        """Sets each sequence's drafts: none if nothing is found."""
        for sequence, count in zip(sequences, most, strict=True):
            index = self._indices.setdefault(sequence, Lookup())
            sequence.drafted = index.propose(sequence.tokens, count)
        return Drafts({})


class ModelDrafter:
    """Drafts with a smaller model of the same vocabulary; its own cache has the same slots."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # For each slot, the tokens whose keys and values are in it, drafts included.
        self._held: dict[int, list[int]] = {}

    def draft(self, sequences: list[Sequence], most: list[int]) -> Drafts:
        """Sets each sequence's drafts: none if the model must catch up first."""
        pieces = self._missing(sequences)
        laws: dict[int, list[Tensor]] = {one.number: [] for one in sequences}
        allowed = {one.number: count for one, count in zip(sequences, most, strict=True)}
        work = pieces
        asked = [(one, at) for one, at in pieces if at.start + at.size == len(one.tokens)]
        for step in range(max(most)):
            if step:
                work = asked = [
                    (one, Piece(at.slot, at.start + at.size, 1))
                    for one, at in asked
                    if allowed[one.number] > step
                ]
            if not work:
                break
            who = [one for one, _ in asked]
            law = self._law(work, who)
            for one, token, own in zip(who, _drawn(law, who, step), law, strict=True):
                one.drafted.append(token)
                laws[one.number].append(own)
        for one, at in pieces:
            # The last draft was not computed: nothing was drafted after it.
            self._held[at.slot] = one.tokens[: at.start + at.size] + one.drafted[:-1]
        return Drafts(
            {number: torch.stack(own) for number, own in laws.items() if own},
            is_usual=all(at.size <= _USUALLY_MISSING for _, at in pieces),
        )

    def _missing(self, sequences: list[Sequence]) -> list[tuple[Sequence, Piece]]:
        """Returns the pieces that the draft model must read now, one per sequence, shortest first.

        A piece ends with the sequence's last token, unless the step's budget is used up first. A
        sequence is left out if nothing is left of the budget.
        """
        found = []
        for one in sequences:
            assert one.slot is not None
            # Rejected drafts do not count, but the prefix shared with an earlier sequence does.
            begin = common(self._held.get(one.slot, []), one.tokens, len(one.tokens) - 1)
            found.append((one, Piece(one.slot, begin, len(one.tokens) - begin)))
        found.sort(key=lambda each: each[1].size)
        budget, pieces = _MOST_CATCH_UP, []
        for one, at in found:
            count = at.size
            if count > _USUALLY_MISSING:
                count = min(count, budget)
                budget -= count
            if count:
                pieces.append((one, at._replace(size=count)))
        return pieces

    def _law(self, work: list[tuple[Sequence, Piece]], asked: list[Sequence]) -> Tensor:
        """Returns (asked, V): the law of the next token in each `asked` sequence, in order."""
        wanted = {one.number for one in asked}
        tokens: list[int] = []
        heard: list[int] = []
        for one, at in work:
            # Once all known tokens are read, the draft of the previous pass follows.
            tokens += one.tokens[at.start : at.start + at.size] or one.drafted[-1:]
            if one.number in wanted:
                heard.append(len(tokens) - 1)
        logits = self._runner.run(Work([], [at for _, at in work], tokens, heard))
        logits = masked(logits, [(one.guide, one.drafted, 1) for one in asked])
        pasts = [past_of(one, len(one.drafted)) for one in asked]
        return distribution(logits, [one.params for one in asked], pasts)


def _drawn(law: Tensor, asked: list[Sequence], step: int) -> list[int]:
    """Draws one token from each law, for the place `step` tokens after the next."""
    if all(one.params.is_greedy for one in asked):
        return law.argmax(-1).tolist()
    return sample(law, noise_of(asked, law.device, step), Purpose.DRAFT).tolist()
