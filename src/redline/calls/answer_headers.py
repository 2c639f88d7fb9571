"""An answer's headers, decoded only where somebody asks for them.

Most answers of a run have the same headers in the same order, and nobody reads more than a few of
them: the names are looked up once for all answers alike, and a value is decoded when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

# Servers have a few layouts each; one that makes up new names for every answer fills no memory.
_MOST_LAYOUTS = 256


class AnswerHeaders(Mapping[str, str]):
    """Headers by their names in lower case; repeated ones are joined by commas."""

    __slots__ = ("_pairs", "_places")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self._places = _places(tuple([name for name, _ in pairs]))

    def __getitem__(self, name: str) -> str:
        places = self._places[name]
        if len(places) == 1:
            return self._pairs[places[0]][1].decode("latin-1")
        return ", ".join(self._pairs[place][1].decode("latin-1") for place in places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """The header's value, `default` where there is none."""
        places = self._places.get(name)
        if places is None:
            return default
        return self._pairs[places[0]][1].decode("latin-1") if len(places) == 1 else self[name]


@lru_cache(maxsize=_MOST_LAYOUTS)
def _places(names: tuple[bytes, ...]) -> dict[str, tuple[int, ...]]:
    """Where each name stands."""
    found: dict[str, tuple[int, ...]] = {}
    for place, raw in enumerate(names):
        name = raw.decode("latin-1").lower()
        found[name] = (*found.get(name, ()), place)
    return found
