"""Attention over the slots: each token sees its own sequence, whatever else is computed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from redline.engine.model import Piece, Shape, SlotCache, Step, grouped

HEADS, KV_HEADS, SIZE, CAPACITY, SLOTS = 6, 2, 8, 64, 12


def seen_alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(heads, D): what the last token of one sequence sees, by the formula, in float64."""
    groups = HEADS // KV_HEADS
    keys, values = (part.double().repeat_interleave(groups, 0) for part in (key, value))
    weights = (query.double()[:, None] * keys).sum(-1).softmax(-1)
    return (weights[:, :, None] * values).sum(1)


def check(pieces: Sequence[Piece]) -> None:
    torch.manual_seed(len(pieces))
    cache = SlotCache(Shape(1, SLOTS, KV_HEADS, CAPACITY, SIZE), torch.float32, torch.device("cpu"))
    # What stands behind a sequence, of another that was there before, is not to be seen.
    cache.keys[0].normal_(std=3.0)
    cache.values[0].normal_()
    count = sum(piece.size for piece in pieces)
    query = torch.randn(HEADS, count, SIZE)
    key, value = torch.randn(KV_HEADS, count, SIZE), torch.randn(KV_HEADS, count, SIZE)
    found = Step(pieces, cache).attend(0, query, key, value)
    assert found.shape == (count, HEADS, SIZE)
    at = 0
    for piece in pieces:
        for place in range(piece.start, piece.start + piece.size):
            own = [part[0][piece.slot, :, : place + 1] for part in (cache.keys, cache.values)]
            wanted = seen_alone(query[:, at], own[0], own[1])
            torch.testing.assert_close(found[at].double(), wanted, rtol=1e-4, atol=1e-5)
            at += 1


# Lengths of the pieces of a step, each of a slot of its own.
STEPS = {
    "one": [1],
    "one each": [1] * SLOTS,
    "two lengths in turn": [1, 2, 1, 2],
    "drafts": [5, 5, 5, 2, 1, 5],
    "a short prompt beside who generate": [1, 1, 1, 1, 1, 16, 1, 1],
    "short prompts": [16, 1, 9, 1, 1, 3, 1, 1, 1, 12],
    "a long prompt, too": [1, 40, 1, 7, 1, 1, 1, 1, 1],
    "long prompts alone": [30, 17],
}


@pytest.mark.parametrize("sizes", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("seed", [1, 2])
def test_each_token_sees_its_own_sequence(sizes: list[int], seed: int) -> None:
    chance = random.Random(seed)
    slots = chance.sample(range(SLOTS), len(sizes))
    starts = [chance.choice([0, chance.randint(0, CAPACITY - size)]) for size in sizes]
    check([Piece(*each) for each in zip(slots, starts, sizes, strict=True)])


@pytest.mark.parametrize("seed", range(20))
def test_few_long_pieces_do_not_fill_up_many_short_ones(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([1, 1, 1, 2, 5, 16]) for _ in range(chance.randint(1, 40))]
    found = [(Piece(slot, 0, size), 100 * slot) for slot, size in enumerate(sizes)]
    groups = grouped(found)
    assert sorted(each for group in groups for each in group) == found
    for group in groups:
        wide = [piece.size for piece, _ in group]
        assert len(wide) * max(wide) <= 2 * sum(wide)
        assert group == sorted(group, key=lambda each: each[1])


def test_pieces_of_one_length_go_together() -> None:
    found = [(Piece(slot, 0, 5), 5 * slot) for slot in range(30)]
    assert grouped(found) == [found]
    assert grouped([]) == []
