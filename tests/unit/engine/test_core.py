"""Greedy answers are those of transformers' generate, whatever runs beside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.engine_driver import Fixed, Joining, Setting, drive, loaded, make_core
from support.engine_models import (
    KINDS,
    Continuation,
    continuations,
    load,
    near_draft,
    random_model,
    random_prompts,
)

NEW = 16


@pytest.fixture(scope="module")
def said(models_folder: Path) -> list[Continuation]:
    """Prompts, some of which begin alike, and what generate says after them."""
    model = load(random_model("llama", models_folder))
    prompts = random_prompts(10, most=60)
    shared = random_prompts(1, 50, 50, seed=5)[0]
    prompts += [shared + prompt[:9] for prompt in prompts[:5]]
    found = continuations(model, prompts, NEW)
    assert len(found) > 10
    return found


def check(core: object, said: list[Continuation], order: int = 0) -> None:
    """Everything joins at steps of its own, with an answer of its own length."""
    source = random.Random(order)
    joining = [
        Joining(one.prompt, source.randint(1, NEW), source.choice((0, 0, source.randint(0, 40))))
        for one in said
    ]
    heard = drive(core, joining)
    for one, asked, answer in zip(said, joining, heard, strict=True):
        assert answer.tokens == one.tokens[: asked.most_new]
        assert answer.reason == "length"


SETTINGS = [
    Setting(slots=1),
    Setting(slots=3, step_tokens=7),
    Setting(slots=24, step_tokens=512),
    Setting(slots=4, reuses_prefixes=False),
    Setting(slots=8, cache_tokens=110, step_tokens=48),
    Setting(slots=1, drafts=6, draft="model"),
    Setting(slots=5, drafts=1, draft="model", step_tokens=16),
    Setting(slots=8, drafts=3, draft="model", cache_tokens=110),
    Setting(slots=24, drafts=4, draft="model", reuses_prefixes=False),
    Setting(slots=8, steps_at_once=3, step_tokens=32),
    Setting(slots=6, steps_at_once=2, drafts=3, draft="model", cache_tokens=110),
    Setting(slots=2, drafts=5, draft="lookup"),
    Setting(slots=12, drafts=2, draft="lookup", step_tokens=40),
    Setting(slots=24, drafts=6, draft="lookup", cache_tokens=110),
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_greedy_answers_are_those_of_generate(
    setting: Setting, said: list[Continuation], models_folder: Path
) -> None:
    model = loaded(random_model("llama", models_folder))
    draft = loaded(near_draft("llama", models_folder)) if setting.draft == "model" else None
    core = make_core(model, setting, draft)
    check(core, said, order=setting.slots)
    assert core.computer.most_under_way == setting.steps_at_once
    if setting.cache_tokens < 1000:
        assert core.scheduler.preemptions > 0
    if not setting.reuses_prefixes:
        assert core.scheduler.reused_tokens == 0


class Measured(Fixed):
    """Keeps what it is told of each step: the longest draft, and whether its time counts."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.told: list[tuple[int, bool]] = []

    def measured(
        self, drafted: Sequence[int], accepted: Sequence[int], step_s: float | None
    ) -> None:
        self.told.append((max(drafted), step_s is not None))


def test_a_step_whose_drafts_found_no_room_is_no_plain_one(models_folder: Path) -> None:
    model = loaded(random_model("llama", models_folder))
    lengths = Measured(2)
    core = make_core(model, Setting(slots=1, step_tokens=1, draft="model"), model, lengths)
    drive(core, [Joining([5], 6)])
    # Nothing was drafted for the first token, nor for the last.
    assert lengths.told == [(0, True), *[(0, False)] * 4, (0, True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "llama"])
def test_each_kind_of_model_answers_as_with_generate(kind: str, models_folder: Path) -> None:
    folder = random_model(kind, models_folder)
    said = continuations(load(folder), random_prompts(6, seed=2), NEW)
    check(make_core(loaded(folder), Setting(slots=4)), said)
