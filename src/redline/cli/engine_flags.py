"""What is said of a local engine, on the command line or behind `engine:MODEL?`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from redline.cli import values
from redline.cli.values import Flags
from redline.engine.settings import DTYPES, LEAST, EngineSettings
from redline.errors import ConfigError, nearest

_FORM = "write it like engine:MODEL?max_batch_size=8&draft_model=DIR"
_WORDS = ("dtype", "draft_model")
_SWITCHES = ("lookup", "no_prefix_reuse")
_NAMES = (*LEAST, *_WORDS, *_SWITCHES, "max_wait_time")


def settings_in(text: str) -> EngineSettings:
    """The settings in `MODEL?name=value&...`, by the names of `redline engine`'s flags."""
    model, _, query = text.partition("?")
    flags: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        known = name.replace("-", "_")
        if known not in _NAMES:
            raise ConfigError(
                f"engine:{model} has no setting {name}", hint=nearest(known, _NAMES) or _FORM
            )
        flags[known] = value
    return settings_of(model, flags)


def settings_of(model: str, flags: Flags) -> EngineSettings:
    """The settings that the flags state. Raises ConfigError that names the flag."""
    if not model:
        raise ConfigError("no model is named", hint=_FORM)
    numbers = {name: values.whole(flags, name, least) for name, least in LEAST.items()}
    words: dict[str, Any] = {name: flags[name] for name in _WORDS if name in flags}
    words |= {name: value for name, value in numbers.items() if value is not None}
    if "dtype" in words:
        words["dtype"] = values.choice(flags, "dtype", DTYPES)
    return EngineSettings(
        model=model,
        max_wait_s=values.duration(flags, "max_wait_time", 60.0) or 0.0,
        has_lookup="lookup" in flags,
        reuses_prefixes="no_prefix_reuse" not in flags,
        **words,
    )
