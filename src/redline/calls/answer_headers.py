"""An answer's headers, by their names in lower case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# Servers have a few layouts each; one that makes up new names for every answer fills no memory.
_MOST_LAYOUTS = 256
# No header's value holds one: the parsers refuse it (RFC 9110, 5.5).
_BETWEEN = b"\n"


def answer_headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case; repeated ones are joined by commas.

    Each call of a run makes them, so all of them are decoded in one go, and the names, which most
    answers have alike, are looked up.
    """
    if not pairs:
        return {}
    raw, values = zip(*pairs, strict=True)
    names = _names(raw)
    texts = _BETWEEN.join(values).decode("latin-1").split("\n")
    if len(names) == len(pairs):
        return dict(zip(names, texts, strict=True))
    joined: dict[str, str] = {}
    for name, value in pairs:
        plain, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[plain] = f"{joined[plain]}, {text}" if plain in joined else text
    return joined


@lru_cache(maxsize=_MOST_LAYOUTS)
def _names(raw: tuple[bytes, ...]) -> tuple[str, ...]:
    """The names in lower case, each once."""
    return tuple(dict.fromkeys(name.decode("latin-1").lower() for name in raw))
