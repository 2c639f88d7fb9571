"""Keyed noise: the published generator's numbers, uniform, and a function of its key alone."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.sample import Purpose, arrivals, row_seed, uniforms
from support.sampling_law import p_value

# The first outputs of splitmix64 from state 1234567, from its reference implementation.
SPLITMIX64 = [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_noise_is_splitmix64() -> None:
    found = arrivals(torch.tensor(1234567), torch.arange(3))
    expected = [-math.log1p(-((each >> 12) + 0.5) / 2**52) for each in SPLITMIX64]
    assert found.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_numbers_of_neighbouring_keys_are_uniform(purpose: Purpose) -> None:
    seeds = torch.arange(200)[:, None]
    numbers = uniforms(seeds, torch.arange(500), purpose)
    assert numbers.dtype == torch.float64
    assert 0 <= float(numbers.min()) <= float(numbers.max()) < 1
    flat = torch.full((100,), 0.01, dtype=torch.float64)
    for each in (numbers, numbers.diff(dim=0) % 1, numbers.diff(dim=1) % 1):
        assert p_value((each * 100).to(torch.int64).flatten(), flat) > 1e-4


def test_arrivals_are_exponential() -> None:
    times = arrivals(torch.arange(1000)[:, None], torch.arange(200))
    assert 0 < float(times.min()) < float(times.max()) < 37
    flat = torch.full((100,), 0.01, dtype=torch.float64)
    levels = (-torch.expm1(-times) * 100).to(torch.int64).clamp(max=99)
    assert p_value(levels.flatten(), flat) > 1e-4


def test_purposes_share_no_noise() -> None:
    seeds, positions = torch.arange(100)[:, None], torch.arange(100)
    rows = [uniforms(seeds, positions, purpose).flatten() for purpose in Purpose]
    correlations = torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))
    assert float(correlations.abs().max()) < 0.05


def test_a_number_depends_on_its_own_key_alone() -> None:
    seeds = torch.tensor([5, -(2**63), 2**63 - 1, 0])
    positions = torch.tensor([0, 1, 2, 10**6])
    together = uniforms(seeds, positions, Purpose.ACCEPT)
    alone = [
        uniforms(seeds[row : row + 1], positions[row : row + 1], Purpose.ACCEPT) for row in range(4)
    ]
    assert together.tolist() == torch.cat(alone).tolist()


def test_seeds_of_users_are_kept_to_64_bits_and_others_are_random() -> None:
    assert row_seed(7) == 7
    assert row_seed(2**64 - 1) == -1
    assert row_seed(-(2**63)) == -(2**63)
    assert len({row_seed(None) for _ in range(100)}) == 100
    answers = {row_seed(seed, choice) for seed in range(50) for choice in range(50)}
    assert len(answers) == 2500
    assert row_seed(7, 3) == row_seed(7, 3)
