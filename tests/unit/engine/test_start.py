"""An engine is opened from its settings, or refused with what is wrong in them."""

from __future__ import annotations

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
    with pytest.raises(ConfigError, match=f"512 tokens, but {short} can have 256") as caught:
        open_engine(settings)
    assert "--max-model-len 256" in caught.value.hint
    least = EngineSettings(model=folder, draft_model=str(short), max_model_len=CONTEXT // 2)
    assert "256 tokens at once" in open_engine(least).notes[0]
