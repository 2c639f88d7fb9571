"""Loads a causal language model from a folder or the hub, with redline's own attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers.utils.logging import disable_progress_bar

from redline.engine.model.attention import NAME, attend
from redline.engine.model.kv_cache import Shape, SlotCache
from redline.errors import ConfigError
from redline.process import counted

# Config fields of models whose attention the engine lacks; the values name that kind of attention
# in errors.
_OTHER_ATTENTION = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "state_size": "a state space (SSM)",
    "ssm_state_size": "a state space (SSM)",
    "mamba_d_state": "a state space (SSM)",
    "linear_num_key_heads": "linear attention",
    "attn_logit_softcapping": "soft-capped attention",
    "attention_chunk_size": "chunked attention",
}
_SLIDING = "sliding_attention"
# If a sequence fits in its window, a sliding layer sees all tokens, like a full layer.
_LAYERS = ("full_attention", _SLIDING)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Longer sequences need max_model_len: the keys and values of many long ones take gigabytes.
_DEFAULT_LEN = 4096
_LONGEST_REASON_CHARS = 300
# The hint for a model that the engine cannot run.
OTHERS = (
    "the engine runs Llama, Qwen2, Qwen3 and Mistral with full attention; "
    "redline engine --launcher vllm may run others"
)
# This occurs in errors about models that bring code besides their weights.
_CUSTOM_CODE = "trust_remote_code"
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


AttentionInterface.register(NAME, attend)
disable_progress_bar()  # type: ignore[no-untyped-call]


class Loaded:
    """A model that is ready to compute, or a rank's part of it, with its sizes.

    layers: the number of layers in the part; None for all. shares: the number of ranks that divide
    the heads of each layer.
    """

    def __init__(
        self, model: Any, config: Any, *, layers: int | None = None, shares: int = 1
    ) -> None:
        self.model = model
        self.vocabulary: int = config.vocab_size
        self.layers: int = config.num_hidden_layers if layers is None else layers
        self.kv_heads: int = config.num_key_value_heads // shares
        usual = config.hidden_size // config.num_attention_heads
        self.head_size: int = getattr(config, "head_dim", None) or usual
        self.hidden_size: int = config.hidden_size
        # Tied weights count once.
        self.parameter_bytes = sum(part.nbytes for part in model.parameters())
        self.has_head: bool = model.lm_head is not None
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype

    def cache(self, slots: int, capacity: int, sharers: int = 1) -> SlotCache:
        """Makes an empty cache for the model.

        capacity: tokens per slot. sharers: how many processes each make a cache of this size on the
        same device. Raises ConfigError if they need more memory than the device has left.
        """
        shape = Shape(self.layers, slots, self.kv_heads, capacity, self.head_size)
        needed, free = shape.nbytes(self.dtype) * sharers, available_bytes(self.device)
        if free is None or needed <= free:
            return SlotCache(shape, self.dtype, self.device)
        fitting = slots * free // needed
        fewer = f"give max_batch_size {fitting} or less, or " if fitting else "give "
        raise ConfigError(
            f"the KV cache for {slots:,} sequences of {capacity:,} tokens needs "
            f"{needed / 1e9:,.1f} GB, but only {free / 1e9:,.1f} GB of memory is free",
            where=str(self.device),
            hint=f"{fewer}a lower max_model_len",
        )


@contextmanager
def reading(failure: str, name: str, hint: str = "") -> Iterator[None]:
    """Converts any error in the block, which reads or runs a model, to a ConfigError.

    failure, name: the beginning of the error's text. hint: by default, how to specify a model.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        # Each library has its own errors, and a broken file that it does not check may raise any.
        kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        why = " ".join(str(error).split())[:_LONGEST_REASON_CHARS]
        if _CUSTOM_CODE in str(error):
            why = "it needs custom code (trust_remote_code), which the engine does not run"
            kind, hint = "", OTHERS
        elif isinstance(error, ImportError):  # such as the library of quantized weights
            hint = "install what the message names, or give a model that does not need it"
        elif error.args == (NAME,):  # looked up among the model's own kinds of attention
            kind, why, hint = "", "its attention cannot be replaced by the engine's", OTHERS
        raise ConfigError(f"{failure} {name}: {kind}{why}", hint=hint or _hint(name)) from error


def read_config(name: str) -> Any:
    """Reads the model's settings. Raises ConfigError if they are missing or unsupported."""
    if not Path(name).exists() and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise ConfigError(f"there is no folder {name}", hint=_hint(name))
    with reading("no model in", name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    _check(config, name)
    return config


def read_tokenizer(name: str) -> Any:
    """Reads the model's tokenizer. Raises ConfigError if it cannot be read."""
    with reading("no tokenizer in", name):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def load(name: str, config: Any, *, dtype: str, device: str) -> Loaded:
    """Loads the model with its weights on `device`. Raises ConfigError if that fails."""
    models: Any = AutoModelForCausalLM
    kind = dtype_of(dtype, config, device)
    with reading("cannot load the model in", name):
        if not getattr(config, "quantization_config", None):
            _check_memory(name, config, kind, torch.device(device))
        model, told = models.from_pretrained(
            name,
            config=config,
            dtype=kind,
            attn_implementation=NAME,
            output_loading_info=True,
            trust_remote_code=False,
        )
        # transformers would use random numbers for the missing weights.
        if missing := sorted(told["missing_keys"]):
            more = f" and {counted(len(missing) - 1, 'more weight')}" if len(missing) > 1 else ""
            raise ValueError(f"its files lack {missing[0]}{more}")
        model.to(device).eval().requires_grad_(requires_grad=False)
        return Loaded(model, config)


def _check_memory(name: str, config: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Raises ConfigError if the weights need more memory than the device has left."""
    models: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = models.from_config(config, dtype=dtype, attn_implementation=NAME)
    needed, free = sum(part.nbytes for part in model.parameters()), available_bytes(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"the weights of {name} need {needed / 1e9:,.1f} GB in {str(dtype)[6:]}, but only "
            f"{free / 1e9:,.1f} GB of memory is free",
            where=str(device),
            hint="give a smaller model, or free some memory",
        )


def dtype_of(name: str, config: Any, device: str) -> torch.dtype:
    """Returns the dtype: `auto` is the model's own, but float32 for float16 on a CPU."""
    if name != "auto":
        return _DTYPES[name]
    own = getattr(config, "dtype", None) or torch.float32
    return torch.float32 if device == "cpu" and own is torch.float16 else own


def model_len(wanted: int | None, config: Any, name: str) -> int:
    """Returns the maximum number of tokens in a sequence.

    wanted: the user's setting, None for the default. name: the model's name in errors. Raises
    ConfigError if `wanted` exceeds the length that the model was made for, or if the model's
    attention would not see all tokens.
    """
    most: int = getattr(config, "max_position_embeddings", _DEFAULT_LEN)
    # This is one setting for all layers, or one for each type of layer.
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            # In a step with a longer sequence, positions of all sequences are rotated differently.
            most = min(most, rope.get("original_max_position_embeddings", most))
    length = min(most, _DEFAULT_LEN) if wanted is None else wanted
    if length > most:
        what = f"{name} handles sequences of at most {most:,} tokens, not {length:,}"
        raise ConfigError(what, hint=f"give max_model_len {most} or less")
    window = _window(config)
    if window is not None and length > window:
        words = f"sliding-window attention over {window:,} tokens"
        raise ConfigError(
            f"the model in {name} ({config.model_type}) has {words}, which the engine does not "
            f"support for sequences of {length:,} tokens",
            hint=f"give max_model_len {window} or less, or use redline engine --launcher vllm",
        )
    return length


def _window(config: Any) -> int | None:
    """Returns how many of the last tokens a sliding layer sees; None without such a layer."""
    window: int | None = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    # Some models set a window but use it in none of their layers.
    is_used = getattr(config, "use_sliding_window", True) if layers is None else _SLIDING in layers
    return window if is_used else None


def _check(config: Any, name: str) -> None:
    """Raises ConfigError for a model that is not causal, or whose attention is not supported."""
    kind = getattr(config, "model_type", "?")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        what = f"the model in {name} ({kind}) is not a causal language model"
        raise ConfigError(what, hint="give one that generates text")
    for field, words in _OTHER_ATTENTION.items():
        if getattr(config, field, None):
            raise unfit(name, kind, words)
    if getattr(config, "num_key_value_heads", None) is None:
        raise unfit(name, kind, "attention without num_key_value_heads in its config")
    if others := sorted({*(getattr(config, "layer_types", None) or ())} - {*_LAYERS}):
        raise unfit(name, kind, f"{others[0].replace('_', ' ')} layers")


def unfit(name: str, kind: str, words: str) -> ConfigError:
    """Returns the error for a model that the engine does not run. words: the reason in its text."""
    what = f"the model in {name} ({kind}) has {words}, which the engine does not run"
    return ConfigError(what, hint=OTHERS)


def _hint(name: str) -> str:
    if Path(name).is_dir():
        return (
            "the folder must hold config.json, *.safetensors and the tokenizer's files, none of "
            "them truncated or a Git LFS pointer"
        )
    return (
        "give a folder written by save_pretrained, or, with network access, a model's name on the "
        "Hugging Face Hub"
    )


def available_bytes(device: torch.device) -> int | None:
    """Returns the bytes that can be allocated on `device` without swapping; None if unknown.

    On a CPU this is MemAvailable or what the control group has left, whichever is less.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [bytes_left for bytes_left in (_of_machine(), _of_group()) if bytes_left is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
    except OSError:
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kib[0]) * 1024 if kib else None


def _of_group() -> int | None:
    """Returns the bytes left in the control group (v2); inactive page cache counts as free."""
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        used = int((_CGROUP / "memory.current").read_text("ascii"))
        counts = dict(
            line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines()
        )
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(counts.get("inactive_file", 0)))
