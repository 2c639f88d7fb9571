"""A seed's tokens are the same whatever runs beside it; without one no two runs are alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.draft import (
    Judged,
    noise_of,
    verify,
)
from redline.engine.draft import acceptance as judge_module
from redline.engine.draft import proposers as draft_module
from redline.engine.sample import (
    Noise,
    Past,
    SamplingParams,
)
from redline.engine.schedule import Sequence as Sequence_
from redline.engine.step import Ask, Core
from support import decoder_law
from support.decoder_law import PAIRS, Case
from support.engine_driver import Heard, Setting, loaded, make_core
from support.engine_models import near_draft, random_model, random_prompts

NEW = 10
HOT = SamplingParams(temperature=2.0, ignore_eos=True)
# Each of these twice, with prompts that begin alike: seeds, filters, penalties and biases.
KINDS = [
    SamplingParams(temperature=1.5, seed=1),
    SamplingParams(temperature=2.0, top_k=40, seed=2**63 + 5),
    SamplingParams(temperature=2.0, top_p=0.8, min_p=0.01, seed=-7),
    SamplingParams(temperature=1.0, frequency_penalty=1.5, presence_penalty=0.5, seed=3),
    SamplingParams(temperature=1.5, repetition_penalty=1.3, logit_bias={3: 2.0, 2: -9.0}, seed=3),
    SamplingParams(
        temperature=2.0, top_k=30, top_p=0.95, repetition_penalty=1.1, logprobs=1, seed=1
    ),
]


def asks_of(prompts: Sequence[Sequence[int]]) -> list[Ask]:
    """What is asked with a seed; the asker is put in where it runs."""
    return [
        Ask(list(prompt), params, len(prompt) + NEW, Heard(), choice=choice)
        for choice, prompt in enumerate(prompts)
        for params in KINDS
    ]


def answers(core: Core, asks: Sequence[Ask], company: int = 0, order: int = 0) -> list[list[int]]:
    """What each says, when they join in some order with others between them."""
    draws = random.Random(order)
    askers = [Heard() for _ in asks]
    joining = [ask._replace(asker=asker) for ask, asker in zip(asks, askers, strict=True)]
    for _ in range(company):
        asked = draws.choice(asks)
        cut = draws.randint(1, len(asked.prompt))
        other = asked._replace(prompt=asked.prompt[:cut], params=HOT, asker=Heard())
        joining.append(other._replace(priority=draws.choice([-1, 0, 1])))
    if order:
        draws.shuffle(joining)
    while joining or not core.scheduler.is_idle:
        for _ in range(draws.choice([0, 1, 2, 5])):
            if joining:
                core.add(joining.pop(), 0.0)
        core.step()
    return [asker.tokens for asker in askers]


SETTINGS = [
    Setting(slots=3, step_tokens=7),
    Setting(slots=24, step_tokens=512, reuses_prefixes=False),
    Setting(slots=6, cache_tokens=120, steps_at_once=2),
    Setting(slots=1, drafts=6, draft="model"),
    Setting(slots=8, drafts=2, draft="model", cache_tokens=150),
    Setting(slots=5, drafts=4, draft="lookup", step_tokens=24),
]


@pytest.mark.slow
def test_a_real_model_says_the_same_whatever_runs_beside(models_folder: Path) -> None:
    folder = random_model("llama-mha-tied", models_folder)
    model, draft = loaded(folder), loaded(near_draft("llama-mha-tied", models_folder))
    shared, *ends = random_prompts(3, 12, 20, seed=4)
    asks = asks_of([shared + end[:5] for end in ends])
    alone = [answers(make_core(model, Setting(slots=1)), [ask])[0] for ask in asks]
    assert len({tuple(tokens) for tokens in alone}) == len(asks)
    for order, setting in enumerate(SETTINGS, 1):
        core = make_core(model, setting, draft)
        assert answers(core, asks, company=3, order=order) == alone, setting
        assert (core.scheduler.preemptions > 0) == (setting.cache_tokens < 1000)
        if setting.draft == "model":
            assert core.figures.accepted_tokens > 0


ALONE = Case(HOT, None, slots=1)
CASES = [
    Case(HOT, None, slots=24),
    Case(HOT, "lookup", drafts=1, slots=3, steps_at_once=3),
    Case(HOT, "lookup", drafts=6, slots=9, cache_tokens=150),
    *(Case(HOT, "model", drafts=drafts, slots=2 * drafts) for drafts in (1, 3, 6)),
    Case(HOT, "model", drafts=4, slots=8, step_tokens=10, cache_tokens=150),
]


@cache
def asked_alone() -> tuple[list[Ask], list[list[int]]]:
    """What is asked of the tables, and what each says alone."""
    asks = asks_of([PAIRS, PAIRS[:9]])
    # Tables of six tokens have no more to bias or to leave out.
    asks = [ask._replace(params=fitted(ask.params)) for ask in asks]
    return asks, [answers(decoder_law.make_core(ALONE), [ask])[0] for ask in asks]


def check_tables() -> None:
    asks, alone = asked_alone()
    for order, case in enumerate(CASES, 1):
        core = decoder_law.make_core(case)
        assert answers(core, asks, company=12, order=order) == alone, case


def fitted(params: SamplingParams) -> SamplingParams:
    changed = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**changed | {"top_k": min(params.top_k, 4)})


@pytest.mark.slow
def test_tables_say_the_same_through_every_drafter() -> None:
    check_tables()


def seeds_by_slot(sequences: list[Sequence_], device: torch.device, ahead: int = 0) -> Noise:
    noise = noise_of(sequences, device, ahead)
    return noise._replace(seeds=noise.seeds + torch.tensor([one.slot for one in sequences]))


def seeds_ignored(sequences: list[Sequence_], device: torch.device, ahead: int = 0) -> Noise:
    noise = noise_of(sequences, device, ahead)
    return noise._replace(is_exact=torch.zeros_like(noise.is_exact))


def past_without_drafts(prompt: Any, answer: Any, drafted: Any = ()) -> Past:
    return Past(prompt, answer)


def verified_at_one_place(draft: Any, lengths: Any, offered: Any, law: Any, noise: Noise) -> Judged:
    return verify(draft, lengths, offered, law, noise._replace(positions=noise.positions * 0))


@pytest.mark.parametrize(
    ("name", "fake"),
    [
        ("Past", past_without_drafts),
        ("verify", verified_at_one_place),
        ("noise_of", seeds_by_slot),
        ("noise_of", seeds_ignored),
    ],
)
def test_seeds_that_depend_on_what_runs_beside_are_caught(
    name: str, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_alone()
    monkeypatch.setattr(judge_module, name, fake)
    if name == "noise_of":
        monkeypatch.setattr(draft_module, name, fake)
    with pytest.raises(AssertionError):
        check_tables()


def test_the_choices_of_one_request_differ_and_are_the_same_each_time() -> None:
    params = replace_seed(11)
    asks = [Ask([0, 1], params, 2 + NEW, Heard(), choice=choice) for choice in range(20)]
    case = Case(HOT, "model", slots=5)
    said = answers(decoder_law.make_core(case), asks)
    assert len({tuple(tokens) for tokens in said}) == 20
    assert answers(decoder_law.make_core(ALONE), asks, order=3) == said
    # The second choice of a seed is not the first of the next one.
    other = [ask._replace(params=replace_seed(12)) for ask in asks]
    both = {tuple(tokens) for tokens in [*said, *answers(decoder_law.make_core(case), other)]}
    assert len(both) == 40


def replace_seed(seed: int | None) -> SamplingParams:
    return SamplingParams(temperature=2.0, seed=seed)


def test_without_a_seed_runs_differ() -> None:
    asks = [Ask([0, 1], replace_seed(None), 2 + NEW, Heard()) for _ in range(10)]
    for case in (ALONE, Case(HOT, "model"), Case(HOT, "lookup")):
        runs = [answers(decoder_law.make_core(case), asks) for _ in range(2)]
        assert len({tuple(tokens) for said in runs for tokens in said}) == 20
