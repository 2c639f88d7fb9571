"""The model: loading, attention over the slot cache, and one forward pass."""

from redline.engine.model.attention import NAME, Piece, Step, grouped, positions_of
from redline.engine.model.kv_cache import Shape, SlotCache
from redline.engine.model.loading import (
    OTHERS,
    Loaded,
    dtype_of,
    load,
    model_len,
    read_config,
    read_tokenizer,
    reading,
    unfit,
)
from redline.engine.model.packed import is_packed, pack
from redline.engine.model.runner import Runner, Work
