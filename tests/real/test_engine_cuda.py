"""The local engine on a real GPU; skipped on machines without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import redline
from redline import EngineSettings, LocalEngine
from redline.measure import ThroughputMetrics
from support.engine_models import random_draft, random_model

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]


def answers(settings: EngineSettings, count: int) -> list[Any]:
    """Greedy outputs of prompts of different lengths, in the order of the rows."""
    rows = [
        {
            "custom_id": str(number),
            "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": "ab cd " * (1 + number % 7)}],
                "max_tokens": 16,
                "temperature": 0,
            },
        }
        for number in range(count)
    ]
    report = redline.run(rows, endpoint=LocalEngine(settings))
    assert report.succeeded == count, report
    found = {str(one.custom_id): one.output for one in report.outcomes or []}
    return [found[str(number)] for number in range(count)]


@pytest.mark.parametrize("has_draft", [False, True])
def test_greedy_answers_in_batches_are_those_of_the_cpu(
    has_draft: bool, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = str(random_draft(models_folder)) if has_draft else None
    settings = EngineSettings(
        model=str(random_model("llama", models_folder)),
        draft_model=draft,
        dtype="float32",
        max_model_len=256,
        max_batch_size=16,
    )
    on_gpu = answers(settings, 40)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_gpu == answers(settings, 40)


def test_the_use_of_the_gpu_is_measured() -> None:
    def busy(row: object) -> str:
        left = torch.ones(4096, 4096, device="cuda")
        for _ in range(50):
            left = (left @ left).clamp(0, 1)
        torch.cuda.synchronize()
        return "done"

    figures = ThroughputMetrics.measure(busy, [{"prompt": "a"}], duration_s=3)
    assert figures.gpu_utilization is not None
    assert 0.2 < figures.gpu_utilization <= 1


def test_a_model_on_the_gpu_is_a_target_of_bench(models_folder: Path) -> None:
    model = random_model("llama", models_folder)
    command = [sys.executable, "-m", "redline", "bench", f"engine:{model}", "--duration", "3s"]
    done = subprocess.run(
        [*command, "--max-tokens", "16", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["figures"]["gpu_utilization"] > 0
