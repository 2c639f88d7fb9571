"""Models in several processes, for the engine's tests: groups of ranks, and what they must do."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from redline.engine import EngineSettings
from redline.engine.model import Piece, Runner, Work, read_config
from redline.engine.parallel import Ranks, main
from redline.engine.schedule import Copied
from redline.engine.step import Computer, Core
from support.engine_driver import CAPACITY, Joining, Setting, drive, loaded, make_core
from support.engine_models import (
    KINDS,
    Continuation,
    continuations,
    load,
    near_draft,
    random_model,
    random_prompts,
)

SLOTS = 24
NEW = 14
# Processes share two cores with other tests; what takes longer has hung.
LONGEST_S = 20.0
# Of a slow stage, for each step.
DELAY_S = 0.2


class Split(NamedTuple):
    """How a model is split."""

    shares: int = 1
    stages: int = 1

    @property
    def settings(self) -> dict[str, int]:
        return {"tensor_parallel": self.shares, "pipeline_parallel": self.stages}


def settings(folder: Path, split: Split, **more: Any) -> tuple[EngineSettings, Any]:
    told = {"dtype": "float32", "max_batch_size": SLOTS, **split.settings, **more}
    return EngineSettings(model=str(folder), **told), read_config(str(folder))


@contextmanager
def ranks_of(folder: Path, split: Split, kind: type[Ranks] = Ranks) -> Iterator[Ranks]:
    ranks = kind(*settings(folder, split), capacity=CAPACITY, device="cpu")
    try:
        yield ranks
    finally:
        ranks.close()


class Forked(Ranks):
    """Ranks that are forks of this process, which has imported all and is one thread of its own."""

    runner: type[Runner] = Runner

    def _start(self, fds: list[int]) -> Any:
        def call() -> None:
            # What is inherited here and not where another program is begun.
            for line in (self._parent, *self._lines):
                line.close()
            main(fds, self.runner)

        return _Fork(call)


class _Fork:
    """A process as subprocess has them."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._is_over = False
        self._waiting = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                call()
            finally:
                os._exit(0)

    def wait(self, timeout: float = LONGEST_S) -> None:
        ends_s = time.monotonic() + timeout
        while not self._has_ended():
            if time.monotonic() > ends_s:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(0.01)

    def _has_ended(self) -> bool:
        with self._waiting:
            self._is_over = self._is_over or os.waitpid(self.pid, os.WNOHANG)[0] != 0
            return self._is_over


class Slow(Runner):
    """A stage that takes a time of its own for each step."""

    def run(self, work: Work, states: Tensor | None = None) -> Tensor:
        ends_s = time.monotonic() + DELAY_S
        found = super().run(work, states)
        time.sleep(max(0.0, ends_s - time.monotonic()))
        return found


class SlowRanks(Forked):
    runner = Slow


def stage_times(ranks: Ranks, batches: int, steps: int) -> float:
    """The wall time of so many micro-batches, over (m T + p - 1) times that of a stage.

    ranks: stages, each whole.
    """
    setting = Setting(slots=batches, steps_at_once=batches, reuses_prefixes=False)
    ranks.steps_at_once = batches
    core = make_core(ranks, setting)
    begun_s = time.monotonic()
    drive(core, [Joining([5 + place], steps) for place in range(batches)])
    wall_s = time.monotonic() - begun_s
    assert core.figures.steps == batches * steps
    stages = len(ranks.parameter_bytes)
    return wall_s / ((batches * steps + stages - 1) * DELAY_S)


def odd_model(folder: Path) -> Path:
    """A tied Llama with biases, whose vocabulary two ranks cannot share evenly."""
    place = folder / "odd"
    if not place.exists():
        model = AutoModelForCausalLM.from_pretrained(random_model("llama-biased", folder))
        model.resize_token_embeddings(383)
        model.save_pretrained(place)
    return place


def said_by(folder: Path, count: int = 8, seed: int = 0) -> list[Continuation]:
    """Prompts, some of which begin alike, and what generate says after them."""
    model = load(folder)
    prompts = random_prompts(count, most=60, seed=seed)
    shared = random_prompts(1, 50, 50, seed=5)[0]
    prompts += [shared + prompt[:9] for prompt in prompts[:3]]
    words = model.config.vocab_size
    found = continuations(model, [[token % words for token in one] for one in prompts], NEW)
    assert len(found) >= count
    return found


def check_answers(core: Core, said: Sequence[Continuation], order: int) -> None:
    """Everything joins at steps of its own, with an answer of its own length."""
    source = random.Random(order)
    joining = [
        Joining(one.prompt, source.randint(1, NEW), source.choice((0, 0, source.randint(0, 30))))
        for one in said
    ]
    for one, asked, answer in zip(said, joining, drive(core, joining), strict=True):
        assert answer.tokens == one.tokens[: asked.most_new]
        assert answer.reason == "length"


def works() -> list[Work]:
    """Steps with a prompt, a copy, and pieces of which nothing is wanted."""
    return [
        Work([], [Piece(0, 0, 5), Piece(1, 0, 20)], list(range(3, 28)), [4, 23, 24]),
        Work([], [Piece(0, 5, 2)], [7, 8], []),
        Work([Copied(1, 2, 10)], [Piece(2, 10, 3), Piece(0, 7, 1)], [382, 0, 9, 10], [2, 3]),
    ]


def difference(ranks: Computer, folder: Path) -> float:
    """The greatest of any logit from that of the whole model, over some steps."""
    model, found = loaded(folder), 0.0
    whole = Runner(model, model.cache(4, CAPACITY))
    for work in works():
        ranks.submit(work)
        own, wanted = ranks.result(), whole.run(work)
        assert own.shape == wanted.shape
        assert own.dtype == wanted.dtype == torch.float32
        if own.numel():
            found = max(found, float((own - wanted).abs().max()))
    return found


def bytes_of(folder: Path, split: Split) -> tuple[int, list[int]]:
    """Of a whole model's parameters, and of each part's if all that can be is split evenly."""
    model = loaded(folder).model
    whole = sum(each.numel() * 4 for each in model.parameters())
    words = model.model.embed_tokens.weight.numel() * 4
    is_twice = split.stages > 1 and model.config.tie_word_embeddings
    count = split.shares * split.stages
    return whole, [(whole + words * is_twice) // count] * count


def grid(split: Split) -> Iterator[Setting]:
    """Every mix of slots, drafts, reuse and memory; three stand for the last two."""
    drafts = [(0, None), *((count, kind) for count in range(1, 7) for kind in ("model", "lookup"))]
    for slots in (1, 3, 8, 24):
        for count, kind in drafts:
            for reuses, cache in ((True, 10_000), (False, 10_000), (True, 160)):
                step_tokens = (7, 64, 512)[(slots + count) % 3] + slots * (count + 1)
                yield Setting(
                    slots=slots,
                    step_tokens=step_tokens,
                    cache_tokens=cache,
                    drafts=count,
                    draft=kind,
                    reuses_prefixes=reuses,
                    steps_at_once=split.stages,
                )


def check_grid(kind: str, split: Split, folder: Path) -> dict[str, Any]:
    """All settings of one kind of model and one split. Raises AssertionError."""
    place = random_model(kind, folder)
    said, draft = said_by(place), loaded(near_draft(kind, folder))
    found = {"settings": 0, "answers": 0, "preemptions": 0, "reused_tokens": 0, "accepted": 0}
    # The ranks hold what earlier sequences left in their slots, as they do in use.
    with ranks_of(place, split) if split != Split() else _whole(place) as computer:
        for number, setting in enumerate(grid(split)):
            core = make_core(computer, setting, draft)
            check_answers(core, said, order=number)
            found["settings"] += 1
            found["answers"] += len(said)
            found["preemptions"] += core.scheduler.preemptions
            found["reused_tokens"] += core.scheduler.reused_tokens
            found["accepted"] += core.figures.accepted_tokens
        found["difference"] = difference(computer, place)
        assert found["difference"] < 1e-4
    return found


@contextmanager
def _whole(folder: Path) -> Iterator[Computer]:
    model = loaded(folder)
    yield Runner(model, model.cache(SLOTS, CAPACITY))


SPLITS = (Split(), Split(shares=2), Split(stages=2), Split(shares=2, stages=2))
ALL = [(kind, split) for kind in KINDS for split in SPLITS]
