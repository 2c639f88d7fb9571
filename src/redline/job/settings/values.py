"""Reads the values of flags and settings, such as numbers, durations and pairs, from their texts.

A reader takes a value and the flag's name for errors, and returns the value in the form that an
option has. It raises ConfigError for a value that it cannot use. Settings in redline.toml are
first converted to the form of flags, so the same readers and errors serve both.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from redline.errors import ConfigError, nearest
from redline.limits import Rate, parse_count, parse_rate
from redline.limits.rule import SECONDS, span
from redline.store import local_path

MAX_SECONDS = 31 * 86_400.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|min|m|h|d)?")
_TIMES, _LONGEST_EXAMPLE_S = "for example 30, 500ms, 5m or 6h", 6 * 3600.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_ADDRESS = re.compile(
    r"(?:(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]\s]+)):)?(?P<port>[0-9]{1,5})"
)
_MOST_PORT = 65_535
_STDOUT = "-"

Flags = Mapping[str, Any]
Reader = Callable[[Any, str], Any]


def flag_of(name: str) -> str:
    """Returns the flag of a key: `--max-retries` for `max_retries`."""
    return f"--{name.replace('_', '-')}"


def plain(stated: Any, flag: str) -> Any:
    """Returns the value unchanged: it needs no conversion, or is checked elsewhere."""
    return stated


def duration(text: str, flag: str, most_s: float = MAX_SECONDS, *, may_be_0: bool = False) -> float:
    """Returns the seconds in `30`, `1.5s`, `500ms`, `5m`, `6h` or `2d`, above 0 and up to `most_s`.

    may_be_0: whether 0 is accepted, too.
    """
    text = text.strip()
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{flag} is not a time: {text}", hint=_TIMES)
    value_s = float(match[1]) * SECONDS[match[2] or "s"]
    if value_s > most_s or not (value_s or may_be_0):
        least = "0 s or more" if may_be_0 else "above 0 s"
        what = f"{flag} must be {least} and at most {span(most_s)}, not {text}"
        raise ConfigError(
            what, hint=_TIMES if most_s >= _LONGEST_EXAMPLE_S else "for example 500ms"
        )
    return value_s


def whole(text: str, flag: str, least: int, most: int = 10**15) -> int:
    """Returns a whole number from `least` to `most`."""
    text = text.strip()
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(
            f"{flag} is not a whole number: {text}", hint="for example 8 or 1000"
        ) from None
    if not least <= value <= most:
        bounds = f"at least {least:,}" if most == 10**15 else f"{least:,} to {most:,}"
        raise ConfigError(f"{flag} must be {bounds}, not {text}")
    return value


def whole_or(text: str, flag: str, word: str, least: int, most: int) -> int | str:
    """Returns a whole number from `least` to `most`, or `word` itself."""
    return word if text == word else whole(text, flag, least, most)


def number(text: str, flag: str) -> float:
    """Returns a finite number."""
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{flag} is not a number: {text}", hint="for example 0 or 0.8")
    return value


def one_or_more(texts: Sequence[str], flag: str) -> str | tuple[str, ...]:
    """Returns the text if there is only one, otherwise all of them."""
    return texts[0] if len(texts) == 1 else tuple(texts)


def weight(text: str, flag: str) -> float:
    """Returns any number; `Endpoint` checks its range."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"weight must be a number above 0, not {text}", hint="for example 1 or 0.5"
        ) from None


def share(text: str, flag: str) -> float:
    """Returns a number above 0 and at most 1."""
    found = number(text, flag)
    if not 0 < found <= 1:
        raise ConfigError(
            f"{flag} must be above 0 and at most 1, not {found:g}",
            hint="0.8 uses 80 % of each rate and leaves the rest for others",
        )
    return found


def as_share(stated: object) -> float:
    """Returns 0.2 for `20%`, `0.2` or 0.2, and NaN for other text. The range is not checked."""
    text = str(stated).strip()
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        return math.nan
    return value / 100 if text.endswith("%") else value


def part(stated: float | str, flag: str) -> float:
    """Returns a share above 0 and at most 1, from `20%` or 0.2."""
    value = as_share(stated)
    if not 0 < value <= 1:
        raise ConfigError(
            f"{flag} must be above 0 % and at most 100 %, not {stated}", hint="for example 20%"
        )
    return value


def rates(texts: Sequence[str], flag: str) -> tuple[Rate, ...]:
    """Returns the rates of a repeatable flag such as `--requests 2/1s`."""
    return tuple(parse_rate(text, flag) for text in texts)


def address(stated: int | str, flag: str) -> tuple[str, int]:
    """Returns the host and port in `9400`, `0.0.0.0:9400` or `[::1]:0`; default host: 127.0.0.1."""
    text = str(stated)
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > _MOST_PORT:
        raise ConfigError(
            f"{flag} is not a port: {text}",
            hint=f"for example 9400 or 0.0.0.0:9400; a port is at most {_MOST_PORT}, and 0 picks "
            "a free one",
        )
    return (match["ipv6"] or match["host"] or "127.0.0.1", int(match["port"]))


def count(stated: int | str, flag: str) -> int:
    """Returns a whole number of at least 1, from `500` or `2m`."""
    return parse_count(str(stated), flag)


def size(text: str, flag: str) -> int:
    """Returns the number of bytes in `500m` or `2g`; k, m, g and t are powers of 1,000."""
    text = text.strip()
    match = _SIZE.fullmatch(text)
    size_bytes = math.inf if match is None else float(match[1]) * _FACTORS[match[2].lower()]
    if size_bytes == math.inf:
        raise ConfigError(f"{flag} is not a size: {text}", hint="for example 500m or 2g")
    return round(size_bytes)


def local(text: str, flag: str) -> str:
    """Returns a path on this machine, with `~` and `file://` resolved."""
    return os.path.expanduser(local_path(text))


def path(text: str, flag: str) -> Path:
    """Returns the text as a path."""
    return Path(text)


def place(text: str, flag: str) -> str | None:
    """Returns the path, with `~` resolved, or the URL; None for `-`, which is stdout."""
    return None if text == _STDOUT else os.path.expanduser(text)


def words(texts: Sequence[str]) -> tuple[str, ...]:
    """Splits each text at its commas, and returns all words that are not empty."""
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


def text_or_file(value: str, flag: str) -> str:
    """Returns the text itself, or the contents of the file that `@FILE` names."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{flag} cannot read {value[1:]}: {reason_of(error)}",
            hint="@FILE reads the template from a file",
        ) from error


def reason_of(error: Exception) -> str:
    """Returns the reason why a text file could not be read."""
    return (error.strerror if isinstance(error, OSError) else "it is not UTF-8") or str(error)


def pairs(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """Returns the values of `--param NAME=VALUE`, each as JSON if it is JSON, otherwise as text."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip()
        if not equals or not name:
            raise ConfigError(f"{flag} is not NAME=VALUE: {text}", hint="for example seed=7")
        if name in found:
            raise _named_twice(flag, name)
        try:
            found[name] = msgspec.json.decode(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found


def headers(lines: Sequence[str], flag: str) -> dict[str, str]:
    """Returns the headers of `--header 'NAME: VALUE'`.

    Errors do not show the value: it may be a secret.
    """
    found: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        name = key.strip()
        if not colon or not name:
            raise ConfigError(
                f"{flag} is not NAME: VALUE",
                hint=f"for example {flag} 'X-Team: search'",
            )
        # Header names are case-insensitive (RFC 9110, 5.1).
        if name.lower() in map(str.lower, found):
            raise _named_twice(flag, name)
        found[name] = value.strip()
    return found


def _named_twice(flag: str, name: str) -> ConfigError:
    return ConfigError(f"{flag} sets {name} twice", hint="leave one out")


def choice(text: str, flag: str, known: Sequence[str]) -> str:
    """Returns the text if it is one of `known`."""
    text = text.strip()
    if text in known:
        return text
    what = f"{flag} must be one of {', '.join(known)}, not {text}"
    raise ConfigError(what, hint=nearest(text, known))


def choices(texts: Sequence[str], flag: str, known: Sequence[str]) -> tuple[str, ...]:
    """Splits each text at its commas, and returns all words; each must be one of `known`."""
    return tuple(choice(text, flag, known) for text in words(texts))
