"""Values of flags and settings: text becomes numbers, times and pairs, or an error that names them.

Whatever stands in redline.toml arrives here as the text that the flag would have, so that both
have the same form and the same errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from redline.errors import ConfigError, nearest
from redline.limits import Rate, parse_rate
from redline.limits import rate_per as rate_of

MAX_SECONDS = 31 * 86_400.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 1e-3, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TIMES = "write it like 30, 500ms, 5m or 6h"

Flags = Mapping[str, Any]


def flag_of(name: str) -> str:
    """`--max-retries` of `max_retries`."""
    return f"--{name.replace('_', '-')}"


def duration(
    flags: Flags, name: str, most_s: float = MAX_SECONDS, *, may_be_0: bool = False
) -> float | None:
    """Seconds, above 0 and at most `most_s`, from `30`, `1.5s`, `500ms`, `5m`, `6h` or `2d`.

    None where the flag is not given. Raises ConfigError.
    """
    if name not in flags:
        return None
    text = flags[name].strip()
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{flag_of(name)} is not a time: {text}", hint=_TIMES)
    value_s = float(match[1]) * _SECONDS[match[2]]
    if value_s > most_s or not (value_s or may_be_0):
        least = "0 s or more" if may_be_0 else "above 0 s"
        most = f"{most_s / 3600:g} h" if most_s >= 3600 else f"{most_s:g} s"
        what = f"{flag_of(name)} must be {least} and at most {most}, not {text}"
        raise ConfigError(what, hint=_TIMES)
    return value_s


def whole(flags: Flags, name: str, least: int, most: int = 10**15) -> int | None:
    """A whole number within bounds, None where the flag is not given. Raises ConfigError."""
    if name not in flags:
        return None
    text = flags[name].strip()
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(
            f"{flag_of(name)} is not a whole number: {text}", hint="write it like 8 or 1000"
        ) from None
    if not least <= value <= most:
        bounds = f"at least {least:,}" if most == 10**15 else f"{least:,} to {most:,}"
        raise ConfigError(f"{flag_of(name)} must be {bounds}, not {text}")
    return value


def number(flags: Flags, name: str) -> float | None:
    """A finite number, None where the flag is not given. Raises ConfigError."""
    if name not in flags:
        return None
    text = flags[name].strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{flag_of(name)} is not a number: {text}", hint="write it like 0 or 0.8")
    return value


def rates(flags: Flags, name: str) -> list[Rate]:
    """The rates of a repeatable flag such as `--requests 2/1s`."""
    return [parse_rate(text, flag_of(name)) for text in flags.get(name, ())]


def rate_per(flags: Flags, name: str, window_s: float) -> list[Rate]:
    """The rate of a short form such as `--rpm 500`, or none. Raises ConfigError."""
    return [rate_of(flags[name], window_s, flag_of(name))] if name in flags else []


def words(flags: Flags, name: str) -> list[str]:
    """The words of a repeatable flag, commas dividing them."""
    texts = flags.get(name, ())
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def text_or_file(flags: Flags, name: str) -> str | None:
    """The text itself, or that of the file which `@FILE` names. Raises ConfigError."""
    value: str | None = flags.get(name)
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"{flag_of(name)} cannot read {value[1:]}: {reason}",
            hint="@FILE reads the template from a file",
        ) from error


def pairs(flags: Flags, name: str) -> dict[str, Any]:
    """The values of `--param NAME=VALUE`, each as JSON where it is JSON, else as text."""
    found = {}
    for text in flags.get(name, ()):
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"{flag_of(name)} is not NAME=VALUE: {text}", hint="write it like seed=7"
            )
        try:
            found[key.strip()] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError):
            found[key.strip()] = value
    return found


def headers(flags: Flags, name: str) -> dict[str, str]:
    """The headers of `--header 'NAME: VALUE'`. The value is not shown: it may be a secret."""
    found = {}
    for line in flags.get(name, ()):
        key, colon, value = line.partition(":")
        if not colon or not key.strip():
            raise ConfigError(
                f"{flag_of(name)} is not NAME: VALUE",
                hint=f"write it like {flag_of(name)} 'X-Team: search'",
            )
        found[key.strip()] = value.strip()
    return found


def choice(flags: Flags, name: str, known: Sequence[str]) -> str | None:
    """One of `known`, None where the flag is not given. Raises ConfigError."""
    if name not in flags:
        return None
    text: str = flags[name].strip()
    _check_choice(name, text, known)
    return text


def choices(flags: Flags, name: str, known: Sequence[str]) -> list[str]:
    """Some of `known`, commas dividing them. Raises ConfigError."""
    found = words(flags, name)
    for text in found:
        _check_choice(name, text, known)
    return found


def _check_choice(name: str, text: str, known: Sequence[str]) -> None:
    if text not in known:
        raise ConfigError(
            f"{flag_of(name)} is one of {', '.join(known)}, not {text}", hint=nearest(text, known)
        )
