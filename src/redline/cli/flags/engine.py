"""Settings of a local engine, from flags or after `engine:MODEL?`."""

from __future__ import annotations

from os.path import expanduser
from typing import Any
from urllib.parse import unquote

from redline.engine import DTYPES, LEAST, LONGEST_WAIT_S, EngineSettings
from redline.errors import ConfigError, nearest
from redline.job.settings import Flags, values

_FORM = "write it like engine:MODEL?max_batch_size=8&draft_model=DIR"
_WORDS = ("dtype", "draft_model")
_SWITCHES = {"lookup", "no_prefix_reuse"}
_IS_ON = {"": True, "1": True, "true": True, "0": False, "false": False}
_NAMES = (*LEAST, *_WORDS, *_SWITCHES, "max_wait_time")


def settings_in(text: str) -> EngineSettings:
    """Parses the settings in `MODEL?name=value&...`, named as the flags of `redline engine`.

    Raises ConfigError for an unknown name or a value that is not valid.
    """
    model, _, query = text.partition("?")
    flags: dict[str, Any] = {}
    for name, _, value in (part.partition("=") for part in query.split("&") if part):
        known = name.replace("-", "_")
        if known not in _NAMES:
            raise ConfigError(
                f"engine:{model} has no setting {name}", hint=nearest(known, _NAMES) or _FORM
            )
        # This is not form-encoded, so a plus remains a plus.
        flags[known] = unquote(value)
    for name in _SWITCHES & flags.keys():
        value = flags.pop(name)
        if value not in _IS_ON:
            raise ConfigError(f"{values.flag_of(name)} is true or false, not {value}", hint=_FORM)
        if _IS_ON[value]:
            flags[name] = True
    return settings_of(model, flags)


def settings_of(model: str, flags: Flags) -> EngineSettings:
    """Returns the settings of the flags. Raises ConfigError that names the flag."""
    if not model:
        raise ConfigError("no model is named", hint=_FORM)
    numbers = {name: values.whole(flags, name, least) for name, least in LEAST.items()}
    words: dict[str, Any] = {name: flags[name] for name in _WORDS if name in flags}
    if "draft_model" in words:
        if not words["draft_model"]:
            raise ConfigError("--draft-model names no model", hint="leave it out")
        words["draft_model"] = expanduser(words["draft_model"])
    words |= {name: value for name, value in numbers.items() if value is not None}
    if "dtype" in words:
        words["dtype"] = values.choice(flags, "dtype", DTYPES)
    return EngineSettings(
        # No shell has processed what follows `engine:`.
        model=expanduser(model),
        max_wait_s=values.duration(flags, "max_wait_time", LONGEST_WAIT_S, may_be_0=True) or 0.0,
        has_lookup="lookup" in flags,
        reuses_prefixes="no_prefix_reuse" not in flags,
        **words,
    )
