"""Drives an engine's core by hand: sequences join at any step, and what each has said is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from redline.engine.draft import Chance, DraftLength, LookupDrafter, ModelDrafter
from redline.engine.model import Loaded, Runner, SlotCache, Work, load, read_config
from redline.engine.sample import Guide, SamplingParams
from redline.engine.schedule import Bounds, Scheduler
from redline.engine.step import Ask, Computer, Core, Speculation
from redline.errors import RedlineError

CAPACITY = 256
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Setting(NamedTuple):
    """How the core of a test is made. drafts: of each step. draft: `model`, `lookup` or None."""

    slots: int = 4
    step_tokens: int = 64
    cache_tokens: int = 10_000
    drafts: int = 0
    draft: str | None = None
    reuses_prefixes: bool = True
    steps_at_once: int = 1


class Later(Runner):
    """Has several steps under way, as a model in stages has."""

    def __init__(self, model: Loaded, cache: SlotCache, steps_at_once: int) -> None:
        super().__init__(model, cache)
        self.steps_at_once = steps_at_once
        self.most_under_way = 0
        self._results: deque[Tensor] = deque()

    def submit(self, work: Work) -> None:
        self._results.append(self.run(work))
        self.most_under_way = max(self.most_under_way, len(self._results))

    def result(self) -> Tensor:
        return self._results.popleft()


class Fixed(DraftLength):
    """Drafts of one length in every step."""

    def __init__(self, length: int) -> None:
        self._length = length

    def choose(self, batch: int) -> int:
        assert batch > 0
        return self._length

    def measured(
        self, drafted: Sequence[int], accepted: Sequence[int], step_s: float | None
    ) -> None:
        assert max(drafted) <= max(1, self._length)
        for made, kept in zip(drafted, accepted, strict=True):
            assert 0 <= kept <= made


class Heard:
    """An asker that keeps what it hears."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.chances: list[Chance] = []
        self.reason: str | RedlineError | None = None

    def heard(self, tokens: list[int], chances: list[Chance]) -> str | None:
        self.tokens += tokens
        self.chances += chances
        return None

    def ended(self, reason: str | RedlineError) -> None:
        assert self.reason is None
        self.reason = reason


class Joining(NamedTuple):
    """A sequence that joins before the step of this number."""

    prompt: Sequence[int]
    most_new: int
    step: int = 0
    params: SamplingParams = GREEDY
    guide: Guide | None = None


def loaded(folder: Path) -> Loaded:
    return load(str(folder), read_config(str(folder)), dtype="float32", device="cpu")


def make_core(
    model: Loaded | Computer,
    setting: Setting,
    draft: Loaded | None = None,
    lengths: DraftLength | None = None,
) -> Core:
    """model: loaded, or what computes it already, with CAPACITY tokens a slot."""
    computer = model
    if isinstance(model, Loaded):
        computer = Later(model, model.cache(setting.slots, CAPACITY), setting.steps_at_once)
    bounds = Bounds(
        slots=setting.slots,
        step_tokens=setting.step_tokens,
        cache_tokens=setting.cache_tokens,
        waiting=10_000,
        reuses_prefixes=setting.reuses_prefixes,
        steps_at_once=setting.steps_at_once,
    )
    drafter: LookupDrafter | ModelDrafter | None = None
    if setting.draft == "lookup":
        drafter = LookupDrafter()
    elif setting.draft == "model":
        assert draft is not None
        drafter = ModelDrafter(Runner(draft, draft.cache(setting.slots, CAPACITY)))
    return Core(
        Scheduler(bounds),
        computer,
        ends=frozenset(),
        speculation=Speculation(drafter, lengths or Fixed(setting.drafts)) if drafter else None,
    )


def drive(core: Core, joining: Sequence[Joining]) -> list[Heard]:
    """What each sequence hears, in the order of `joining`."""
    heard = [Heard() for _ in joining]
    step = 0
    while not core.scheduler.is_idle or any(one.step >= step for one in joining):
        for one, asker in zip(joining, heard, strict=True):
            if one.step == step:
                most = len(one.prompt) + one.most_new
                ask = Ask(list(one.prompt), one.params, most, asker, guide=one.guide)
                core.add(ask, 0.0)
        for ended in core.step():
            assert ended.ended is not None
            ended.asker.ended(ended.ended)
        step += 1
        assert step < 10_000
    return heard
