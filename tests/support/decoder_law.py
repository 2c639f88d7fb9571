"""Does the whole decoder follow its target's law? Scheduler, drafter, judge and all, on tables.

Every sequence has the same prompt and says LENGTH tokens. Many are under way beside each other, and
each one's slot is taken by the next when it ends, so that drafts are of every length, kept, refused
and cut off in every mixture. The law of all that may be said is
computed token by token from the target alone, with penalties that count what was said before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from redline.engine.draft import Drafts, LookupDrafter, ModelDrafter, verify
from redline.engine.draft import acceptance as judge_module
from redline.engine.sample import Past, SamplingParams, distribution
from redline.engine.schedule import Bounds, Scheduler, Sequence
from redline.engine.step import Ask, Core, Speculation
from support.engine_driver import Fixed, Heard
from support.engine_tables import TOKENS, TableComputer, TableRunner, tables
from support.sampling_law import WRONG as WRONG_VERIFIERS
from support.sampling_law import Examined, Verify, p_value

# The first token follows the prompt, before anything is drafted; the next ones come by drafts of up
# to three and the token behind them.
LENGTH = 5
SHORT = (0, 1)
# Most pairs of tokens stand in it, so that a lookup mostly finds what may follow.
PAIRS = (
    *(0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 1, 2, 1, 3, 1, 4),
    *(2, 2, 3, 2, 4, 3, 3, 4, 4, 5, 5, 0, 5, 1),
)
PLAIN = SamplingParams()
FILTERED = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.02)
PENALIZED = SamplingParams(
    presence_penalty=0.5,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    logit_bias={2: 1.0, 4: -0.5},
)


@dataclass(frozen=True)
class Case:
    """How the sequences are decoded. draft: `model`, `lookup` or None. drafts: the most of a step.

    step_tokens: so few in some cases that drafts are cut off. is_seeded: as by a user.
    """

    params: SamplingParams
    draft: str | None = "model"
    drafts: int = 3
    slots: int = 64
    step_tokens: int = 512
    steps_at_once: int = 1
    cache_tokens: int = 100_000
    is_seeded: bool = False
    prompt: tuple[int, ...] = SHORT


CASES = {
    "no draft": Case(PLAIN, None),
    "model": Case(PLAIN, slots=24),
    "model, filtered": Case(FILTERED),
    "model, penalties": Case(PENALIZED, drafts=2),
    "model, three steps at once": Case(PLAIN, drafts=1, steps_at_once=3),
    "model, drafts cut off": Case(PLAIN, drafts=4, slots=16, step_tokens=40),
    "model, seeded": Case(FILTERED, is_seeded=True),
    "lookup": Case(PLAIN, "lookup", slots=24, prompt=PAIRS),
    "lookup, filtered": Case(FILTERED, "lookup", drafts=2, slots=24, prompt=PAIRS),
    "lookup, penalties, preempted": Case(
        PENALIZED, "lookup", slots=16, cache_tokens=250, prompt=PAIRS
    ),
}


class Unfiltered(ModelDrafter):
    """Tells the draft model's whole law, though the drafts were drawn from the filtered one."""

    def draft(self, sequences: list[Sequence], most: list[int]) -> Drafts:
        drafts, (_, guess) = super().draft(sequences, most), tables()
        told = {}
        for one in sequences:
            known = [*one.tokens, *one.drafted]
            places = range(len(one.tokens), len(known))
            if places:
                logits = [guess[known[at - 2], known[at - 1]] for at in places]
                told[one.number] = torch.stack(logits).softmax(-1)
        return drafts._replace(laws=told)


class Parts(NamedTuple):
    """What a decoder is made of beside its case, right or wrong."""

    verify: Verify = verify
    drafter: type[ModelDrafter] = ModelDrafter


RIGHT = Parts()


def wrong(name: str) -> Parts:
    """The parts of a wrong variant, by its name."""
    if name == "unfiltered q":
        return Parts(drafter=Unfiltered)
    return Parts(WRONG_VERIFIERS[name])


# Each wrong variant, and the case in which it shows.
WRONG = {
    "no correction": "lookup",
    "unfiltered q": "model, filtered",
    "off-by-one bonus": "model",
}


def make_core(case: Case, parts: Parts = RIGHT) -> Core:
    target, guess = tables()
    bounds = Bounds(
        slots=case.slots,
        step_tokens=case.step_tokens,
        cache_tokens=case.cache_tokens,
        waiting=1_000_000,
        steps_at_once=case.steps_at_once,
    )
    speculation = None
    if case.draft == "model":
        drafter = parts.drafter(TableRunner(guess, case.slots))
        speculation = Speculation(drafter, Fixed(case.drafts))
    elif case.draft == "lookup":
        speculation = Speculation(LookupDrafter(), Fixed(case.drafts))
    return Core(
        Scheduler(bounds),
        TableComputer(target, case.slots, case.steps_at_once),
        ends=frozenset(),
        speculation=speculation,
    )


def said(case: Case, draws: int, seed: int, parts: Parts = RIGHT) -> Tensor:
    """(draws, LENGTH) int64: what so many sequences say. A seed says the same each time."""
    core = make_core(case, parts)
    askers = []
    for row in range(draws):
        own = row + (seed << 32)
        params = case.params
        if case.is_seeded:
            params = SamplingParams(
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
                seed=own,
            )
        asker = Heard()
        askers.append(asker)
        sequence = core.add(Ask(list(case.prompt), params, len(case.prompt) + LENGTH, asker), 0.0)
        sequence.seed = own
    with mock.patch.object(judge_module, "verify", parts.verify):
        while not core.scheduler.is_idle:
            core.step()
    assert (core.scheduler.preemptions > 0) == (case.cache_tokens < 1_000)
    assert (core.figures.drafted_tokens > core.figures.accepted_tokens > 0) == bool(case.draft)
    return torch.tensor([asker.tokens for asker in askers])


def law(case: Case) -> Tensor:
    """The chance of each answer: float64 with one dimension of TOKENS for each of its tokens."""
    target, _ = tables()
    chances = torch.ones(1, dtype=torch.float64)
    for length in range(LENGTH):
        answers = list(itertools.product(range(TOKENS), repeat=length))
        ends = [(*case.prompt, *answer)[-2:] for answer in answers]
        logits = torch.stack([target[before, here] for before, here in ends])
        pasts = [Past(case.prompt, answer) for answer in answers]
        following = distribution(logits, [case.params] * len(answers), pasts).to(torch.float64)
        chances = (chances[:, None] * following).flatten()
    return chances.view([TOKENS] * LENGTH)


def examined(case: Case, draws: int, seeds: Iterable[int], parts: Parts = RIGHT) -> list[Examined]:
    """Tests each token and each pair of neighbours, of each seed."""
    chances = law(case)
    found = []
    for seed in seeds:
        tokens = said(case, draws, seed, parts)
        for size, what in ((1, "token"), (2, "pair")):
            for place in range(LENGTH - size + 1):
                kept = range(place, place + size)
                own = chances.sum([each for each in range(LENGTH) if each not in kept])
                cells = tokens[:, place]
                if size == 2:
                    cells = cells * TOKENS + tokens[:, place + 1]
                found.append(Examined(f"{what} {place}", seed, p_value(cells, own.flatten())))
    return found
