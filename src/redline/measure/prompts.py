"""Prompts of a stated length that mean nothing, no two of which begin alike."""

from __future__ import annotations

from random import Random

# Each is one token of the usual tokenizers with the space before it, and so it is of the simulated
# provider, which counts four bytes as a token.
_WORDS = (
    *("the", "and", "for", "not", "you", "all", "can", "had", "her", "was", "one", "our", "out"),
    *("day", "get", "has", "him", "his", "how", "man", "new", "now", "old", "see", "two", "way"),
    *("who", "did", "its", "let", "put", "say", "she", "too", "use", "air", "are", "but", "car"),
    *("end", "eye", "far", "few", "got", "job", "key", "law", "lot", "low", "own", "run", "set"),
)
# Words at the beginning that differ: 52^8 are 5e13 beginnings, so none is met in a prefix cache.
_OWN = 8


class Prompts:
    """Prompts by number; the same seed gives the same ones."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(f"prompts {seed}")
        self._tails = dict[int, str]()

    def next(self, tokens: int) -> str:
        """Another prompt of about this many tokens, 1 or more; a chat's frame comes on top."""
        own = self._random.choices(_WORDS, k=min(tokens, _OWN))
        left = tokens - len(own)
        if left not in self._tails:
            if len(self._tails) >= 1000:
                self._tails.clear()
            self._tails[left] = "".join(f" {word}" for word in self._random.choices(_WORDS, k=left))
        return " ".join(own) + self._tails[left]
