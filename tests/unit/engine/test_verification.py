"""Speculative sampling: the rules row by row, and the law of what comes out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.draft import Acceptance, verify, verify_choices
from redline.engine.sample import Noise, Purpose, draw, gumbel_choice, uniforms
from support.catching import assert_caught
from support.sampling_law import (
    CASES,
    UNFILTERED,
    WRONG,
    Case,
    Verify,
    assert_follows,
    examined,
    family,
    holm,
    laws,
    models,
    p_value,
    table_decoder,
)

DRAWS = 20_000


def noise_of(count: int, seed: int = 0, *, is_exact: bool = False) -> Noise:
    seeds = torch.arange(count) + (seed << 32)
    return Noise(seeds, torch.arange(count) % 7, torch.full((count,), is_exact))


def random_laws(chance: random.Random, *shape: int) -> Any:
    """Laws with many a zero in them."""
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    law = torch.rand(*shape, generator=generator)
    law = law * (torch.rand(*shape, generator=generator) < 0.6)
    law[..., 0] += 0.01
    return law / law.sum(-1, keepdim=True)


def by_the_book(
    draft: list[int], length: int, offered: Any, wanted: Any, noise: tuple[int, int]
) -> tuple[int, int]:
    """Algorithm 1 of Leviathan et al. for one row, one token after the other."""
    seed, position = (torch.tensor([each]) for each in noise)
    for place in range(length):
        token = draft[place]
        level = float(uniforms(seed, position + place, Purpose.ACCEPT))
        q = 1.0 if offered is None else float(offered[place, token])
        if level < min(1.0, float(wanted[place, token]) / q):
            continue
        if offered is None:
            taken = torch.zeros(wanted.shape[-1])
            taken[token] = 1.0
        else:
            taken = offered[place]
        rest = (wanted[place] - taken).clamp(min=0)
        law = rest / rest.sum() if float(rest.sum()) > 0 else wanted[place]
        level = uniforms(seed, position + place, Purpose.FOLLOWING)
        return place, int(draw(law[None], level))
    level = uniforms(seed, position + length, Purpose.FOLLOWING)
    return length, int(draw(wanted[length][None], level))


@pytest.mark.parametrize("is_drawn", [True, False])
def test_each_row_is_judged_by_the_book(is_drawn: bool) -> None:
    chance = random.Random(1)
    seen = set()
    for trial in range(20):
        rows, most, tokens = chance.randint(1, 9), chance.randint(0, 5), chance.randint(2, 12)
        target = random_laws(chance, rows, most + 1, tokens)
        offered = random_laws(chance, rows, most, tokens) if is_drawn else None
        if is_drawn:
            draft = offered.argmax(-1)
        else:
            draft = target[:, :most].argmax(-1) if trial % 2 else target[:, :most].argmin(-1)
        lengths = torch.tensor([chance.randint(0, most) for _ in range(rows)])
        noise = noise_of(rows, seed=trial)
        verdict = verify(draft, lengths, offered, target, noise)
        for row in range(rows):
            length = int(lengths[row])
            expected = by_the_book(
                draft[row].tolist(),
                length,
                None if offered is None else offered[row],
                target[row],
                (int(noise.seeds[row]), int(noise.positions[row])),
            )
            assert (int(verdict.accepted[row]), int(verdict.following[row])) == expected
            seen.add((expected[0] == length, length == 0))
    assert seen == {(True, True), (True, False), (False, False)}


def test_a_draft_of_nothing_is_plain_sampling() -> None:
    target = random_laws(random.Random(2), 50, 1, 9)
    noise = noise_of(50)
    nothing = torch.zeros(50, 0, dtype=torch.int64)
    for offered in (None, torch.zeros(50, 0, 9)):
        verdict = verify(nothing, torch.zeros(50, dtype=torch.int64), offered, target, noise)
        level = uniforms(noise.seeds, noise.positions, Purpose.FOLLOWING)
        assert verdict.accepted.tolist() == [0] * 50
        assert torch.equal(verdict.following, draw(target[:, 0], level))


def test_what_stands_behind_a_rows_draft_does_not_count() -> None:
    chance = random.Random(3)
    target, offered = random_laws(chance, 60, 4, 6), random_laws(chance, 60, 3, 6)
    lengths = torch.arange(60) % 4
    draft = offered.argmax(-1)
    padded = torch.arange(3) >= lengths[:, None]
    verdict = verify(draft, lengths, offered, target, noise_of(60))
    for is_exact in (False, True):
        noise = noise_of(60, is_exact=is_exact)
        verdict = verify(draft, lengths, offered, target, noise)
        other = verify(draft.masked_fill(padded, 5), lengths, offered, target, noise)
        assert torch.equal(verdict.accepted, other.accepted)
        assert torch.equal(verdict.following, other.following)
        assert bool((verdict.accepted <= lengths).all())


def test_where_rounding_leaves_no_difference_the_target_itself_is_drawn_from() -> None:
    law = torch.tensor([0.5, 0.0, 0.3, 0.2])
    target = law.expand(DRAWS, 2, -1)
    # Twice the target's law is nobody's, but it rejects half and leaves nothing of p - q.
    offered = 2 * law.expand(DRAWS, 1, -1)
    draft = torch.full((DRAWS, 1), 2)
    lengths = torch.ones(DRAWS, dtype=torch.int64)
    verdict = verify(draft, lengths, offered, target, noise_of(DRAWS))
    rejected = verdict.following[verdict.accepted == 0]
    assert 0.45 < len(rejected) / DRAWS < 0.55
    assert p_value(rejected, law.to(torch.float64)) > 0.001


def test_as_many_drafts_stay_as_the_laws_overlap() -> None:
    chance = random.Random(5)
    target, offered = random_laws(chance, 1, 2, 12), random_laws(chance, 1, 1, 12)
    overlap = float(torch.minimum(target[0, 0], offered[0, 0]).sum())
    noise = noise_of(DRAWS)
    level = uniforms(noise.seeds, noise.positions, Purpose.DRAFT)
    draft = draw(offered[:, 0].expand(DRAWS, -1), level)[:, None]
    shape = (DRAWS, -1, -1)
    lengths = torch.ones(DRAWS, dtype=torch.int64)
    verdict = verify(draft, lengths, offered.expand(shape), target.expand(shape), noise)
    share = float(verdict.accepted.double().mean())
    assert share == pytest.approx(overlap, abs=4 * 0.5 / DRAWS**0.5)


def test_greedy_rows_keep_a_draft_while_it_is_the_targets_choice() -> None:
    choices = torch.tensor([[4, 5, 6, 7]] * 4)
    draft = torch.tensor([[4, 5, 6], [4, 9, 6], [9, 5, 6], [4, 5, 6]])
    lengths = torch.tensor([3, 3, 3, 1])
    expected = ([3, 1, 0, 1], [7, 5, 4, 5])
    found = verify_choices(draft, lengths, choices)
    assert tuple(each.tolist() for each in found) == expected
    # The same from one-hot laws, by the law and by exact choices.
    target = torch.nn.functional.one_hot(choices, 10).float()
    offered = torch.nn.functional.one_hot(draft, 10).float()
    for is_exact in (False, True):
        for told in (offered, None):
            verdict = verify(draft, lengths, told, target, noise_of(4, is_exact=is_exact))
            assert tuple(each.tolist() for each in verdict) == expected


def test_seeded_rows_are_judged_beside_others_as_alone() -> None:
    chance = random.Random(6)
    target, offered = random_laws(chance, 40, 4, 8), random_laws(chance, 40, 3, 8)
    draft, lengths = offered.argmax(-1), torch.arange(40) % 4
    is_exact = torch.arange(40) % 3 == 1
    noise = noise_of(40)._replace(is_exact=is_exact)
    verdict = verify(draft, lengths, offered, target, noise)
    for exact in (False, True):
        rows = (is_exact == exact).nonzero()[:, 0]
        alone = verify(
            draft[rows],
            lengths[rows],
            offered[rows],
            target[rows],
            Noise(*(each[rows] for each in noise)),
        )
        assert torch.equal(alone.accepted, verdict.accepted[rows])
        assert torch.equal(alone.following, verdict.following[rows])


@pytest.mark.parametrize("name", ["seeded", "seeded, filtered", "seeded, looked up"])
def test_a_seed_gives_the_same_tokens_whatever_is_drafted(name: str) -> None:
    case = CASES[name]
    alone = table_decoder(replace(case, most=0), 300)(3)
    target = laws(models()[0], case.params)
    # Without any drafts a token is the target's choice at its place, of the whole sequence.
    row, before = torch.arange(300) + (3 << 32), torch.zeros(300, dtype=torch.int64)
    for place in range(alone.shape[1]):
        before = gumbel_choice(target[before], row, torch.full((300,), place))
        assert torch.equal(alone[:, place], before)
    for most in range(1, 7):
        assert torch.equal(table_decoder(replace(case, most=most), 300)(3), alone)
    drawn = replace(case, most=3, is_drawn=not case.is_drawn)
    assert torch.equal(table_decoder(drawn, 300)(3), alone)


def test_seeded_drafts_stay_more_often_for_sharing_noise() -> None:
    # With noise of their own they would stay where two draws happen to be alike.
    target, drafter = (laws(each, CASES["seeded"].params)[0] for each in models())
    noise = noise_of(DRAWS, is_exact=True)
    shape = (DRAWS, -1)
    draft = gumbel_choice(drafter.expand(shape), noise.seeds, noise.positions)
    alike = gumbel_choice(target.expand(shape), noise.seeds, noise.positions) == draft
    assert float(alike.double().mean()) > 1.3 * float((target * drafter).sum())


def test_the_output_follows_the_targets_law() -> None:
    assert_follows(family(DRAWS, seeds=[1]))


def check_law(case: Case, draws: int = DRAWS) -> Any:
    """A check of a verifier."""

    def check(verifier: Verify) -> None:
        target = laws(models()[0], case.params)
        assert_follows(examined(table_decoder(case, draws, verifier), target, [1]))

    return check


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        ("no correction", "drawn"),
        ("no correction", "looked up"),
        ("no correction", "drawn, filtered"),
        ("off-by-one bonus", "drawn"),
        ("off-by-one bonus", "drawn, one at a time"),
        ("off-by-one bonus", "looked up"),
    ],
)
def test_wrong_variants_are_caught(wrong: str, case: str) -> None:
    assert_caught(check_law(CASES[case]), verify, WRONG[wrong])


def test_drafts_verified_with_a_law_they_were_not_drawn_from_are_caught() -> None:
    target = laws(models()[0], UNFILTERED.params)

    def check(case: Case) -> None:
        assert_follows(examined(table_decoder(case, DRAWS), target, [1]))

    assert_caught(check, replace(UNFILTERED, told=None), UNFILTERED)


def test_a_seeded_row_that_repeats_its_last_draft_token_is_caught() -> None:
    def repeating(draft: Any, *given: Any) -> Acceptance:
        accepted, following = verify(draft, *given)
        last = draft.gather(1, (accepted - 1).clamp(min=0)[:, None])[:, 0]
        return Acceptance(accepted, torch.where(accepted > 0, last, following))

    assert_caught(check_law(CASES["seeded"], 3000), verify, repeating)


def test_the_chi_square_is_fair_and_sees_small_faults() -> None:
    chance = torch.Generator().manual_seed(12)
    law = torch.rand(10, generator=chance).softmax(-1).double()
    found = [
        p_value(torch.multinomial(law, 2000, replacement=True, generator=chance), law)
        for _ in range(400)
    ]
    # p-values of true laws are uniform: their mean is 0.5 with a deviation of 0.0144.
    assert sum(found) / 400 == pytest.approx(0.5, abs=0.06)
    assert sum(each < 0.05 for each in found) < 40
    skewed = law.clone()
    skewed[0] *= 1.1
    wrong = torch.multinomial(skewed, 200_000, replacement=True, generator=chance)
    assert p_value(wrong, law) < 1e-6
    assert p_value(torch.tensor([0, 1, 2]), torch.tensor([0.5, 0.5, 0.0]).double()) == 0.0


def test_holm_multiplies_the_least_by_all_and_keeps_the_order() -> None:
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
