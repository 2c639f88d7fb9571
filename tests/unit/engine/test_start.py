"""An engine is opened from its settings, or refused with what is wrong in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from transformers import AutoModelForCausalLM

from redline.engine import EngineSettings
from redline.engine.api import open_engine
from redline.errors import ConfigError
from support.engine_models import CONTEXT, random_draft, random_model, tokenizer_of


@pytest.fixture
def short(models_folder: Path, tmp_path: Path) -> Path:
    """A draft model that was made for half of the target's tokens."""
    draft = random_draft(models_folder)
    model = AutoModelForCausalLM.from_pretrained(draft)
    model.config.max_position_embeddings = CONTEXT // 2
    model.save_pretrained(tmp_path)
    tokenizer_of(draft).save_pretrained(tmp_path)
    return tmp_path


def test_a_draft_model_must_reach_as_far_as_the_model(models_folder: Path, short: Path) -> None:
    folder = str(random_model("llama", models_folder))
    settings = EngineSettings(model=folder, draft_model=str(short), max_batch_size=2)
    with pytest.raises(
        ConfigError, match=f"{short} handles sequences of at most 256 tokens"
    ) as caught:
        open_engine(settings)
    assert "max_model_len 256" in caught.value.hint
    least = EngineSettings(model=folder, draft_model=str(short), max_model_len=CONTEXT // 2)
    assert "256 tokens at once" in open_engine(least).notes[0]


@pytest.mark.parametrize(("tokens", "sequences"), [(100, "1 sequence"), (300, "3 sequences")])
def test_each_sequence_takes_max_model_len_of_max_cache_tokens(
    models_folder: Path, tokens: int, sequences: str
) -> None:
    folder = str(random_model("llama", models_folder))
    settings = EngineSettings(model=folder, max_model_len=100, max_cache_tokens=tokens)
    assert f"up to {sequences} of 100 tokens" in open_engine(settings).notes[0]


@pytest.fixture
def own(models_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(random_model("llama", models_folder), tmp_path / "llama")


@pytest.mark.parametrize("said", [{"cache_implementation": "new"}, {"max_new_tokens": 0}, [1]])
def test_generation_settings_that_are_not_valid_are_named(own: Path, said: object) -> None:
    (own / "generation_config.json").write_text(json.dumps(said), "utf-8")
    with pytest.raises(ConfigError, match=f"cannot read the generation settings in {own}: ."):
        open_engine(EngineSettings(model=str(own), max_batch_size=2))
