"""Drafts of a model that has not followed a sequence: it reads on, a bounded piece at a time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch, of the extra `engine`, is not installed")

from redline.engine.draft import ModelDrafter
from redline.engine.model import Work
from redline.engine.sample import SamplingParams
from redline.engine.schedule import Bounds, Scheduler
from redline.engine.step import Ask, Core, Speculation
from support.engine_driver import GREEDY, Fixed, Heard
from support.engine_tables import TableComputer, TableRunner, said_greedily, tables

TARGET, GUESS = tables()
SEEDED = SamplingParams(seed=3)


class Watched(TableRunner):
    """Keeps how many tokens each run had."""

    def __init__(self, slots: int) -> None:
        super().__init__(GUESS, slots, capacity=1024)
        self.sizes: list[int] = []

    def run(self, work: Work) -> torch.Tensor:
        self.sizes.append(len(work.tokens))
        return super().run(work)


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SamplingParams()])
@pytest.mark.parametrize("lengths", [[300], [257, 900], [600, 3, 256, 1]])
def test_a_long_prompt_is_read_in_pieces_and_then_drafted_for(
    params: SamplingParams, lengths: list[int]
) -> None:
    draft = Watched(4)
    bounds = Bounds(4, 2048, 10_000, 100)
    computer = TableComputer(TARGET, 4, capacity=1024)
    speculation = Speculation(ModelDrafter(draft), Fixed(3))
    core = Core(Scheduler(bounds), computer, ends=frozenset(), speculation=speculation)
    askers = [Heard() for _ in lengths]
    prompts = [[(row + at) % 5 for at in range(size)] for row, size in enumerate(lengths)]
    for prompt, asker in zip(prompts, askers, strict=True):
        core.add(Ask(prompt, params, len(prompt) + 40, asker), 0.0)
    while not core.scheduler.is_idle:
        core.step()
    assert [len(asker.tokens) for asker in askers] == [40] * len(lengths)
    if params is GREEDY:
        said = [said_greedily(TARGET, prompt, 40) for prompt in prompts]
        assert [asker.tokens for asker in askers] == said
    # Each keeps some drafts, so the longest was caught up with.
    assert core.figures.accepted_tokens > 3 * len(lengths)
    # At most 256 of those to catch up with, and two each of the others.
    assert max(draft.sizes) <= 256 + 2 * 3
    assert sum(draft.sizes) >= sum(lengths)


def test_a_prompt_that_begins_as_the_slots_last_one_is_not_read_again() -> None:
    draft = Watched(1)
    speculation = Speculation(ModelDrafter(draft), Fixed(3))
    computer = TableComputer(TARGET, 1, capacity=1024)
    core = Core(
        Scheduler(Bounds(1, 2048, 10_000, 100)), computer, ends=frozenset(), speculation=speculation
    )
    prompt = [at % 5 for at in range(200)]
    read = []
    for last in (4, 3):
        asker = Heard()
        core.add(Ask([*prompt, last], GREEDY, 221, asker), 0.0)
        while not core.scheduler.is_idle:
            core.step()
        assert asker.tokens == said_greedily(TARGET, [*prompt, last], 20)
        read.append(sum(draft.sizes))
    assert read[0] > 200
    assert read[1] - read[0] < 100
