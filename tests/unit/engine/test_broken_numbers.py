"""What is no number ends the sequence that it belongs to, and does nothing to any other one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from redline.engine.draft import judge
from redline.engine.model import Loaded
from redline.engine.sample import SamplingParams, draw
from redline.engine.schedule import Sequence
from redline.errors import Rejected
from support.engine_driver import GREEDY, Heard, Joining, Setting, drive, loaded, make_core
from support.engine_models import VOCABULARY, random_model, random_prompts

NEW = 8
NAN, INF = float("nan"), float("inf")
BROKEN = VOCABULARY - 1
PROMPTS = [
    [token for token in prompt if token != BROKEN]
    for prompt in random_prompts(6, least=4, most=60, seed=3)
]
PARAMS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(ignore_eos=True, logprobs=2),
    "seeded": SamplingParams(seed=3, ignore_eos=True),
    "filtered": SamplingParams(top_p=0.9, top_k=50, min_p=0.01, ignore_eos=True),
}
SETTINGS = [
    Setting(slots=1),
    Setting(slots=3, step_tokens=24),
    Setting(slots=4, reuses_prefixes=False),
    Setting(slots=4, steps_at_once=2),
    Setting(slots=2, drafts=3, draft="lookup"),
    Setting(slots=4, drafts=3, draft="model"),
]


def model_with(folder: Path, value: float) -> Loaded:
    """One word of its vocabulary is broken, as in files that are, or by a dtype too small."""
    model = loaded(random_model("llama", folder))
    model.model.get_input_embeddings().weight.data[BROKEN] = value
    # Nobody says it: who is asked only for others never comes by it.
    model.model.get_output_embeddings().weight.data[BROKEN] = 0.0
    return model


def is_failed(heard: Heard) -> bool:
    return not heard.tokens and isinstance(heard.reason, Rejected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "kind", "value"),
    list(zip(SETTINGS, [*PARAMS, "sampled", "seeded"], [NAN, INF] * 3, strict=True)),
    ids=str,
)
def test_others_are_answered_as_if_it_were_not_there(
    setting: Setting, kind: str, value: float, models_folder: Path
) -> None:
    model = model_with(models_folder, value)
    good = [Joining(prompt, NEW, step) for step, prompt in enumerate(PROMPTS)]
    alone = drive(make_core(model, Setting(slots=1, reuses_prefixes=False)), good)
    core = make_core(model, setting, model)
    bad = [
        Joining([*prompt[:begin], BROKEN, *prompt[begin:]], NEW, step, PARAMS[kind])
        for step, (prompt, begin) in enumerate(zip(PROMPTS, (0, 1, 2, 3, 4, 50), strict=True))
    ]
    both = drive(core, [each for pair in zip(bad, good, strict=True) for each in pair])
    assert all(map(is_failed, both[::2]))
    assert [one.tokens for one in both[1::2]] == [one.tokens for one in alone]
    # The slots are used again, and some hold what was broken.
    drive(core, bad)
    assert [one.tokens for one in drive(core, good)] == [one.tokens for one in alone]


def test_what_a_failed_one_has_left_is_not_used_again(models_folder: Path) -> None:
    core = make_core(model_with(models_folder, NAN), Setting(slots=2))
    shared = PROMPTS[0][:9] * 3
    assert is_failed(drive(core, [Joining([*shared, BROKEN], NEW)])[0])
    drive(core, [Joining([*shared, 9], NEW)])
    assert core.scheduler.reused_tokens == 0
    drive(core, [Joining([*shared, 10], NEW)])
    assert core.scheduler.reused_tokens == len(shared)


ROWS = {
    "nan": lambda row: row.fill_(NAN),
    "one nan": lambda row: row.index_fill_(0, torch.tensor([7]), NAN),
    "one inf": lambda row: row.index_fill_(0, torch.tensor([7]), INF),
    "nothing may come": lambda row: row.fill_(-INF),
}


def judged(logits: Tensor, params: list[SamplingParams]) -> list[list[int]]:
    each = [
        Sequence([5, 6], one, 3, number, 10, is_seeded=True) for number, one in enumerate(params)
    ]
    return [found.tokens for found in judge(each, logits, {})]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("beside", PARAMS)
def test_a_row_that_is_no_law_brings_no_token(rows: str, kind: str, beside: str) -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(0))
    logits[1, 9] = -INF  # one word may
    whole = judged(logits.clone(), [PARAMS[kind], PARAMS[beside]])
    assert all(len(tokens) == 1 for tokens in whole)
    ROWS[rows](logits[0])
    assert judged(logits, [PARAMS[kind], PARAMS[beside]]) == [[], whole[1]]


def test_what_stands_behind_a_refused_draft_is_of_no_account() -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[:, 4] = 9.0
    logits[2] = NAN
    one = Sequence([5, 6], GREEDY, 3, 0, 10)
    one.drafted = [4, 5]
    assert judge([one], logits, {})[0].tokens == [4, 4]
    one.drafted = [4, 4]
    assert judge([one], logits, {})[0].tokens == []


def test_a_token_is_one_of_the_vocabulary_whatever_it_is_drawn_from() -> None:
    law = torch.full((64, 16), NAN)
    found = draw(law, torch.rand(64, dtype=torch.float64))
    assert found.min() >= 0
    assert found.max() < 16
