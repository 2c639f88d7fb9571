"""What the whole decoder says follows the target's law; wrong variants do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.sample import (
    Past,
    SamplingParams,
    distribution,
)
from redline.engine.step import Ask
from support.decoder_law import CASES, LENGTH, PAIRS, WRONG, Case, examined, said, wrong
from support.engine_driver import Heard, Setting, loaded, make_core
from support.engine_models import load, near_draft, random_model, random_prompts
from support.sampling_law import Examined, assert_follows, p_value

# A draw is a token. In some cases all of them, in the others enough to see that they run.
DRAWS = 8_000
FEWER = 1_000
WHOLE = ("model, filtered", "lookup")


@pytest.mark.slow
def test_what_is_said_follows_the_targets_law() -> None:
    found: list[Examined] = []
    for name, case in CASES.items():
        draws = DRAWS if name in WHOLE else FEWER
        found += [
            each._replace(what=f"{name}: {each.what}")
            for each in examined(case, draws // LENGTH, [1])
        ]
    assert_follows(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_decoders_are_caught(name: str) -> None:
    found = examined(CASES[WRONG[name]], FEWER, [1], wrong(name))
    with pytest.raises(AssertionError, match="not the target's"):
        assert_follows(found)


def test_a_seed_says_the_same_through_every_drafter() -> None:
    params = SamplingParams(temperature=0.8, top_k=5)
    alone = Case(params, None, is_seeded=True, prompt=PAIRS)
    for draft in ("model", "lookup"):
        drafted = replace(alone, draft=draft, drafts=4, slots=7, step_tokens=20)
        assert torch.equal(said(alone, 100, 3), said(drafted, 100, 3))


@torch.inference_mode()
def test_a_real_model_says_what_follows_its_law(models_folder: Path) -> None:
    """A token and the one after it, of a model with attention and a draft that is like it."""
    params = SamplingParams(temperature=2.0, top_k=6, ignore_eos=True)
    prompt, draws = random_prompts(1, 20, 20, seed=11)[0], 400
    folder = random_model("llama", models_folder)
    whole = load(folder)

    def law(*tokens: int) -> Any:
        logits = whole(torch.tensor([prompt + list(tokens)])).logits[0, -1:]
        return distribution(logits, [params], [Past((), ())])[0].to(torch.float64)

    first = law()
    both = torch.zeros(len(first), len(first), dtype=torch.float64)
    for token in first.nonzero()[:, 0].tolist():
        both[token] = first[token] * law(token)

    setting = Setting(slots=24, step_tokens=512, drafts=2, draft="model")
    core = make_core(loaded(folder), setting, loaded(near_draft("llama", models_folder)))
    askers = [Heard() for _ in range(draws)]
    for row, asker in enumerate(askers):
        core.add(Ask(prompt, params, len(prompt) + 3, asker), 0.0).seed = row
    while not core.scheduler.is_idle:
        core.step()
    assert core.figures.drafted_tokens > core.figures.accepted_tokens > draws / 4
    tokens = torch.tensor([asker.tokens for asker in askers])
    cells = tokens[:, 0] * len(first) + tokens[:, 1]
    assert_follows(
        [
            Examined("first token", 0, p_value(tokens[:, 0], first)),
            Examined("first pair", 0, p_value(cells, both.flatten())),
        ]
    )
