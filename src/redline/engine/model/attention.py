"""Computes attention over the slot cache for the new tokens of many sequences.

A step's new tokens form one row, whichever sequence each belongs to, so that the model's linear
layers process them all at once. Attention separates them again. Sequences with a few new tokens
(mostly sequences that generate) share two matrix products, since PyTorch's fused attention is
slower at such lengths on a CPU. Pieces of very different sizes are not mixed, since the short
pieces would be padded to the long ones. Each long piece of a prompt has its own call of fused
attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from redline.engine.model.kv_cache import SlotCache, bucketed

NAME = "redline"
# A sequence with at most this many new tokens shares its matrix products with others.
_MOST_TOGETHER = 16


class Piece(NamedTuple):
    """New tokens of one sequence: `size` of them from position `start` on, in `slot`."""

    slot: int
    start: int
    size: int


# A piece, and where its tokens begin in the row of all new tokens.
_Found = tuple[Piece, int]


def grouped(short: Sequence[_Found]) -> list[list[_Found]]:
    """Returns groups of pieces that are processed together, each in the order of its tokens.

    Padded to the size of its longest piece, a group has at most twice as many tokens as its pieces.
    """
    groups: list[list[_Found]] = []
    tokens = 0
    for found in sorted(short, key=lambda each: -each[0].size):
        tokens += found[0].size
        if groups and (len(groups[-1]) + 1) * groups[-1][0][0].size <= 2 * tokens:
            groups[-1].append(found)
        else:
            groups.append([found])
            tokens = found[0].size
    return [sorted(group, key=lambda each: each[1]) for group in groups]


def positions_of(pieces: Sequence[Piece]) -> list[int]:
    """Returns the position of each new token in its sequence."""
    return [at for piece in pieces for at in range(piece.start, piece.start + piece.size)]


class Step:
    """The data that attention needs in one step; built once and used by every layer."""

    def __init__(self, pieces: Sequence[Piece], cache: SlotCache) -> None:
        device = cache.keys[0].device
        self.cache = cache
        slots = [piece.slot for piece in pieces for _ in range(piece.size)]
        positions = torch.tensor(positions_of(pieces), device=device)
        self.places = (torch.tensor(slots, device=device), positions)
        short: list[_Found] = []
        self._alone: list[_Alone] = []
        at = 0
        for piece in pieces:
            if piece.size <= _MOST_TOGETHER:
                short.append((piece, at))
            else:
                self._alone.append(_Alone(piece, at, device))
            at += piece.size
        self._together = [_Together(found, device) for found in grouped(short)]

    @property
    def positions(self) -> Tensor:
        """The position of each new token in its sequence, (1, N)."""
        return self.places[1][None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Stores the keys and values of the new tokens, and returns their attention (N, heads, D).

        query: (heads, N, D), already scaled. key, value: (kv heads, N, D).
        """
        self.cache.write(layer, self.places, key.transpose(0, 1), value.transpose(0, 1))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        by_token = query.transpose(0, 1)
        if len(self._together) == 1 and not self._alone:
            return self._together[0].attend(by_token, keys, values)
        seen = torch.empty_like(by_token)
        for alone in self._alone:
            seen[alone.begin : alone.end] = alone.attend(query, keys, values)
        for together in self._together:
            own = by_token[together.places]
            seen[together.places] = together.attend(own, keys, values)
        return seen


class _Alone:
    """The attention of one long piece."""

    def __init__(self, piece: Piece, at: int, device: torch.device) -> None:
        self.begin, self.end = at, at + piece.size
        self._slot = piece.slot
        self._length = piece.start + piece.size
        self._mask: Tensor | None = None
        if piece.start:
            own = torch.arange(piece.start, self._length, device=device)
            self._mask = torch.arange(self._length, device=device) <= own[:, None]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        seen = scaled_dot_product_attention(
            query[None, :, self.begin : self.end],
            keys[None, self._slot, :, : self._length],
            values[None, self._slot, :, : self._length],
            attn_mask=self._mask,
            is_causal=self._mask is None,
            scale=1.0,
            enable_gqa=True,
        )
        return seen[0].transpose(0, 1)


class _Together:
    """The attention of short pieces of many sequences, padded to the longest of them."""

    def __init__(self, found: Sequence[_Found], device: torch.device) -> None:
        pieces = [piece for piece, _ in found]
        width = max(piece.size for piece in pieces)
        length = bucketed(max(piece.start + piece.size for piece in pieces))
        # If at least half of the slots up to the last one used have a piece, all of them are read
        # in place; otherwise only the slots with a piece are copied.
        slots = [piece.slot for piece in pieces]
        is_dense = 2 * len(slots) >= max(slots) + 1
        rows = slots if is_dense else list(range(len(slots)))
        self._count = max(rows) + 1
        self._slots = slice(self._count) if is_dense else torch.tensor(slots, device=device)
        self._width, self._length = width, length
        places: list[int] = []
        padded: list[int] = []
        # A slot without a piece attends to its first token, as a placeholder.
        last = torch.zeros(self._count, width, dtype=torch.long)
        for row, (piece, at) in zip(rows, found, strict=True):
            places += range(at, at + piece.size)
            padded += range(row * width, row * width + piece.size)
            last[row, : piece.size] = torch.arange(piece.start, piece.start + piece.size)
        self.places = torch.tensor(places, device=device)
        self._padded = torch.tensor(padded, device=device)
        self._is_plain = padded == list(range(self._count * width))
        hidden = torch.arange(length)[None, None] > last[:, :, None]
        # (rows, 1, 1, width, length), the same for all heads.
        self._hidden = hidden[:, None, None].to(device)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Returns the attention (n, heads, D) of the pieces' n tokens. query: (n, heads, D)."""
        heads, size = query.shape[1:]
        keys, values = (kept[self._slots][:, :, : self._length] for kept in (keys, values))
        groups = heads // keys.shape[1]
        if not self._is_plain:
            spread = query.new_zeros(self._count * self._width, heads, size)
            spread[self._padded] = query
            query = spread
        # (rows, kv heads, groups x width, D): the heads of a group look at the same keys.
        query = query.view(self._count, self._width, -1, groups, size).permute(0, 2, 3, 1, 4)
        query = query.reshape(self._count, -1, groups * self._width, size)
        # Keys times queries: the other way round, PyTorch would transpose all keys first.
        scores = torch.matmul(keys, query.transpose(-1, -2)).transpose(-1, -2)
        scores = scores.contiguous().float()
        scores = scores.view(self._count, -1, groups, self._width, self._length)
        # Overwritten, not added: the score of a key from an earlier sequence may be NaN.
        weights = scores.masked_fill_(self._hidden, -torch.inf).softmax(-1).to(values.dtype)
        weights = weights.view(self._count, -1, groups * self._width, self._length)
        seen = torch.matmul(weights, values)
        seen = seen.view(self._count, -1, groups, self._width, size).permute(0, 3, 1, 2, 4)
        seen = seen.reshape(self._count * self._width, heads, size)
        return seen if self._is_plain else seen[self._padded]


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: object, **settings: Any
) -> tuple[Tensor, None]:
    """Computes attention for N new tokens of a step; transformers calls it.

    query: (1, heads, N, D). key, value: (1, kv heads, N, D). settings: includes `step`, which the
    model should pass down to each layer, as it does with all arguments unknown to it. Raises
    ValueError if `step` is missing.
    """
    step: Step | None = settings.get("step")
    if step is None:
        raise ValueError("its attention layers do not pass on the engine's arguments")
    scaled = query[0] * settings["scaling"]
    return step.attend(module.layer_idx, scaled, key[0], value[0])[None], None
