"""The settings of an engine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from redline.errors import ConfigError

DTYPES = ("auto", "float32", "bfloat16", "float16")
# The minimum of each integer setting.
LEAST = {
    "threads": 1,
    "draft_tokens": 0,
    "max_batch_size": 1,
    "max_step_tokens": 2,
    "max_model_len": 2,
    "max_cache_tokens": 2,
    "max_waiting": 1,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
}
LONGEST_WAIT_S = 60.0


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one local model.

    model: a folder, or a name on the Hugging Face Hub. dtype: one of DTYPES; `auto` for the model's
    own, but float32 for float16 on a CPU. threads: PyTorch's threads in each process. draft_model:
    the folder or name of a smaller model with the same vocabulary. draft_tokens: the most tokens
    drafted at once with a draft model or has_lookup, 0 for none; fewer are drafted when that is
    faster. has_lookup: instead of using a draft model, draft the tokens that followed an earlier
    occurrence of the sequence's last tokens. max_batch_size: the most sequences computed at once.
    max_step_tokens: the most tokens that one step computes. max_wait_s: the longest wait of an idle
    engine for more requests, 0 to 60 seconds; a full batch begins at once. max_model_len: the most
    tokens of a sequence, prompt and answer together; None for the model's own maximum, but at most
    4,096. max_cache_tokens: the size of the cache in tokens; each sequence reserves max_model_len
    of them, so fewer than max_batch_size sequences may be computed at once; None for room for
    max_batch_size sequences. max_waiting: the most sequences that wait for a slot; each answer to a
    request is one. reuses_prefixes: keep keys and values for later prompts with the same beginning.
    tensor_parallel: the number of processes that share each layer. pipeline_parallel: the number of
    stages into which the layers are split.
    All numbers except max_wait_s are integers: draft_tokens is at least 0; max_step_tokens,
    max_model_len and max_cache_tokens are at least 2; the others are at least 1. Raises ConfigError
    for values that are out of range, and for draft_model together with has_lookup.
    """

    model: str
    dtype: str = "auto"
    threads: int = 1
    draft_model: str | None = None
    draft_tokens: int = 4
    has_lookup: bool = False
    max_batch_size: int = 32
    max_step_tokens: int = 512
    max_wait_s: float = 0.0
    max_model_len: int | None = None
    max_cache_tokens: int | None = None
    max_waiting: int = 1024
    reuses_prefixes: bool = True
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def name(self) -> str:
        """The model's name for clients: the name of its folder, or its name on the hub."""
        folder = Path(self.model)
        if not folder.is_dir():
            return self.model
        return folder.name if folder.name not in ("", "..") else folder.resolve().name

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")
        if not 0 <= self.max_wait_s <= LONGEST_WAIT_S:
            raise ConfigError(f"max_wait_s must be from 0 to {LONGEST_WAIT_S:g} seconds")
        if self.draft_model is not None and self.has_lookup:
            raise ConfigError("a draft model and lookup cannot be combined", hint="leave one out")
