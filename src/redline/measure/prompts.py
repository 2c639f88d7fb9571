"""Generates meaningless prompts of a given length.

Two prompts of 8 or more tokens from one generator practically never begin alike.
"""

from __future__ import annotations

from random import Random

# Each word, with the space before it, is one token for the usual tokenizers, and for the simulated
# provider, which counts four bytes as one token.
_WORDS = (
    "the and for not you all can had her was one our out day get has him his how man new now old "
    "see two way who did its let put say she too use air are but car end eye far few got job key "
    "law lot low own run set"
)
# Each prompt begins with this many random words of its own: there are 52^8 = 5e13 such beginnings,
# so a prefix cache has seen one of them only if the same seed was used before.
_OWN = 8


class Prompts:
    """A generator of prompts; the same seed gives the same sequence."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(f"prompts {seed}")
        self._words = _WORDS.split()
        self._tails = dict[int, str]()

    def next(self, tokens: int) -> str:
        """Returns a prompt of about `tokens` tokens, 1 or more, without the chat template's own."""
        own = self._random.choices(self._words, k=min(tokens, _OWN))
        left = tokens - len(own)
        if left not in self._tails:
            if len(self._tails) >= 1000:
                self._tails.clear()
            tail = self._random.choices(self._words, k=left)
            self._tails[left] = " ".join(["", *tail])
        return " ".join(own) + self._tails[left]
