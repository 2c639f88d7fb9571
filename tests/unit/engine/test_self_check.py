"""A model that the engine would compute otherwise than it is meant is refused when it is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    DogeConfig,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    StableLmConfig,
)

from redline.engine import EngineSettings
from redline.engine.model import Runner, packed, read_config
from redline.engine.step import distance, open_runner, said
from redline.errors import ConfigError
from support.engine_models import KINDS, random_model

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# Why each is not what the engine takes it for.
OTHERS: dict[str, tuple[Any, str]] = {
    "sinks": (
        GptOssConfig(**SIZES, head_dim=8, num_local_experts=4, layer_types=["full_attention"] * 3),
        r"logits would be \d{2,3}% off",
    ),
    # The second time it writes over what the first has left for the next step.
    "a layer that attends twice": (DiffLlamaConfig(**SIZES), r"logits would be \d{2,3}% off"),
    "a layer that is not told of the step": (
        StableLmConfig(**SIZES),
        "its attention layers do not pass on the engine's arguments",
    ),
    "a mask of its own": (DogeConfig(**SIZES), "TypeError: attend"),
}


def saved(folder: Path, config: Any) -> str:
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return str(folder)


def opened(folder: str, capacity: int = 64, **how: Any) -> Runner:
    settings = EngineSettings(model=folder, max_batch_size=3, **how)
    return open_runner(folder, read_config(folder), settings, capacity=capacity, device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", OTHERS)
def test_attention_of_another_kind_is_refused(kind: str, dtype: str, tmp_path: Path) -> None:
    config, why = OTHERS[kind]
    folder = saved(tmp_path, config)
    with pytest.raises(ConfigError, match=why) as caught:
        opened(folder, dtype=dtype)
    assert folder in caught.value.what
    assert "--launcher vllm" in caught.value.hint


def test_weights_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, LlamaConfig(**SIZES))
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = math.nan
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.down_proj\.weight has values that are"):
        opened(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_engine_runs_passes(kind: str, dtype: str, models_folder: Path) -> None:
    runner = opened(str(random_model(kind, models_folder)), dtype=dtype)
    assert runner.cache.shape.slots == 3
    assert runner.cache.shape.capacity == 64
    # It has its own attention again.
    assert distance(runner, said(runner.loaded, 40)) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_packed_in_a_wrong_order_are_noticed(
    dtype: torch.dtype, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed.is_packed(dtype):
        pytest.skip("nothing is packed here")

    def reversed_rows(weight: Tensor, _bias: object) -> Callable[[Tensor], Tensor]:
        return lambda rows: nn.functional.linear(rows, weight.flip(0))

    monkeypatch.setattr(packed, "_by_mkl", reversed_rows)
    monkeypatch.setattr(packed, "_by_onednn", reversed_rows)
    with pytest.raises(ConfigError, match="% off"):
        opened(str(random_model("llama", models_folder)), dtype=str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_experts_that_rounding_chooses_pass(dtype: str, tmp_path: Path) -> None:
    opened(saved(tmp_path, MixtralConfig(**SIZES, num_local_experts=8)), dtype=dtype)


@pytest.mark.parametrize("capacity", [2, 3, 7, 23])
def test_a_model_of_few_tokens_is_tried_with_them(capacity: int, models_folder: Path) -> None:
    opened(str(random_model("llama", models_folder)), capacity)


def test_a_model_that_says_no_numbers_is_refused(models_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(random_model("llama", models_folder))
    model.model.norm.weight.data[0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight has values that are not numbers"):
        opened(str(tmp_path))
