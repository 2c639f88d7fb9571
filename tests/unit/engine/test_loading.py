"""A model that cannot be served is refused before it is: with what is wrong, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, FalconConfig, LlamaConfig, Phi3Config

from redline.engine.model import model_len, read_config, read_tokenizer
from redline.errors import ConfigError
from support.engine_driver import Joining, Setting, drive, loaded, make_core
from support.engine_models import (
    CONTEXT,
    REFUSED,
    VOCABULARY,
    random_model,
    random_prompts,
    refused_config,
)


@pytest.fixture
def folder(models_folder: Path, tmp_path: Path) -> Path:
    """A model of its own, for what a test does to its files."""
    return shutil.copytree(random_model("llama", models_folder), tmp_path / "llama")


def open_model(folder: Path) -> None:
    """What opens a model does so."""
    read_config(str(folder))
    read_tokenizer(str(folder))
    loaded(folder)


def cut(size: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:size])

    return change


def without_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    kept = {name: values for name, values in load_file(file).items() if "1.mlp" not in name}
    save_file(kept, file, {"format": "pt"})


def garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 5000)


def without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", "utf-8")


def saying(**fields: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | fields), "utf-8")

    return change


def as_bert(folder: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=32, vocab_size=64, num_key_value_heads=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


BROKEN = {
    "cut weights": (cut(3000), "cannot load the model"),
    "no weights": (cut(0), "cannot load the model"),
    "weights of other sizes": (saying(intermediate_size=64), "cannot load the model"),
    "some weights": (without_weights, "cannot load the model"),
    "garbage": (garbage, "cannot load the model"),
    "a tokenizer without words": (without_a_tokenizer, "no tokenizer in"),
    "heads that do not divide": (saying(num_attention_heads=5), "no model in"),
    "a width in words": (saying(hidden_size="wide"), "no model in"),
    "a model without a head": (as_bert, "cannot load the model"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_folder_is_named(kind: str, folder: Path) -> None:
    """Whatever its reader makes of it, it is the settings that are wrong, not redline."""
    change, failure = BROKEN[kind]
    change(folder)
    with pytest.raises(ConfigError, match=f"{failure}.*{folder}: .") as caught:
        open_model(folder)
    assert "config.json" in caught.value.hint


def as_falcon(folder: Path) -> None:
    config = FalconConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
    config.num_key_value_heads = 2
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


CUSTOM = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
UNFIT = {
    "code of its own": (
        saying(model_type="mine", auto_map=CUSTOM),
        r"it needs custom code \(trust_remote_code\), which the engine does not run",
    ),
    "attention that is no function": (as_falcon, "its attention cannot be replaced"),
    "weights that need a library": (
        saying(quantization_config={"quant_method": "gptq", "bits": 4}),
        "ImportError: .*optimum",
    ),
    "an encoder": (saying(model_type="t5", d_model=32), "is not a causal language model"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_model_that_cannot_run_here_is_refused_without_a_question(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, why = UNFIT[kind]
    change(folder)
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt="": asked.append(prompt) or "n")
    with pytest.raises(ConfigError, match=why) as caught:
        open_model(folder)
    assert asked == []
    assert "config.json" not in caught.value.hint


def test_weights_larger_than_memory_are_refused_before_they_are_read(folder: Path) -> None:
    saying(hidden_size=2**20, intermediate_size=2**20)(folder)
    with pytest.raises(ConfigError, match=r"weights of .* need [\d,.]+ GB in float32, but only"):
        open_model(folder)


def test_a_whole_folder_is_opened(folder: Path) -> None:
    open_model(folder)


@pytest.mark.parametrize("kind", REFUSED)
def test_another_attention_is_refused(kind: str, models_folder: Path) -> None:
    folder = str(refused_config(kind, models_folder))
    with pytest.raises(ConfigError, match=r"which the engine does not (run|support)"):
        model_len(None, read_config(folder), folder)


def test_weights_that_are_not_there_are_counted(folder: Path) -> None:
    without_weights(folder)
    with pytest.raises(
        ConfigError, match=r"lack model\.layers\.1\.mlp\.down_proj\S+ and 2 more weights"
    ):
        loaded(folder)


SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "pad_token_id": 0},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def test_a_sequence_is_no_longer_than_the_model_was_made_for() -> None:
    config = LlamaConfig(**SIZES, max_position_embeddings=CONTEXT)
    assert model_len(None, config, "one") == model_len(CONTEXT, config, "one") == CONTEXT
    assert model_len(None, LlamaConfig(**SIZES, max_position_embeddings=9000), "one") == 4096
    with pytest.raises(
        ConfigError, match="one handles sequences of at most 512 tokens, not 513"
    ) as caught:
        model_len(CONTEXT + 1, config, "one")
    assert "max_model_len 512" in caught.value.hint


def test_positions_are_not_turned_by_how_far_another_sequence_is(tmp_path: Path) -> None:
    """As transformers does beyond the original length, with factors for long sequences."""
    original = 32
    rope = {
        **{"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        **{"short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
    }
    lengths = {"max_position_embeddings": CONTEXT, "original_max_position_embeddings": original}
    config = Phi3Config(**SIZES, **lengths, eos_token_id=1, rope_parameters=rope)
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3, generator=generator)
    model.save_pretrained(tmp_path)
    most = model_len(None, read_config(str(tmp_path)), "one")
    assert most == original
    with pytest.raises(ConfigError, match="at most 32 tokens"):
        model_len(original + 1, read_config(str(tmp_path)), "one")
    short, full, over = (random_prompts(1, size, size)[0] for size in (5, most - 1, most + 1))
    ours = Joining(short, 12)

    def said(*beside: list[int]) -> list[int]:
        core = make_core(loaded(tmp_path), Setting())
        return drive(core, [ours, *(Joining(prompt, 1) for prompt in beside)])[0].tokens

    assert said(full) == said()
    # What would be beyond.
    assert said(over, over, over) != said()
