"""Checks, before a model serves, that the engine computes what the model itself computes.

The engine replaces a model's attention and packs its weights. A model's settings do not reliably
show that it has more than plain causal attention, such as attention sinks, a layer that attends
twice, or one that does not receive the step. So the logits of a few tokens are computed both ways:
in one pass of the model itself, and in two steps of the engine. If ranks share the model, no
process has all of it to compare with: it is only run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redline.engine.model import (
    NAME,
    OTHERS,
    Loaded,
    Piece,
    Runner,
    Work,
    load,
    positions_of,
    reading,
    unfit,
)
from redline.engine.settings import EngineSettings
from redline.engine.step.core import Computer
from redline.errors import ConfigError

# The length of the test sequence, which is read in two pieces, next to another sequence with the
# same beginning. The first piece uses the attention of long pieces, the others that of short ones.
_TOKENS = 24
_FAILURE = "the engine cannot run the model in"
# The maximum error of a step's logits, as a share of their size: the median over its tokens, since
# rounding may make a mixture of experts choose other experts for some of them. Three layers with
# large random weights are off by 1e-6, 0.002 and 0.02 in these dtypes; a model with other attention
# is off by 0.2 or more.
_MOST_OFF = {torch.float32: 0.01, torch.float16: 0.1, torch.bfloat16: 0.15}
# Logits beyond this are not compared: some models give impossible tokens such logits.
_MOST_LOGIT = 1e4


def open_runner(
    name: str, config: Any, settings: EngineSettings, *, capacity: int, device: str
) -> Runner:
    """Opens a model in this process, with a slot of `capacity` tokens for each sequence.

    Raises ConfigError if the model cannot be loaded, or if the engine's logits differ from the
    model's own.
    """
    loaded = load(name, config, dtype=settings.dtype, device=device)
    with reading(_FAILURE, name, OTHERS):
        own = said(loaded, tokens := min(_TOKENS, capacity))
        if own.isnan().any():
            raise _numberless(loaded, name)
        off = distance(Runner(loaded, loaded.cache(2, tokens)), own)
    if off > _MOST_OFF.get(loaded.dtype, _MOST_OFF[torch.float32]):
        words = f"attention of another kind (its logits would be {off:.0%} off)"
        raise unfit(name, config.model_type, words)
    return Runner(loaded, loaded.cache(settings.max_batch_size, capacity))


def try_ranks(computer: Computer, settings: EngineSettings, config: Any, capacity: int) -> None:
    """Checks that a model split among ranks can compute a few tokens.

    The results are not compared with the model's own, since no process has the whole model. If the
    computation fails, closes the computer and raises ConfigError.
    """
    try:
        with reading(_FAILURE, settings.model, OTHERS):
            works = _works(min(_TOKENS, capacity), config.vocab_size, settings.max_batch_size)
            for work in works:
                computer.submit(work)
            for _ in works:
                computer.result()
    except BaseException:
        computer.close()
        raise


def _numberless(loaded: Loaded, name: str) -> ConfigError:
    """Returns the error for a model whose own logits are not numbers."""
    weights = loaded.model.named_parameters()
    bad = next((key for key, weight in weights if not weight.isfinite().all()), None)
    what = "its logits are not numbers" if bad is None else f"{bad} has values that are not numbers"
    other = "bfloat16" if loaded.dtype is torch.float16 else "float32"
    hint = f"give --dtype {other}" if bad is None else "download its files again, or train it again"
    return ConfigError(f"{_FAILURE} {name}: {what}", hint=hint)


@torch.inference_mode()
def said(loaded: Loaded, tokens: int) -> Tensor:
    """Returns (tokens, vocabulary) float32 logits as the model itself computes them.

    Call it before a runner packs the model's weights.
    """
    words = torch.tensor([_words(tokens, loaded.vocabulary)], device=loaded.device)
    loaded.model.set_attn_implementation("eager")
    own: Tensor = loaded.model(input_ids=words, use_cache=False).logits[0].float()
    loaded.model.set_attn_implementation(NAME)
    return own


def distance(runner: Runner, own: Tensor) -> float:
    """Returns the error of the runner's logits in the worse of two steps, as a share of their size.

    own: the model's own logits, from `said`.
    """
    works = _works(len(own), runner.loaded.vocabulary)
    return max(_off(runner.run(work), own[positions_of(work.pieces)]) for work in works)


def _off(found: Tensor, own: Tensor) -> float:
    """Returns the median error of the rows of `found`, each as a share of its size.

    found, own: (N, V). Only entries of `own` with an absolute value below _MOST_LOGIT count.
    Returns inf if no row has an error that can be computed.
    """
    own = own.masked_fill(~(own.abs() < _MOST_LOGIT), torch.nan)
    size = (own - own.nanmean(-1, keepdim=True)).nan_to_num(0.0).norm(dim=-1)
    wrong = (found.nan_to_num(torch.inf) - own).nan_to_num(0.0, posinf=torch.inf).norm(dim=-1)
    return float((wrong / size).nanmedian().nan_to_num(torch.inf))


def _words(count: int, vocabulary: int) -> list[int]:
    """Returns `count` token ids from the whole range of the vocabulary."""
    return [(7919 * at + 11) % vocabulary for at in range(count)]


def _works(tokens: int, vocabulary: int, slots: int = 2) -> list[Work]:
    """Returns the work of two steps, which read a sequence of `tokens` tokens in two pieces.

    With two slots or more, they also read a second sequence with the same beginning.
    """
    last = max(1, tokens // 6)
    first, words = tokens - last, _words(tokens, vocabulary)
    works = []
    for pieces in (
        [Piece(0, 0, first), Piece(1, 0, last)],
        [Piece(0, first, last), Piece(1, last, last)],
    ):
        given = [words[at] for at in positions_of(pieces[:slots])]
        works.append(Work([], pieces[:slots], given, range(len(given))))
    return works
