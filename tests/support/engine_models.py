"""Models for the engine's tests, made on the spot: random weights, a trained pair, refused ones.

What is made lies in a folder that the whole run shares (the fixture `models_folder`), so each is
made once a run, whichever worker asks first.

The random ones are small and wild: their weights are large, so a greedy continuation hangs on every
token before it, wanders through the vocabulary, and its best token stands clear of the second; see
`continuations`. Biases and norms are random too, since one that is left out must show.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Lfm2Config,
    LlamaConfig,
    MiniMaxConfig,
    MistralConfig,
    NemotronConfig,
    Phi3Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from support.scripts import script

make_text = script("examples/tiny-model/make_text.py")
train = script("examples/tiny-model/train.py")

VOCABULARY = 384
CONTEXT = 512
STD = 0.3
NORM_STD = 0.3
BIAS_STD = 0.5

_GQA: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# How each kind is made: the class of its configuration, and what it says beside the vocabulary.
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {**_GQA, "num_hidden_layers": 4}),
    "llama-mha-tied": (
        LlamaConfig,
        {**_GQA, "num_key_value_heads": 4, "num_hidden_layers": 2, "tie_word_embeddings": True},
    ),
    "qwen2": (Qwen2Config, {**_GQA, "num_hidden_layers": 2, "tie_word_embeddings": True}),
    # Its heads are wider than hidden / heads, as those of Qwen3 0.6B are.
    "qwen3": (Qwen3Config, {**_GQA, "head_dim": 32, "num_hidden_layers": 3}),
    "mistral": (MistralConfig, {**_GQA, "num_hidden_layers": 2, "sliding_window": None}),
    "llama-biased": (
        LlamaConfig,
        {
            **_GQA,
            "num_hidden_layers": 2,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}
# Models with windows, which run up to that length, and with layers that the engine does not run.
OTHERS: dict[str, tuple[type, dict[str, Any]]] = {
    "mistral-window": (MistralConfig, {**_GQA, "num_hidden_layers": 2, "sliding_window": 64}),
    "mistral-4096": (MistralConfig, {**_GQA, "num_hidden_layers": 1, "sliding_window": 4096}),
    "phi3-262144": (Phi3Config, {**_GQA, "num_hidden_layers": 1, "sliding_window": 262_144}),
    "stablelm": (StableLmConfig, {**_GQA, "num_hidden_layers": 1}),
    "nemotron": (NemotronConfig, {**_GQA, "num_hidden_layers": 1}),
    "lfm2": (
        Lfm2Config,
        {**_GQA, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    ),
    "minimax": (
        MiniMaxConfig,
        {
            **_GQA,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 2,
            "head_dim": 16,
        },
    ),
}
DRAFT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
}
# The share of each weight's size by which a near draft differs from its target.
NEAR = 0.02

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# What the engine must refuse by name, as a config.json says it.
REFUSED: dict[str, dict[str, Any]] = {
    "sliding window": {
        **_SMALL,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 64,
    },
    "sliding window in some layers": {
        **_SMALL,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 1,
    },
    "MLA": {
        **_SMALL,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
    "SSM": {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    },
}

# 0.15 and 0.05 million parameters, a text of four towns; some 5 s of one core.
TRAINED = train.Plan(
    target=train.Shape(hidden=64, inner=176, layers=2, heads=4, kv_heads=2),
    draft=train.Shape(hidden=48, inner=128, layers=1, heads=4, kv_heads=2, is_tied=True),
    steps=160,
    rate=8e-3,
    draft_rate=1e-2,
    batch=8,
    length=64,
    vocabulary=512,
    megabytes=0.4,
    towns=4,
    context=CONTEXT,
)


class Trained(NamedTuple):
    """A pair that has learned a little. documents: what neither has seen, as text."""

    target: Path
    draft: Path
    documents: list[str]
    agreement: float
    accepted: float
    per_step: float


class Continuation(NamedTuple):
    """What a model says greedily after a prompt.

    gap: the least distance of a best logit to the second; where it is far above the rounding of
    float32, whoever computes the same model says the same.
    """

    prompt: list[int]
    tokens: list[int]
    gap: float


def random_model(kind: str, folder: Path) -> Path:
    """A folder with a model of `kind`, of random weights in float32, and its tokenizer.

    kind: a key of KINDS. Its vocabulary is the tokenizer's. Always the same one for a kind.
    """
    return once(folder / kind, lambda place: _make(place, *KINDS[kind], list(KINDS).index(kind)))


def other_model(kind: str, folder: Path) -> Path:
    """A folder with a model of `kind`, a key of OTHERS, made as `random_model` makes one."""
    return once(folder / kind, lambda place: _make(place, *OTHERS[kind], seed=7))


def random_draft(folder: Path) -> Path:
    """A folder with a smaller Llama of the same tokenizer; it guesses a target only by chance."""
    return once(folder / "draft", lambda place: _make(place, LlamaConfig, DRAFT, 100))


def near_draft(kind: str, folder: Path) -> Path:
    """A folder with the model of `kind`, each weight a little off: it guesses about half."""
    target = random_model(kind, folder)
    return once(folder / f"{kind}-near", lambda place: _make_near(target, place))


def refused_config(kind: str, folder: Path) -> Path:
    """A folder with no more than the config.json of a model that the engine cannot serve."""

    def make(place: Path) -> None:
        place.mkdir()
        (place / "config.json").write_text(json.dumps(REFUSED[kind], indent=2), "utf-8")

    return once(folder / f"refused {kind}", make)


def trained_pair(folder: Path) -> Trained:
    """A target and a draft trained on text for some seconds; all later calls of a run are free."""
    place = once(
        folder / "trained",
        lambda part: train.make_pair(part, TRAINED, say=lambda text: None),
    )
    found = json.loads((place / "training.json").read_text("utf-8"))["acceptance"]
    documents = (place / "held-out.txt").read_text("utf-8").splitlines()
    return Trained(place / "target", place / "draft", documents, **found)


def load(folder: Path) -> PreTrainedModel:
    """The model in `folder` in float32, as transformers computes it; it does not stop at an end."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


def random_prompts(count: int, least: int = 1, most: int = 40, seed: int = 0) -> list[list[int]]:
    """`count` prompts of `least` to `most` tokens, none of them special, so none of them an end."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, most + 1, (count,), generator=generator).tolist()
    first = len(train.SPECIAL)
    return [
        torch.randint(first, VOCABULARY, (length,), generator=generator).tolist()
        for length in lengths
    ]


@torch.inference_mode()
def continuation(model: PreTrainedModel, prompt: Sequence[int], count: int) -> Continuation:
    """The `count` tokens that transformers' generate says after `prompt`, greedily."""
    ids = torch.tensor([list(prompt)])
    said = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(said.logits).topk(2, dim=-1).values
    gap = float((best[..., 0] - best[..., 1]).min())
    return Continuation(list(prompt), said.sequences[0, len(prompt) :].tolist(), gap)


def continuations(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], count: int, least_gap: float = 1e-3
) -> list[Continuation]:
    """Those of `prompts`, continued, whose every token stands clear by `least_gap`."""
    said = [continuation(model, prompt, count) for prompt in prompts]
    return [one for one in said if one.gap >= least_gap]


def _make(place: Path, kind: type, sizes: dict[str, Any], seed: int) -> None:
    documents = make_text.make_text(60_000)
    texts = [make_text.contents(document) for document in documents]
    tokenizer = train.make_tokenizer(texts, VOCABULARY, CONTEXT)
    assert len(tokenizer) == VOCABULARY
    config = kind(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        _randomize(name, parameter.data, generator)
    train.save(model, tokenizer, place)


def _randomize(name: str, values: Tensor, generator: torch.Generator) -> None:
    if values.dim() > 1:
        values.normal_(0.0, STD, generator=generator)
    elif "norm" in name:
        values.normal_(1.0, NORM_STD, generator=generator)
    else:
        values.normal_(0.0, BIAS_STD, generator=generator)


def _make_near(target: Path, place: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.empty_like(parameter).normal_(0.0, NEAR, generator=generator)
        parameter.data.mul_(1.0 + noise)
    train.save(model, tokenizer_of(target), place)


def once(place: Path, make: Callable[[Path], object]) -> Path:
    """`place`, made by the first process of a run that needs it; the others wait until it is."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            part = place.with_name(f"{place.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            make(part)
            part.rename(place)
    return place
