"""The law of each row, filter by filter, and what is drawn from it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.sample import (
    Noise,
    Past,
    Purpose,
    SamplingParams,
    adjusted,
    distribution,
    draw,
    gumbel_choice,
    logprobs,
    sample,
    uniforms,
)
from support.catching import assert_caught
from support.sampling_law import p_value

NOTHING = Past((), ())
ALMOST_ONE = 1 - 2.0**-53


def law_of(logits: Any, past: Past = NOTHING, **params: Any) -> Any:
    """The law of one row as a list."""
    row = torch.as_tensor(logits, dtype=torch.float32)[None]
    return distribution(row, [SamplingParams(**params)], [past])[0].tolist()


def logs(*law: float) -> list[float]:
    return [math.log(each) for each in law]


FOUR = (0.4, 0.3, 0.2, 0.1)


@pytest.mark.parametrize(
    ("params", "law"),
    [
        ({}, FOUR),
        ({"temperature": 0.0}, (1.0, 0.0, 0.0, 0.0)),
        ({"temperature": 0.5}, (16 / 30, 9 / 30, 4 / 30, 1 / 30)),
        ({"temperature": 1e-5}, (1.0, 0.0, 0.0, 0.0)),
        ({"top_k": 2}, (4 / 7, 3 / 7, 0.0, 0.0)),
        ({"top_k": -1}, FOUR),
        ({"top_k": 9}, FOUR),
        ({"top_p": 0.0}, (1.0, 0.0, 0.0, 0.0)),
        ({"top_p": 0.35}, (1.0, 0.0, 0.0, 0.0)),
        ({"top_p": 0.45}, (4 / 7, 3 / 7, 0.0, 0.0)),
        ({"top_p": 0.95}, FOUR),
        ({"min_p": 0.6}, (4 / 7, 3 / 7, 0.0, 0.0)),
        ({"min_p": 1.0}, (1.0, 0.0, 0.0, 0.0)),
        # Top-p looks at what top-k left: 4/7 is below 0.6, and 0.4 + 0.3 of all would be above.
        ({"top_k": 2, "top_p": 0.6}, (4 / 7, 3 / 7, 0.0, 0.0)),
        ({"top_k": 3, "top_p": 0.5}, (4 / 7, 3 / 7, 0.0, 0.0)),
        ({"top_k": 3, "top_p": 0.44}, (1.0, 0.0, 0.0, 0.0)),
        ({"temperature": 0.5, "top_p": 0.5}, (1.0, 0.0, 0.0, 0.0)),
        ({"top_k": 3, "min_p": 0.6}, (4 / 7, 3 / 7, 0.0, 0.0)),
    ],
)
def test_a_law_is_tempered_then_filtered(params: dict[str, Any], law: tuple[float, ...]) -> None:
    assert law_of(logs(*FOUR), **params) == pytest.approx(law, abs=1e-6)


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.6}])
def test_tokens_as_likely_as_the_last_one_kept_stay(params: dict[str, Any]) -> None:
    for order in itertools.permutations((2.0, 1.5, 1.5, -3.0)):
        law = law_of(order, **params)
        assert [each > 0 for each in law] == [each > 0 for each in order]


def reference(logits: list[float], params: SamplingParams) -> tuple[list[float], float]:
    """The law by the filters' definitions, and how near a filter came to the other answer."""
    top = max(logits)
    law = [math.exp((each - top) / params.temperature) for each in logits]
    law = [each / sum(law) for each in law]
    order = sorted(range(len(law)), key=lambda token: -law[token])
    margin = 1.0
    if 0 < params.top_k < len(law):
        keep = order[: params.top_k]
        margin = min(margin, law[order[params.top_k - 1]] - law[order[params.top_k]])
        law = [each if token in keep else 0.0 for token, each in enumerate(law)]
        law = [each / sum(law) for each in law]
    reached, keep = 0.0, []
    for token in order:
        margin = min(margin, abs(reached - params.top_p)) if params.top_p < 1 else margin
        if reached >= params.top_p and params.top_p < 1:
            break
        keep.append(token)
        reached += law[token]
    law = [each if token in keep else 0.0 for token, each in enumerate(law)]
    law = [each / sum(law) for each in law]
    least = params.min_p * max(law)
    margin = min(margin, *(abs(each - least) for each in law)) if params.min_p > 0 else margin
    law = [each if each >= least else 0.0 for each in law]
    return [each / sum(law) for each in law], margin


def test_filters_together_are_what_their_definitions_say() -> None:
    chance = random.Random(4)
    compared = 0
    for _ in range(400):
        logits = [chance.gauss(0, 2) for _ in range(chance.randint(2, 40))]
        params = SamplingParams(
            temperature=chance.choice([0.3, 1.0, 1.7]),
            top_k=chance.choice([0, 1, 3, 10, 100]),
            top_p=chance.choice([1.0, 0.95, 0.5, 0.1]),
            min_p=chance.choice([0.0, 0.05, 0.5]),
        )
        expected, margin = reference(logits, params)
        if margin < 1e-5:
            continue
        compared += 1
        row = torch.tensor([logits])
        assert distribution(row, [params], [NOTHING])[0].tolist() == pytest.approx(
            expected, abs=1e-5
        )
    assert compared > 350


def test_the_law_is_that_of_transformers() -> None:
    generation = pytest.importorskip(
        "transformers.generation", reason="transformers, of the extra `engine`, is not installed"
    )
    logits = 3 * torch.randn(20, 3000, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(0, 3000, (20, 50), generator=torch.Generator().manual_seed(2))
    params = SamplingParams(
        temperature=0.8, top_k=200, top_p=0.9, min_p=0.01, repetition_penalty=1.3
    )
    scores = logits
    for processor in (
        generation.RepetitionPenaltyLogitsProcessor(1.3),
        generation.TemperatureLogitsWarper(0.8),
        generation.TopKLogitsWarper(200),
        generation.TopPLogitsWarper(0.9),
        generation.MinPLogitsWarper(0.01),
    ):
        scores = processor(tokens, scores)
    pasts = [Past(row[:20].tolist(), row[20:40].tolist(), row[40:].tolist()) for row in tokens]
    found = distribution(logits, [params] * 20, pasts)
    torch.testing.assert_close(found, scores.softmax(-1), atol=1e-6, rtol=1e-4)


def test_a_nucleus_of_thousands_is_found_whole() -> None:
    logits = torch.linspace(0, 1, 5000)
    law = torch.tensor(law_of(logits, top_p=0.9))
    plain = logits.softmax(-1)
    kept = plain[law > 0]
    assert len(kept) > 4000
    assert 0.9 <= float(kept.sum()) < 0.9 + 2 * float(kept.min())
    assert float(kept.min()) > float(plain[law == 0].max())


@pytest.mark.parametrize(
    ("params", "logits"),
    [
        ({"logit_bias": {1: 100.0, 3: -7.5}}, [2.0, 99.0, 0.5, -7.5]),
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 0.25, 0.0]),
        ({"presence_penalty": 0.5}, [2.0, -1.5, 0.0, 0.0]),
        ({"frequency_penalty": 0.5}, [2.0, -2.5, -0.0, 0.0]),
        ({"frequency_penalty": -1.0, "presence_penalty": 2.0}, [2.0, 0.0, -0.5, 0.0]),
        # The bias first, then the repetition penalty, then what is counted.
        (
            {"logit_bias": {2: 1.5}, "repetition_penalty": 2.0, "presence_penalty": 1.0},
            [1.0, -3.0, 0.0, 0.0],
        ),
    ],
)
def test_biases_and_penalties_follow_their_formulas(
    params: dict[str, Any], logits: list[float]
) -> None:
    # Token 0 is in the prompt, 1 three times in the answer and its drafts, 2 once.
    past = Past([0, 0], [1, 2, 1], [1])
    given = torch.tensor([[2.0, -1.0, 0.5, 0.0]] * 2)
    asked = [SamplingParams(**params), SamplingParams()]
    found = adjusted(given, asked, [past, past])
    assert found[0].tolist() == pytest.approx(logits)
    assert found[1].tolist() == given[0].tolist() == given[1].tolist()


def test_logits_that_nobody_adjusts_are_not_copied() -> None:
    logits = torch.zeros(2, 4, dtype=torch.bfloat16)
    assert adjusted(logits, [SamplingParams()] * 2, [NOTHING] * 2) is logits


MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(temperature=1.5, top_p=0.8),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.1, presence_penalty=1.0),
    SamplingParams(temperature=0.0, logit_bias={3: 50.0}),
    SamplingParams(top_k=5, top_p=0.5, min_p=0.2, repetition_penalty=1.5),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_the_others(dtype: str) -> None:
    chance = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(8, 3000, generator=chance)).to(getattr(torch, dtype))
    kept = logits.clone()
    pasts = [Past([1, 2], [3, 4, row]) for row in range(8)]
    together = distribution(logits, MIXED, pasts)
    assert together.dtype == torch.float32
    assert torch.equal(logits, kept)
    assert together.sum(-1).tolist() == pytest.approx([1.0] * 8, abs=1e-5)
    for row in range(8):
        alone = distribution(logits[row : row + 1], MIXED[row : row + 1], pasts[row : row + 1])
        assert torch.equal(alone[0], together[row])
    assert together[1].argmax() == logits[1].float().argmax()
    assert together[6].argmax() == 3


def test_tokens_that_are_ruled_out_have_no_probability() -> None:
    law = law_of([-math.inf, 1.0, -math.inf, 1.0], temperature=1e-5, top_p=0.9)
    assert law == [0.0, 0.5, 0.0, 0.5]


def levels(*values: float) -> Any:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("level", "token"),
    [(0.0, 1), (0.2499, 1), (0.25, 3), (0.4999, 3), (0.5, 4), (ALMOST_ONE, 4)],
)
def test_a_level_picks_the_token_above_it(level: float, token: int) -> None:
    law = torch.tensor([[0.0, 0.25, 0.0, 0.25, 0.5, 0.0]])
    assert draw(law, levels(level)).tolist() == [token]


def check_draws(drawn: Callable[[Any, Any], Any]) -> None:
    """Laws that sum to a little more or less than 1, with tokens of probability 0 all over."""
    chance = torch.Generator().manual_seed(5)
    law = torch.rand(500, 50, generator=chance) * (torch.rand(500, 50, generator=chance) < 0.3)
    law[:, 7] += 1e-9
    law = law / law.sum(-1, keepdim=True)
    law = law * torch.linspace(1 - 1e-6, 1 + 1e-6, 500)[:, None]
    for level in (0.0, 1e-17, 0.5, 0.9999999, ALMOST_ONE):
        tokens = drawn(law, torch.full((500,), level, dtype=torch.float64))
        assert bool((tokens < 50).all())
        assert bool((law.gather(1, tokens[:, None]) > 0).all())


def test_a_token_of_probability_0_is_never_drawn() -> None:
    def of_an_open_interval(law: Any, levels: Any) -> Any:
        sums = law.double().cumsum(-1)
        return torch.searchsorted(sums, (levels * sums[:, -1])[:, None])[:, 0]

    assert_caught(check_draws, draw, of_an_open_interval)


def test_large_laws_are_drawn_from_by_their_probabilities() -> None:
    law = (2 * torch.randn(500, generator=torch.Generator().manual_seed(6))).softmax(-1)
    numbers = uniforms(torch.arange(20_000), torch.tensor(0), Purpose.FOLLOWING)
    tokens = draw(law.expand(20_000, -1), numbers)
    assert p_value(tokens, law.to(torch.float64)) > 0.001


@pytest.mark.parametrize("zeros", [0, 6])
def test_gumbel_choices_follow_the_law(zeros: int) -> None:
    law = (1.5 * torch.randn(1, 8, generator=torch.Generator().manual_seed(8))).softmax(-1)
    law[0, 1 : 1 + zeros] = 0.0
    law = law / law.sum()
    seeds, positions = torch.arange(200).repeat_interleave(100), torch.arange(100).repeat(200)
    tokens = gumbel_choice(law.expand(20_000, -1), seeds, positions)
    assert p_value(tokens, law[0].to(torch.float64)) > 0.001


def test_choices_are_the_same_whether_the_law_is_sparse_or_not() -> None:
    chance = torch.Generator().manual_seed(9)
    law = torch.zeros(40, 64).scatter_(
        1, torch.rand(40, 64, generator=chance).argsort(-1)[:, :6], 1.0
    )
    law = law * torch.rand(40, 64, generator=chance)
    seeds, positions = torch.arange(40), torch.arange(40) * 3
    sparse = gumbel_choice(law, seeds, positions)
    for row in range(40):
        kept = law[row] > 0
        tokens = kept.nonzero()[:, 0]
        # The other tokens get too little to be chosen, and make the law dense.
        dense = torch.where(kept, law[row], 1e-30)
        at = slice(row, row + 1)
        assert gumbel_choice(dense[None], seeds[at], positions[at]) == sparse[row]
        assert sparse[row] in tokens


def test_two_laws_choose_alike_as_often_as_can_be_promised() -> None:
    chance = torch.Generator().manual_seed(10)
    count = 20_000
    for distance in (0.1, 0.5, 1.5):
        logits = torch.randn(1, 32, generator=chance)
        first = logits.softmax(-1)
        second = (logits + distance * torch.randn(1, 32, generator=chance)).softmax(-1)
        apart = float((first - second).abs().sum()) / 2
        seeds, position = torch.arange(count), torch.zeros(count, dtype=torch.int64)
        alike = (
            gumbel_choice(first.expand(count, -1), seeds, position)
            == gumbel_choice(second.expand(count, -1), seeds, position)
        ).double()
        assert float(alike.mean()) > (1 - apart) / (1 + apart) - 0.02
        assert float(alike.mean()) < 1 - apart + 0.02


def test_seeded_rows_do_not_depend_on_the_others_nor_on_the_purpose() -> None:
    chance = torch.Generator().manual_seed(11)
    law = torch.randn(30, 100, generator=chance).softmax(-1)
    is_exact = torch.arange(30) % 3 == 0
    noise = Noise(torch.arange(30) * 17, torch.arange(30) + 5, is_exact)
    following = sample(law, noise)
    drafted = sample(law, noise, Purpose.DRAFT)
    assert torch.equal(following[is_exact], drafted[is_exact])
    assert not torch.equal(following[~is_exact], drafted[~is_exact])
    order = torch.randperm(30, generator=chance)
    mixed = sample(law[order], Noise(*(each[order] for each in noise)))
    assert torch.equal(mixed, following[order])


def test_logarithms_are_of_the_models_own_law() -> None:
    logits = torch.tensor([logs(*FOUR), logs(*reversed(FOUR))])
    found = logprobs(logits.to(torch.float64), torch.tensor([2, 2]), 3)
    assert found.chosen.exp().tolist() == pytest.approx([0.2, 0.3])
    assert found.top.exp().flatten().tolist() == pytest.approx([0.4, 0.3, 0.2] * 2)
    assert found.top_tokens.tolist() == [[0, 1, 2], [3, 2, 1]]
    assert logprobs(logits, torch.tensor([0, 0]), 0).top.shape == (2, 0)
