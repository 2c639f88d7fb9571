"""The programs whose speed bench/engine.py compares: each takes jobs and returns their tokens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from redline.engine import EngineSettings
from redline.engine.draft import Chance, DraftLength, ModelDrafter
from redline.engine.model import NAME, Loaded, Runner, dtype_of, load, read_config, read_tokenizer
from redline.engine.sample import SamplingParams
from redline.engine.schedule import Bounds, Scheduler
from redline.engine.step import Ask, Core, Speculation
from redline.errors import RedlineError

TRAIN = record.ROOT / "examples" / "tiny-model" / "train.py"
PROMPT_TOKENS = 24
# Room in a slot for a prompt, the longest answer, and drafts.
CAPACITY = 192
SEED = 6
# What `redline engine` is given where nobody says otherwise.
DEFAULTS = EngineSettings(model="")


class Job(NamedTuple):
    """One prompt and how many tokens are to follow it."""

    prompt: list[int]
    new_tokens: int


class Answer:
    """Hears one sequence of the engine."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def heard(self, tokens: list[int], chances: list[Chance]) -> str | None:
        self.tokens += tokens
        return None

    def ended(self, reason: str | RedlineError) -> None:
        assert reason == "length"


class Engine:
    """redline's core with so many slots. What its speculation learns stays from run to run."""

    def __init__(self, model: Loaded, slots: int, draft: Loaded | None = None) -> None:
        bounds = Bounds(
            slots=slots,
            step_tokens=DEFAULTS.max_step_tokens,
            cache_tokens=slots * CAPACITY,
            waiting=DEFAULTS.max_waiting,
            # Each round asks the same again.
            reuses_prefixes=False,
        )
        speculation = None
        if draft is not None:
            drafter = ModelDrafter(Runner(draft, draft.cache(slots, CAPACITY)))
            speculation = Speculation(drafter, DraftLength(DEFAULTS.draft_tokens))
        runner = Runner(model, model.cache(slots, CAPACITY))
        self.core = Core(Scheduler(bounds), runner, ends=frozenset(), speculation=speculation)

    def begin(self, jobs: Sequence[Job]) -> list[Answer]:
        greedy = SamplingParams(temperature=0.0, ignore_eos=True)
        answers = [Answer() for _ in jobs]
        for job, answer in zip(jobs, answers, strict=True):
            most = len(job.prompt) + job.new_tokens
            self.core.add(Ask(job.prompt, greedy, most, answer), 0.0)
        return answers

    def __call__(self, jobs: Sequence[Job]) -> list[list[int]]:
        answers = self.begin(jobs)
        while not self.core.scheduler.is_idle:
            self.core.step()
        return [answer.tokens for answer in answers]


class Static:
    """transformers' generate, so many prompts of one length at a time."""

    def __init__(self, model: Any, size: int) -> None:
        self._model, self._size = model, size

    def __call__(self, jobs: Sequence[Job]) -> list[list[int]]:
        answers = []
        for start in range(0, len(jobs), self._size):
            group = jobs[start : start + self._size]
            prompts = torch.tensor([job.prompt for job in group])
            whole = self._model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                generation_config=_greedy(max(job.new_tokens for job in group)),
            )
            rows = whole[:, prompts.shape[1] :].tolist()
            answers += [row[: job.new_tokens] for row, job in zip(rows, group, strict=True)]
        return answers


class Continuous:
    """transformers' continuous batching: its own thread, kept running from round to round."""

    def __init__(self, model: Any, size: int, stack: ExitStack) -> None:
        settings = ContinuousBatchingConfig(
            max_requests_per_batch=size,
            max_batch_tokens=DEFAULTS.max_step_tokens,
            num_blocks=2 * size,
            allow_block_sharing=False,
        )
        self._manager = stack.enter_context(
            model.continuous_batching_context_manager(
                generation_config=_greedy(1), continuous_batching_config=settings
            )
        )

    def __call__(self, jobs: Sequence[Job]) -> list[list[int]]:
        names = [
            self._manager.add_request(job.prompt, max_new_tokens=job.new_tokens, eos_token_id=-1)
            for job in jobs
        ]
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            one = self._manager.get_result(timeout=record.LONGEST_S)
            if one is None or one.error is not None:
                raise RuntimeError(f"continuous batching has failed: {one and one.error}")
            if one.is_finished():
                found[one.request_id] = list(one.generated_tokens)
        return [found[name] for name in names]


def _greedy(new_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )


def train(folder: Path) -> None:
    """Has the pair trained into `folder` unless it is there."""
    if (folder / "training.json").exists():
        return
    command = [sys.executable, str(TRAIN), str(folder), "--target", "32m"]
    subprocess.run(command, check=True)


def held_out(folder: Path) -> list[list[int]]:
    """How the held-out documents that are long enough begin."""
    lines = (folder / "held-out.txt").read_text("utf-8").splitlines()
    rows = read_tokenizer(str(folder / "target"))(lines)["input_ids"]
    return [row[:PROMPT_TOKENS] for row in rows if len(row) >= PROMPT_TOKENS]


def peer_model(folder: Path, dtype: str) -> Any:
    """The model as transformers runs it, never ending by itself."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model


def engine_model(folder: Path, dtype: str) -> Loaded:
    """The model as redline runs it."""
    return load(str(folder), read_config(str(folder)), dtype=dtype, device="cpu")


def untrained(folder: Path, dtype: str) -> Loaded:
    """A model of that shape with the weights that it was born with."""
    config = read_config(str(folder))
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(
        config, dtype=dtype_of(dtype, config, "cpu"), attn_implementation=NAME
    )
    return Loaded(model.eval().requires_grad_(requires_grad=False), config)
