"""A model that cannot be served is refused before it is: with what is wrong, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig

from engine_driver import loaded
from engine_models import REFUSED, random_model, refused_config
from redline.engine.load import read_config, read_tokenizer
from redline.errors import ConfigError


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


def test_a_whole_folder_is_opened(folder: Path) -> None:
    open_model(folder)


@pytest.mark.parametrize("kind", REFUSED)
def test_another_attention_is_refused(kind: str, models_folder: Path) -> None:
    with pytest.raises(ConfigError, match="which the engine does not run"):
        read_config(str(refused_config(kind, models_folder)))


def test_weights_that_are_not_there_are_counted(folder: Path) -> None:
    without_weights(folder)
    with pytest.raises(ConfigError, match=r"lack 3 weights, model\.layers\.1\.mlp\.down_proj"):
        loaded(folder)
