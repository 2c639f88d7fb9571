"""Loads a rank's part of a model: its share of the weights in the layers of its stage.

Only that part is read, as slices of the safetensors files, so no rank ever holds the whole model.
transformers' own plan for the model determines how each layer is split. Column-wise: each rank
computes some of a layer's outputs. Row-wise: each rank has some of the inputs, and the ranks'
outputs are summed. The vocabulary is split in the embedding, whose outputs are summed, and in the
head, whose logits are concatenated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch import distributed as dist
from transformers import AutoModelForCausalLM
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from redline.engine.model import NAME, Loaded, reading
from redline.errors import ConfigError
from redline.process import counted

_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"
# The dimension of a weight that each kind of split cuts. The names come from transformers, except
# `words`, redline's name for the split of the vocabulary.
_DIMENSIONS = {"colwise": 0, "rowwise": 1, "replicated_with_grad_allreduce": None, "words": 0}

_MAY_SPLIT = (
    "it runs in one process; pipeline_parallel or redline engine --launcher vllm may split it"
)


class Placement(NamedTuple):
    """The part of the model that a rank holds.

    stages, shares: the number of stages, and of shares of each layer. Ranks are numbered from 0:
    first the shares of the first stage, then those of the next.
    """

    rank: int
    stages: int
    shares: int

    @property
    def stage(self) -> int:
        return self.rank // self.shares

    @property
    def share(self) -> int:
        return self.rank % self.shares

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def layers(self, count: int) -> range:
        """Returns the part's layers among `count`; the first stages may have one more."""
        size, more = divmod(count, self.stages)
        begin = self.stage * size + min(self.stage, more)
        return range(begin, begin + size + (self.stage < more))


class Source(NamedTuple):
    """The model to split. files: its safetensors files. name: its name in messages."""

    name: str
    config: Any
    files: Sequence[str]


def weight_files(name: str) -> list[str]:
    """Returns the safetensors files of a folder, or of a model on the hub, which it downloads.

    Raises ConfigError if there are none, or if they cannot be read.
    """
    fetched = partial(cached_file, name, _raise_exceptions_for_missing_entries=False)
    with reading("cannot read the weights of", name):
        if (whole := fetched(SAFE_WEIGHTS_NAME)) is not None:
            return [whole]
        if (index := fetched(SAFE_WEIGHTS_INDEX_NAME)) is not None:
            names = set(json.loads(Path(index).read_bytes())["weight_map"].values())
            return [str(cached_file(name, each)) for each in sorted(names)]
    raise ConfigError(
        f"{name} has no *.safetensors files, which each process needs to read its own part",
        hint="load it with transformers and save it with save_pretrained, or use one process",
    )


def load_shard(
    source: Source, part: Placement, group: Any, *, dtype: torch.dtype, device: torch.device
) -> Loaded:
    """Loads the part's weights on `device`. group: the ranks of the stage, to join their outputs.

    Raises ConfigError if the model cannot be split in this way.
    """
    models: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = models.from_config(source.config, dtype=dtype, attn_implementation=NAME)
    base = model.model
    plan = _plan(source, part, model.tp_plan, len(base.layers))
    is_tied = model.lm_head.weight is base.embed_tokens.weight
    own = part.layers(len(base.layers))
    # Modules keep the names that they have in the files until all weights are read.
    for at in {*range(len(base.layers))} - {*own}:
        base.layers[at] = nn.Identity()
    if not part.is_first:
        base.embed_tokens = None
    if not part.is_last:
        base.norm, model.lm_head = nn.Identity(), None
    files: dict[str, Any] = {}
    for name in source.files:
        file: Any = safe_open(name, framework="pt")
        files.update(dict.fromkeys(file.keys(), file))
    for path, module in model.named_modules():
        style = plan.get(re.sub(r"\d+", "*", path), "")
        stored = _EMBEDDING if path == _HEAD and is_tied else path
        for key, parameter in list(module.named_parameters(recurse=False)):
            # The ranks' outputs are summed, so the bias is not split: the first rank adds it.
            is_whole = style == "rowwise" and parameter.dim() == 1
            share = _share(f"{stored}.{key}", "" if is_whole else style, files, source, part)
            setattr(module, key, nn.Parameter(share.to(device, dtype).contiguous()))
        if style:
            _join(module, path, style, part, group)
    if is_tied and part.is_first and part.is_last:
        model.lm_head.weight = base.embed_tokens.weight
    base.rotary_emb = type(base.rotary_emb)(source.config).to(device)
    base.layers = base.layers[own.start : own.stop]
    for at, layer in enumerate(base.layers):
        layer.self_attn.layer_idx = at
    for path, buffer in model.named_buffers():
        if buffer.is_meta:
            kind = source.config.model_type
            what = f"{source.name} ({kind}) computes {path} when it is built, so it cannot be split"
            raise ConfigError(what, hint="run it in one process")
    model.eval().requires_grad_(requires_grad=False)
    if part.stages > 1:
        _check_layers_are_all(base, source, dtype, device)
    return Loaded(model, source.config, layers=len(own), shares=part.shares)


def _share(name: str, style: str, files: dict[str, Any], source: Source, part: Placement) -> Tensor:
    """Reads only the part's share of a tensor.

    For the style `words`, each share is padded to the same number of rows with rows of zeros, at
    least one.
    Raises ConfigError if the tensor is missing or cannot be divided.
    """
    if name not in files:
        raise ConfigError(
            f"the weights of {source.name} lack {name}, so the model cannot be split",
            hint="run it in one process; redline engine --launcher vllm may split it",
        )
    found = files[name].get_slice(name)
    dimension = _DIMENSIONS.get(style)
    if dimension is None:
        whole: Tensor = found[:]
        return whole
    width, is_words = found.get_shape()[dimension], style == "words"
    if width % part.shares and not is_words:
        raise _indivisible(source, f"{name} is {width:,} wide", part.shares)
    size = -(-width // part.shares)
    own = slice(part.share * size, (part.share + 1) * size)
    cut: Tensor = found[own] if dimension == 0 else found[:, own]
    return torch.cat((cut, cut.new_zeros(size + 1 - len(cut), *cut.shape[1:]))) if is_words else cut


def _plan(
    source: Source, part: Placement, plan: dict[str, str] | None, layers: int
) -> dict[str, str]:
    """Returns the kind of split of each module, by the module's name with * for numbers.

    Raises ConfigError if the model cannot be split into these stages and shares.
    """
    config = source.config
    if getattr(config, "quantization_config", None):
        # A shard reads the weights alone, but quantized weights are useless without their scales.
        what = f"{source.name} has quantized weights, so it cannot be split"
        raise ConfigError(
            what, hint="run it in one process; redline engine --launcher vllm may split it"
        )
    if part.stages > layers:
        raise ConfigError(
            f"{source.name} has {counted(layers, 'layer')}, too few for {part.stages} stages"
        )
    if part.shares == 1:
        return {}
    for field in ("num_attention_heads", "num_key_value_heads"):
        if getattr(config, field) % part.shares:
            what = f"self_attn has {field} = {getattr(config, field)}"
            raise _indivisible(source, what, part.shares)
    if not config.base_model_tp_plan:
        raise ConfigError(
            f"transformers has no tensor-parallel plan for {source.name} ({config.model_type})"
        )
    whole = {**(plan or {}), _EMBEDDING: "words", _HEAD: "words"}
    for layer, style in whole.items():
        if style not in _DIMENSIONS:
            what = (
                f"the engine cannot split {layer} of {source.name} in the planned style, {style!r}"
            )
            raise ConfigError(what, hint=_MAY_SPLIT)
    return whole


def _join(module: Any, path: str, style: str, part: Placement, group: Any) -> None:
    """Joins the ranks' outputs of a split module into one."""

    def summed(_module: object, _given: object, found: Tensor) -> Tensor:
        dist.all_reduce(found, group=group)
        return found

    def own_words(_module: object, given: tuple[Tensor]) -> tuple[Tensor]:
        """Maps the token ids of other ranks to the last row, which is zero."""
        places = given[0] - part.share * size
        return (torch.where((places >= 0) & (places < size), places, size),)

    def gathered(_module: object, _given: object, found: Tensor) -> Tensor:
        """Gathers all logits at the stage's first rank; the other ranks' results are not used."""
        own = found[..., :size].contiguous()
        parts = [torch.empty_like(own) for _ in range(part.shares)] if part.share == 0 else None
        if own.numel():
            dist.gather(own, parts, dst=part.rank - part.share, group=group)
        return own if parts is None else torch.cat(parts, -1)[..., :vocabulary]

    if style == "rowwise":
        if part.share:
            module.bias = None
        module.register_forward_hook(summed)
    elif style == "words":
        size = len(module.weight) - 1
        if path == _EMBEDDING:
            module.padding_idx = None  # it would be an index in the whole vocabulary
            module.register_forward_pre_hook(own_words)
            module.register_forward_hook(summed)
        else:
            vocabulary = module.out_features
            module.register_forward_hook(gathered)


def _check_layers_are_all(
    base: Any, source: Source, dtype: torch.dtype, device: torch.device
) -> None:
    """Raises ConfigError if the model changes states outside its layers.

    Some models scale or normalize the embeddings, which every stage would do again to its states.
    """
    layers, norm = base.layers, base.norm
    # The final norm's stand-in doubles its input, to reveal a model that calls the norm twice.
    base.layers, base.norm = nn.ModuleList(), nn.Identity()
    base.norm.register_forward_hook(lambda _module, _given, found: 2 * found)
    # Unequal numbers, since a norm may leave equal ones as they are.
    given = torch.linspace(1, 2, source.config.hidden_size, dtype=dtype, device=device)[None, None]
    place = torch.zeros(1, 1, dtype=torch.long, device=device)
    found = base(inputs_embeds=given, position_ids=place, use_cache=False).last_hidden_state
    base.layers, base.norm = layers, norm
    if not torch.equal(found, 2 * given):
        raise ConfigError(
            f"{source.name} ({source.config.model_type}) cannot be split into stages: it changes "
            "hidden states outside its layers",
            hint="use tensor_parallel instead of pipeline_parallel: it splits each layer",
        )


def _indivisible(source: Source, what: str, shares: int) -> ConfigError:
    hint = "choose a tensor_parallel that divides this number"
    return ConfigError(f"{source.name}: {what}, which {shares} ranks cannot share", hint=hint)
