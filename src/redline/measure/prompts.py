"""Meaningless prompts of a given length. From 8 tokens on, two practically never begin alike."""

from __future__ import annotations

from random import Random

# With the space before it, each is one token to the usual tokenizers, and to the simulated
# provider, which counts four bytes as a token.
_WORDS = (
    "the and for not you all can had her was one our out day get has him his how man new now old "
    "see two way who did its let put say she too use air are but car end eye far few got job key "
    "law lot low own run set"
)
# Random words at the beginning: 52^8 is 5e13 beginnings, so that no prefix cache has one of them.
_OWN = 8


class Prompts:
    """A generator of prompts; the same seed gives the same sequence."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(f"prompts {seed}")
        self._words = _WORDS.split()
        self._tails = dict[int, str]()

    def next(self, tokens: int) -> str:
        """Returns a prompt of about `tokens` tokens, 1 or more, besides those of a chat's frame."""
        own = self._random.choices(self._words, k=min(tokens, _OWN))
        left = tokens - len(own)
        if left not in self._tails:
            if len(self._tails) >= 1000:
                self._tails.clear()
            tail = self._random.choices(self._words, k=left)
            self._tails[left] = " ".join(["", *tail])
        return " ".join(own) + self._tails[left]
