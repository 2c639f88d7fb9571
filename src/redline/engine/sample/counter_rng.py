"""Computes noise as a function of (seed, position, purpose): no state, so nothing to restore.

A token's noise depends only on its row and its place in the row, not on the other rows of a step,
on how many tokens a step drafts, or on a restart after a preemption. After a rejected draft, the
noise of the later drafts is used again for the tokens at the same places. That does not change the
distribution, since no token before such a place depends on that noise.

The numbers come from splitmix64 (Steele, Lea and Flood 2014), in int64, whose products wrap
around in the same way on every device.
"""

from __future__ import annotations

import secrets
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


def _signed(number: int) -> int:
    """Returns the int64 with the low 64 bits of `number`."""
    return (number + 2**63) % 2**64 - 2**63


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST_FACTOR = _signed(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _signed(0x94D049BB133111EB)


class Purpose(IntEnum):
    """The purposes of random numbers; no noise is shared between purposes.

    DRAFT: a draft model's token. ACCEPT: whether that token is accepted. FOLLOWING: the token after
    the accepted ones; without a draft, every token is drawn with it. CHOICE: the tokens of exact
    rows (see Noise).
    """

    DRAFT = 1
    ACCEPT = 2
    FOLLOWING = 3
    CHOICE = 4


class Noise(NamedTuple):
    """The keys of the noise of the R rows of a step.

    seeds (R,) int64: see `row_seed`. positions (R,) int64: the place of the row's next token,
    counted from any origin. is_exact (R,) bool: the user gave a seed, so each token is a function
    of (the target's distribution, seed, position) alone.
    """

    seeds: Tensor
    positions: Tensor
    is_exact: Tensor


def row_seed(seed: int | None, choice: int = 0) -> int:
    """Returns the int64 that keys the noise of one row; a random one if `seed` is None.

    seed: any integer; its low 64 bits count. choice: which of a request's `n` answers the row is.
    The answers' seeds are far apart, so the second answer to seed 1 is not the first to seed 2.
    """
    if seed is None:
        return _signed(secrets.randbits(64))
    if choice == 0:
        return _signed(seed)
    return int(_mixed(torch.tensor(_signed(seed + choice * _STEP))))


def keys(seeds: Tensor, positions: Tensor, purpose: Purpose) -> Tensor:
    """Returns well-mixed int64 keys; seeds and positions int64, broadcast."""
    return _mixed(_mixed(seeds + _signed(purpose * _STEP)) + positions * _STEP)


def uniforms(seeds: Tensor, positions: Tensor, purpose: Purpose) -> Tensor:
    """Returns float64 in [0, 1), multiples of 2**-53; seeds and positions int64, broadcast."""
    return _shifted(keys(seeds, positions, purpose), 11).to(torch.float64) * 2.0**-53


def arrivals(keys: Tensor, tokens: Tensor) -> Tensor:
    """Returns an Exp(1) number for each key and token, float64 in (0, 37); both int64, broadcast.

    It is computed from a uniform number half-way between two multiples of 2**-52. A double can hold
    that number, so it is neither 0 nor 1, and no logarithm is infinite.
    """
    bits = _shifted(_mixed(keys + (tokens + 1) * _STEP), 12)
    return -torch.log1p((bits.to(torch.float64) + 0.5) * -(2.0**-52))


def _mixed(bits: Tensor) -> Tensor:
    """Applies splitmix64's finalizer, a bijection.

    A changed input bit changes about half of the output bits.
    """
    bits = (bits ^ _shifted(bits, 30)) * _FIRST_FACTOR
    bits = (bits ^ _shifted(bits, 27)) * _SECOND_FACTOR
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shifts `bits` right as an unsigned number."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
