"""Does a decoder follow its target's law? Chi-square over single tokens and over pairs.

The models are tables: eight tokens, each next one's logits a function of the one before. So the
law of every token and pair is known exactly, and a draw costs nothing. A decoder is any function
of a seed that gives (draws, LENGTH) tokens; `table_decoder` is the loop around `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from redline.engine.draft import Acceptance, verify
from redline.engine.sample import (
    Noise,
    Past,
    Purpose,
    SamplingParams,
    distribution,
    draw,
    sample,
    uniforms,
)

TOKENS = 8
START = 0
# Behind a draft of three the fourth token is a bonus; the others are accepted or drawn again, in
# every mixture.
LENGTH = 4
# Corrected for all tests of a family: a right decoder fails once in a thousand families.
LEAST_P = 0.001
# Cells that are expected less often are pooled (Cochran 1954).
_LEAST_EXPECTED = 5.0

Decoder = Callable[[int], Tensor]
Verify = Callable[[Tensor, Tensor, Tensor | None, Tensor, Noise], Acceptance]


@dataclass(frozen=True)
class Case:
    """One way to decode. most: drafted tokens a step, fewer in every fourth row.

    is_drawn: drafts come from a draft model's law; otherwise they are looked up. told: what the
    verifier takes the drafts' law to be, where that is not what they were drawn from.
    """

    params: SamplingParams
    most: int
    is_drawn: bool = True
    is_exact: bool = False
    told: SamplingParams | None = None


def models(seed: int = 7) -> tuple[Tensor, Tensor]:
    """(TOKENS, TOKENS) float32 logits of a target and of a draft that resembles it."""
    chance = torch.Generator().manual_seed(seed)
    target = 1.5 * torch.randn(TOKENS, TOKENS, generator=chance)
    return target, target + torch.randn(TOKENS, TOKENS, generator=chance)


def laws(logits: Tensor, params: SamplingParams) -> Tensor:
    """(TOKENS, TOKENS) float32: the next token's law by the one before."""
    return distribution(logits, [params] * TOKENS, [Past((), ())] * TOKENS)


def table_decoder(case: Case, draws: int, verifier: Verify = verify) -> Decoder:
    """The decoder of one case: steps of drafting and verifying until LENGTH tokens."""
    target_logits, draft_logits = models()
    target, drafter = laws(target_logits, case.params), laws(draft_logits, case.params)
    offered = drafter if case.told is None else laws(draft_logits, case.told)
    exact = torch.full((draws,), case.is_exact)

    def decode(seed: int) -> Tensor:
        row = torch.arange(draws)
        seeds = row + (seed << 32)
        tokens = torch.full((draws, 1 + LENGTH), START)
        done = torch.zeros(draws, dtype=torch.int64)
        while len(rows := (done < LENGTH).nonzero()[:, 0]):
            noise = Noise(seeds[rows], done[rows], exact[rows])
            last = tokens[rows, done[rows]]
            read = [last]
            for place in range(case.most):
                here = noise._replace(positions=noise.positions + place)
                law = drafter[read[-1]]
                drawn = sample(law, here, Purpose.DRAFT) if case.is_drawn else law.argmax(-1)
                read.append(drawn)
            before = torch.stack(read, 1)
            fewer = (row[rows] // 4 + done[rows]) % (case.most + 1)
            lengths = torch.where(row[rows] % 4 == 0, fewer, case.most)
            told = offered[before[:, :-1]] if case.is_drawn else None
            verdict = verifier(before[:, 1:], lengths, told, target[before], noise)
            _append(tokens, done, rows, before[:, 1:], verdict)
        return tokens[:, 1:]

    return decode


def _append(tokens: Tensor, done: Tensor, rows: Tensor, draft: Tensor, verdict: Acceptance) -> None:
    """Writes what stays of each row's draft and the token that follows, in place."""
    for place in range(draft.shape[1] + 1):
        at = done[rows] + place + 1
        is_last = place == verdict.accepted
        is_written = (place <= verdict.accepted) & (at <= LENGTH)
        drafted = draft[:, place] if place < draft.shape[1] else verdict.following
        token = torch.where(is_last, verdict.following, drafted)
        tokens[rows[is_written], at[is_written]] = token[is_written]
    done[rows] += verdict.accepted + 1


class Examined(NamedTuple):
    """One chi-square test: what was counted, of which seed, and the chance of such counts."""

    what: str
    seed: int
    p_value: float


def examined(decode: Decoder, law: Tensor, seeds: Iterable[int]) -> list[Examined]:
    """Tests each token and each pair of neighbours, of each seed. law: of `laws`, the target's."""
    found = []
    single = law[START].to(torch.float64)
    singles, pairs = [single], []
    for _ in range(LENGTH - 1):
        pairs.append(singles[-1][:, None] * law.to(torch.float64))
        singles.append(pairs[-1].sum(0))
    for seed in seeds:
        tokens = decode(seed)
        for place, expected in enumerate(singles):
            found.append(Examined(f"token {place}", seed, p_value(tokens[:, place], expected)))
        for place, expected in enumerate(pairs):
            both = tokens[:, place] * TOKENS + tokens[:, place + 1]
            found.append(Examined(f"pair {place}", seed, p_value(both, expected.flatten())))
    return found


def p_value(drawn: Tensor, law: Tensor) -> float:
    """The chance of counts at least as far from `law` (cells,); 0 where an impossible one came.

    drawn (draws,) int64: cells. Pearson's statistic, with the rare cells pooled.
    """
    counts = torch.bincount(drawn, minlength=len(law)).to(torch.float64)
    expected = law / law.sum() * len(drawn)
    if bool((counts[law == 0] > 0).any()):
        return 0.0
    order = expected[law > 0].argsort()
    counts, expected = counts[law > 0][order], expected[law > 0][order]
    rare = int((expected < _LEAST_EXPECTED).sum())
    while rare > 0 and rare < len(expected) and expected[:rare].sum() < _LEAST_EXPECTED:
        rare += 1
    if rare > 1:
        counts = torch.cat([counts[:rare].sum()[None], counts[rare:]])
        expected = torch.cat([expected[:rare].sum()[None], expected[rare:]])
    if len(expected) < 2:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def holm(p_values: list[float]) -> list[float]:
    """The p-values, corrected for being so many (Holm 1979), in their order."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def assert_follows(found: list[Examined]) -> None:
    """No test of the family fails, once corrected for their number."""
    corrected = holm([each.p_value for each in found])
    failed = [
        f"{each.what} of seed {each.seed}: p = {each.p_value:.2g}, {p:.2g} corrected"
        for each, p in zip(found, corrected, strict=True)
        if p <= LEAST_P
    ]
    assert not failed, "\n".join(["the law is not the target's:", *failed])


PLAIN = SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.02)
CASES = {
    "no draft": Case(PLAIN, 0),
    "drawn": Case(PLAIN, 3),
    "drawn, one at a time": Case(PLAIN, 1),
    "drawn, filtered": Case(FILTERED, 3),
    "looked up": Case(PLAIN, 2, is_drawn=False),
    "looked up, filtered": Case(FILTERED, 2, is_drawn=False),
    "seeded": Case(PLAIN, 3, is_exact=True),
    "seeded, filtered": Case(FILTERED, 2, is_exact=True),
    "seeded, looked up": Case(PLAIN, 2, is_drawn=False, is_exact=True),
}


def _uncorrected(
    draft: Tensor, lengths: Tensor, offered: Tensor | None, target: Tensor, noise: Noise
) -> Acceptance:
    """Draws from the target's whole law after a rejected draft token."""
    accepted = verify(draft, lengths, offered, target, noise).accepted
    return Acceptance(accepted, _drawn_at(accepted, accepted, target, noise))


def _early_bonus(
    draft: Tensor, lengths: Tensor, offered: Tensor | None, target: Tensor, noise: Noise
) -> Acceptance:
    """Draws the bonus token from the law of the place before it."""
    verdict, most = verify(draft, lengths, offered, target, noise), draft.shape[1]
    bonus = _drawn_at(verdict.accepted.clamp(max=most - 1), verdict.accepted, target, noise)
    is_whole = verdict.accepted == most
    return verdict._replace(following=torch.where(is_whole, bonus, verdict.following))


def _drawn_at(places: Tensor, accepted: Tensor, target: Tensor, noise: Noise) -> Tensor:
    law = target[torch.arange(len(target)), places]
    return draw(law, uniforms(noise.seeds, noise.positions + accepted, Purpose.FOLLOWING))


WRONG: dict[str, Verify] = {"no correction": _uncorrected, "off-by-one bonus": _early_bonus}
UNFILTERED = Case(FILTERED, 3, told=PLAIN)


def family(draws: int, seeds: Iterable[int]) -> list[Examined]:
    """All cases' tests, one family. 200,000 draws and 20 seeds are 1,260 tests."""
    seeds = list(seeds)
    target_logits, _ = models()
    return [
        each._replace(what=f"{name}: {each.what}")
        for name, case in CASES.items()
        for each in examined(table_decoder(case, draws), laws(target_logits, case.params), seeds)
    ]
