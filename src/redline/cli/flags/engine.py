"""Reads the settings of a local engine, from flags or after `engine:MODEL?`."""

from __future__ import annotations

from functools import partial
from os.path import expanduser
from typing import Any
from urllib.parse import unquote

from redline.engine import DTYPES, LEAST, LONGEST_WAIT_S, EngineSettings
from redline.errors import ConfigError, nearest
from redline.job.settings import (
    Flags,
    Kind,
    Option,
    choice,
    flag,
    flag_of,
    read,
    switch,
    values,
    whole,
)

_FORM = "for example engine:MODEL?max_batch_size=8&draft_model=DIR"
_IS_ON = {"": True, "1": True, "true": True, "0": False, "false": False}


def _number(key: str, about: str, **facts: Any) -> Option:
    return whole(key, about, least=LEAST[key], **facts)


def _model(text: str, flag: str) -> str:
    if not text:
        raise ConfigError(f"{flag} names no model", hint="leave it out")
    # No shell has expanded the text after `engine:`.
    return expanduser(text)


def _is_off(stated: bool, flag: str) -> bool:
    return not stated


ENGINE_FLAGS = (
    _number("max_batch_size", "Maximum sequences computed together. Default: 32.", section="Size"),
    _number(
        "max_step_tokens",
        "Maximum tokens computed in one step; a longer prompt takes several. Default: 512.",
    ),
    flag(
        "max_wait_time",
        "TIME",
        "Longest wait of an idle engine for more requests, such as 5ms; a full batch begins at "
        "once. Default: 0.",
        field="max_wait_s",
        read=partial(values.duration, most_s=LONGEST_WAIT_S, may_be_0=True),
    ),
    _number(
        "max_model_len",
        "Maximum tokens of a prompt and its answer together. Default: the model's own maximum, but "
        "at most 4096 without --launcher vllm.",
    ),
    _number(
        "max_cache_tokens",
        "Tokens that fit into the KV cache. Each sequence takes --max-model-len of them, so a "
        "small cache holds fewer sequences. Default: enough for --max-batch-size.",
    ),
    _number(
        "max_waiting",
        "Maximum sequences in the queue, one per answer; requests that do not fit get HTTP 503. "
        "Default: 1024.",
    ),
    switch(
        "no_prefix_reuse",
        "Recompute shared prefixes for every prompt, instead of reusing their KV cache.",
        field="reuses_prefixes",
        read=_is_off,
    ),
    flag(
        "draft_model",
        "MODEL",
        "A smaller model with the same vocabulary, whose draft tokens the model verifies.",
        read=_model,
        section="Speculative decoding",
    ),
    switch(
        "lookup",
        "Prompt lookup: draft the tokens that followed an earlier occurrence of the latest tokens.",
        field="has_lookup",
    ),
    _number(
        "draft_tokens",
        "Maximum draft tokens at a time; the number adapts to how many are accepted. Default: 4.",
    ),
    choice(
        "dtype",
        DTYPES,
        "Data type: auto (the default: the model's own, but float32 for float16 on a CPU), "
        "float32, bfloat16 or float16.",
        section="Processes",
    ),
    _number("threads", "PyTorch threads in each process. Default: 1."),
    _number(
        "tensor_parallel",
        "Split every layer across N processes, each with a share of the weights. Default: 1.",
    ),
    _number(
        "pipeline_parallel",
        "Split the layers into N stages, one process each, with N batches in flight at once. With "
        "--tensor-parallel, the numbers of processes multiply. Default: 1.",
    ),
)
_KNOWN = {option.key: option for option in ENGINE_FLAGS}


def settings_in(text: str) -> EngineSettings:
    """Parses `MODEL?name=value&...`, whose names are those of the flags of `redline engine`.

    Raises ConfigError for an unknown name or a value that is not valid.
    """
    model, _, query = text.partition("?")
    given: dict[str, Any] = {}
    for name, _, value in (part.partition("=") for part in query.split("&") if part):
        key = name.replace("-", "_")
        if key not in _KNOWN:
            raise ConfigError(
                f"engine:{model} has no setting {name}", hint=nearest(key, _KNOWN) or _FORM
            )
        # This is not form-encoded, so a plus remains a plus.
        stated = unquote(value)
        given[key] = stated
        if _KNOWN[key].kind is Kind.FLAG:
            if stated not in _IS_ON:
                raise ConfigError(f"{flag_of(key)} must be true or false, not {value}", hint=_FORM)
            given[key] = _IS_ON[stated]
    return settings_of(model, given)


def settings_of(model: str, given: Flags) -> EngineSettings:
    """Returns the settings from the flags. Raises a ConfigError that names the wrong flag."""
    if not model:
        raise ConfigError("no model is named", hint=_FORM)
    return EngineSettings(model=expanduser(model), **read(ENGINE_FLAGS, given))
