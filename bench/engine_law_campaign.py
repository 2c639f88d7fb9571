"""The campaign of the decoder's distribution: 200,000 tokens with each of 20 seeds, every drafter.

Each part is one way to decode (tests/support/decoder_law.py) with some of the seeds. A chi-square
test checks single tokens and pairs of tokens. The last part runs wrong variants, each of which must
be detected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

import torch

from support.decoder_law import CASES, LENGTH, WRONG, examined, wrong
from support.sampling_law import LEAST_P, Examined

DRAWS = 200_000
SEEDS = range(1, 21)
_SEEDS_A_PART = 5
# Tokens and pairs of neighbours, of each seed and case: what the p-values are corrected for.
_TESTS = (2 * LENGTH - 1) * len(SEEDS) * len(CASES)

Work = Callable[[Path], dict[str, Any]]


class WrongLawError(AssertionError):
    """The law is not the target's; `found` keeps the figures for the record."""

    def __init__(self, what: str, found: dict[str, Any]) -> None:
        super().__init__(what)
        self.found = found


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, first seed and work of each part."""
    torch.set_num_threads(1)
    for name in CASES:
        for first in SEEDS[::_SEEDS_A_PART]:
            yield f"{name}, seed {first} on", first, partial(_follows, name, first)
    yield "wrong variants", SEEDS[0], _wrong_variants


def _follows(name: str, first: int, _: Path) -> dict[str, Any]:
    found: list[Examined] = []
    seeds = range(first, first + _SEEDS_A_PART)
    for seed in seeds:
        found += examined(CASES[name], DRAWS // LENGTH, [seed])
        print(f"  seed {seed}: least p {_least(found[1 - 2 * LENGTH :]):.2g}", flush=True)
    # Holm's correction rejects something if and only if it rejects the least, times their number.
    corrected = min(1.0, _least(found) * _TESTS)
    figures = {
        "torch": torch.__version__,
        "case": name,
        "tokens": DRAWS * len(seeds),
        "tests": len(found),
        "least_p": _least(found),
        "least_p_corrected": corrected,
        "below_5_percent": sum(each.p_value < 0.05 for each in found),
    }
    if corrected <= LEAST_P:
        raise WrongLawError(f"p = {corrected:.2g}, corrected for {_TESTS} tests", figures)
    return figures


def _wrong_variants(_: Path) -> dict[str, Any]:
    least = {
        name: _least(examined(CASES[case], DRAWS // LENGTH, SEEDS[:1], wrong(name)))
        for name, case in WRONG.items()
    }
    missed = [name for name, p in least.items() if p * _TESTS > LEAST_P]
    if missed:
        raise WrongLawError(f"not noticed: {missed}", {"least_p": least})
    return {"least_p": least}


def _least(found: list[Examined]) -> float:
    return min(each.p_value for each in found)
