"""The flags of the cache, and the settings that they make."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from redline.calls import Cache
from redline.cli.flags import Option
from redline.cli.values import Flags, flag_of
from redline.errors import ConfigError
from redline.run.object_url import local_path
from redline.run.options import cache_in

CACHE = "What is asked again"
# With one of these on the command line there is to be a cache.
_DETAILS = ("cache_size", "cache_sampled")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def _flag(text: str, *names: str, **settings: Any) -> Any:
    return Option(*names, help=text, section=CACHE, **settings)


CacheFlag = Annotated[
    bool,
    _flag(
        "Keep answers, and give them again to equal requests, in this run and in later ones. "
        "Only where they are determined: --temperature 0, a seed, or embeddings.",
        "--cache",
    ),
]
NoCacheFlag = Annotated[bool, _flag("Ask for every row, whatever redline.toml says.", "--no-cache")]
CacheDirFlag = Annotated[
    str | None,
    _flag("--cache in this folder. Default: redline/answers in ~/.cache.", metavar="DIR"),
]
CacheSizeFlag = Annotated[
    str | None,
    _flag(
        "Most bytes to keep, such as 500m; what was not used for longest goes. Default 1g.",
        metavar="SIZE",
    ),
]
CacheSampledFlag = Annotated[
    bool,
    _flag("Keep sampled answers, too: equal requests then have one answer.", "--cache-sampled"),
]


def cache_of(flags: Flags, stated: Flags, environ: Mapping[str, str]) -> Cache | None:
    """The cache that the flags ask for, None for none. Raises ConfigError.

    stated: those of them that stand on the command line.
    """
    if "no_cache" in flags:
        if "no_cache" in stated and ("cache" in stated or "cache_dir" in stated):
            raise ConfigError("--cache and --no-cache exclude each other", hint="leave one out")
        if "cache" not in stated and "cache_dir" not in stated:
            return None
    if "cache" not in flags and "cache_dir" not in flags:
        for name in _DETAILS:
            if name in stated:
                raise ConfigError(f"{flag_of(name)} needs --cache", hint="add --cache")
        return None
    size = _size(flags)
    folder = flags.get("cache_dir")
    cache = Cache(
        folder=None if folder is None else os.path.expanduser(local_path(folder)),
        includes_sampled="cache_sampled" in flags,
        **({} if size is None else {"max_bytes": size}),
    )
    return cache_in(cache, environ)


def _size(flags: Flags) -> int | None:
    """Bytes, None where the flag is not given. Raises ConfigError."""
    if "cache_size" not in flags:
        return None
    text = flags["cache_size"].strip()
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--cache-size is not a size: {text}", hint="write it like 500m or 2g")
    return round(float(match[1]) * _FACTORS[match[2].lower()])
