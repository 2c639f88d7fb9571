"""What of a model a rank takes, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GraniteConfig,
    LlamaConfig,
    NanoChatConfig,
)

from redline.engine.model import Loaded, Piece, Runner, Work, read_config
from redline.engine.parallel import Placement, Source, load_shard, weight_files
from redline.errors import ConfigError
from support.engine_models import KINDS, load, random_model

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def part_of(folder: Path, part: Placement, **changed: Any) -> Loaded:
    config = read_config(str(folder))
    for field, value in changed.items():
        setattr(config, field, value)
    source = Source(str(folder), config, weight_files(str(folder)))
    return load_shard(source, part, None, dtype=torch.float32, device=torch.device("cpu"))


def saved(folder: Path, config: Any, **how: Any) -> Path:
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, **how)
    return folder


def test_every_layer_is_of_one_stage() -> None:
    for count in range(1, 12):
        for stages in range(1, count + 1):
            own = [Placement(rank, stages, 1).layers(count) for rank in range(stages)]
            assert [at for layers in own for at in layers] == list(range(count))
            sizes = [len(layers) for layers in own]
            assert max(sizes) - min(sizes) <= 1
            assert all(before >= after for before, after in pairwise(sizes))


def test_ranks_count_through_the_shares_of_a_stage() -> None:
    parts = [Placement(rank, 2, 3) for rank in range(6)]
    assert [(part.stage, part.share) for part in parts] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1), (1, 2)),
    ]
    assert [part.is_first for part in parts] == [True] * 3 + [False] * 3
    assert [part.is_last for part in parts] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_together_are_the_model(kind: str, models_folder: Path) -> None:
    """Cut and joined again every weight is the whole one, and no rank has more than its share."""
    folder = random_model(kind, models_folder)
    whole = load(folder)
    wanted = dict(whole.named_parameters())
    count = whole.config.num_hidden_layers
    for stage in range(2):
        loaded = [part_of(folder, Placement(2 * stage + share, 2, 2)) for share in range(2)]
        begin = Placement(2 * stage, 2, 2).layers(count).start
        halves = [dict(one.model.named_parameters()) for one in loaded]
        assert loaded[0].kv_heads * 2 == whole.config.num_key_value_heads
        for name, first in halves[0].items():
            second = halves[1].get(name)
            if name.startswith("model.layers."):
                _, _, at, rest = name.split(".", 3)
                name = f"model.layers.{int(at) + begin}.{rest}"
            own = wanted["model.embed_tokens.weight" if name not in wanted else name]
            if "embed" in name or "lm_head" in name:
                assert second is not None
                assert not first[-1].any()
                assert torch.equal(torch.cat((first[:-1], second[:-1])), own)
            elif second is None:
                assert name.endswith("bias")
                assert torch.equal(first, own)
            elif first.shape == own.shape:
                assert "norm" in name
                assert torch.equal(first, second)
                assert torch.equal(first, own)
            else:
                dimension = 1 if "o_proj" in name or "down_proj" in name else 0
                assert torch.equal(torch.cat((first, second), dimension), own)
    assert part_of(folder, Placement(0, 2, 2)).has_head is False
    assert part_of(folder, Placement(0, 1, 1)).has_head is True


def test_weights_in_many_files_are_found(tmp_path: Path) -> None:
    folder = saved(tmp_path, LlamaConfig(**SIZES), max_shard_size="20KB")
    assert len(weight_files(str(folder))) > 2
    whole = load(folder)
    layer = part_of(folder, Placement(1, 2, 1)).model.model.layers[0]
    own = whole.model.layers[1].mlp.down_proj.weight
    assert torch.equal(layer.mlp.down_proj.weight, own)


@pytest.mark.parametrize(
    ("part", "changed", "what"),
    [
        (Placement(0, 1, 4), {}, r"num_key_value_heads = 2, which 4 ranks"),
        (Placement(0, 1, 3), {}, r"num_attention_heads = 4, which 3 ranks"),
        (Placement(0, 5, 1), {}, r"has 4 layers, too few for 5 stages"),
        (Placement(0, 2, 1), {"quantization_config": {"quant_method": "fp8"}}, r"quantized"),
        (Placement(0, 1, 2), {"base_model_tp_plan": None}, r"no tensor-parallel plan for .*llama"),
        (
            Placement(0, 1, 2),
            {"base_model_tp_plan": {"layers.*.mlp.up_proj": "packed_colwise"}},
            r"model\.layers\.\*\.mlp\.up_proj of .* 'packed_colwise'",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_split_is_refused(
    part: Placement, changed: dict[str, Any], what: str, models_folder: Path
) -> None:
    folder = random_model("llama", models_folder)
    with pytest.raises(ConfigError, match=what) as caught:
        part_of(folder, part, **changed)
    assert str(folder) in str(caught.value)


def test_a_width_that_does_not_divide_is_refused_with_its_layer(tmp_path: Path) -> None:
    folder = saved(tmp_path, LlamaConfig(**{**SIZES, "intermediate_size": 65}))
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.mlp\..*_proj\.weight is 65 wide"):
        part_of(folder, Placement(0, 1, 2))


@pytest.mark.parametrize(
    "config", [GraniteConfig(**SIZES, embedding_multiplier=2.0), NanoChatConfig(**SIZES)]
)
def test_a_model_that_changes_its_embeddings_is_not_split_into_stages(
    config: Any, tmp_path: Path
) -> None:
    """Each stage would scale, or norm, what the one before it has sent."""
    folder = saved(tmp_path, config)
    with pytest.raises(ConfigError, match="cannot be split into stages: it changes hidden states"):
        part_of(folder, Placement(1, 2, 1))


def test_a_model_that_scales_its_logits_does_so_here(tmp_path: Path) -> None:
    scales = {"embedding_multiplier": 2.0, "logits_scaling": 3.0, "residual_multiplier": 0.5}
    folder = saved(tmp_path, GraniteConfig(**SIZES, **scales))
    tokens = [5, 6, 7]
    model = part_of(folder, Placement(0, 1, 1))
    runner = Runner(model, model.cache(1, 64))
    own = runner.run(Work([], [Piece(0, 0, 3)], tokens, [0, 2]))
    with torch.inference_mode():
        wanted = load(folder)(torch.tensor([tokens])).logits[0, [0, 2]]
    assert torch.allclose(own, wanted, atol=1e-5)
    assert wanted.abs().max() > 1e-3


def test_what_a_model_makes_and_does_not_store_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, GemmaConfig(**SIZES))
    words = r"computes model\.embed_tokens\.embed_scale when it is built, so"
    with pytest.raises(ConfigError, match=words):
        part_of(folder, Placement(0, 2, 1))


def test_a_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    LlamaConfig(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        weight_files(str(tmp_path))


def test_an_index_that_lists_no_weights_is_named(tmp_path: Path) -> None:
    LlamaConfig(**SIZES).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match=f"the weights of {tmp_path}: KeyError: 'weight_map'"):
        weight_files(str(tmp_path))


def test_a_weight_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, LlamaConfig(**SIZES))
    with pytest.raises(ConfigError, match=r"lack model\.layers\.2\."):
        part_of(folder, Placement(0, 1, 1), num_hidden_layers=3)
