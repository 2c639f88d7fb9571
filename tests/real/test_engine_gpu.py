"""A run with a model inside gives the same answers on a GPU as on the CPU, whatever is asked.

The GPU is a pretended one: its tensors lie in ordinary memory and refuse to meet those of the CPU,
so an operation that mixes devices fails here as it does on a real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import redline
from redline import EngineSettings, LocalEngine
from redline.engine.model import Runner
from redline.errors import ConfigError
from support.engine_models import random_draft, random_model
from support.pretend_gpu import pretend_gpu

SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["ab", "c"]}}}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 0.7, "seed": 4, "top_p": 0.8, "top_k": 20, "min_p": 0.01},
    "penalties": {"temperature": 1.0, "seed": 5, "presence_penalty": 1, "frequency_penalty": 0.5},
    "repetition": {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"5": 3}},
    "several": {"temperature": 1.0, "seed": 6, "n": 2, "logprobs": True, "top_logprobs": 3},
    "guided": {"temperature": 1.0, "seed": 7, "response_format": SCHEMA},
}
SPECULATION: dict[str, dict[str, Any]] = {"plain": {}, "draft": {}, "lookup": {"has_lookup": True}}


def answers(settings: EngineSettings) -> dict[str, Any]:
    """The output of each row by its name; a row that has no answer fails here."""
    rows = [
        {
            "custom_id": f"{name} {size}",
            "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": "ab cd " * size}],
                "max_tokens": 8,
                **asked,
            },
        }
        for name, asked in ASKED.items()
        for size in (1, 12)
    ]
    report = redline.run(rows, endpoint=LocalEngine(settings))
    assert report.succeeded == len(rows), report
    return {str(one.custom_id): one.output for one in report.outcomes or []}


@pytest.mark.slow
@pytest.mark.parametrize("speculation", SPECULATION)
def test_a_run_on_a_gpu_gives_the_cpus_answers(speculation: str, models_folder: Path) -> None:
    settings = EngineSettings(
        model=str(random_model("llama", models_folder)),
        draft_model=str(random_draft(models_folder)) if speculation == "draft" else None,
        dtype="float32",
        max_model_len=256,
        max_batch_size=5,
        **SPECULATION[speculation],
    )
    with pretend_gpu():
        on_gpu = answers(settings)
    assert on_gpu == answers(settings)


@pytest.mark.slow
def test_logits_on_the_cpu_meet_a_draft_model_on_a_gpu(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ranks give them, whose logits reach the coordinator through a pipe."""
    settings = EngineSettings(
        model=str(random_model("llama", models_folder)),
        draft_model=str(random_draft(models_folder)),
        dtype="float32",
        max_model_len=256,
        max_batch_size=5,
    )
    result = Runner.result
    monkeypatch.setattr(Runner, "result", lambda runner: result(runner).cpu())
    with pretend_gpu():
        on_gpu = answers(settings)
    assert on_gpu == answers(settings)


def test_a_draw_without_a_seed_works_on_a_gpu(models_folder: Path) -> None:
    settings = EngineSettings(model=str(random_model("llama", models_folder)), max_model_len=256)
    body = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
    rows = [{"url": "/v1/chat/completions", "body": body}] * 3
    with pretend_gpu():
        report = redline.run(rows, endpoint=LocalEngine(settings))
    assert report.succeeded == 3


def test_a_cache_larger_than_the_gpus_memory_is_refused(models_folder: Path) -> None:
    model = str(random_model("llama", models_folder))
    with (
        pretend_gpu(),
        pytest.raises(ConfigError, match=r"needs 2\.1 GB, but only 1\.1 GB") as caught,
    ):
        redline.run(
            [{"prompt": "a"}],
            endpoint=LocalEngine(EngineSettings(model=model, max_batch_size=4000)),
        )
    assert caught.value.where == "cuda:0"


def test_the_pretended_gpu_refuses_what_a_real_one_refuses() -> None:
    with pretend_gpu():
        there = torch.ones(3, device="cuda")
        assert there.device == (there + 1).device == torch.device("cuda", 0)
        for here in (lambda: there + torch.ones(3), lambda: torch.ones(3).mul(there)):
            with pytest.raises(RuntimeError, match="two devices"):
                here()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2.0, 2.0, 2.0]
        assert there[torch.tensor([0, 1])].tolist() == [1.0, 1.0]
