"""Finds near-duplicates among texts with an index.

The similarity of two texts is the Jaccard index of their runs of three words: the runs in both
texts as a share of the runs in either. Case and punctuation do not count. In a script
without spaces, each character is a word. A text of fewer than three words is one run.

MinHash (Broder 1997) with locality-sensitive hashing finds candidates, which are then compared run
by run. So texts below the threshold are practically never reported as near-duplicates. A
pair exactly at the threshold is missed with a probability of at most 1 in 10,000, a more similar
pair far less often.
"""

from __future__ import annotations

import math
import re
from array import array
from hashlib import blake2b
from typing import Any

from redline.sources import extra

# Thai, Lao, Burmese, Khmer, kana, and the ideographs of planes 0, 2 and 3.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_NO_SPACES += "\U00020000-\U0003ffff"
# Accents, points and vowel signs of Latin, Hebrew, Arabic, and the scripts of India and Sri Lanka,
# which `\w` does not match.
_MARKS = "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
_MARKS += "\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
_LETTERS = rf"[^\W{_NO_SPACES}]"
_WORDS = re.compile(rf"[{_NO_SPACES}]|{_LETTERS}+(?:[{_MARKS}]+{_LETTERS}*)*")
_RUN_WORDS = 3
_PERMUTATIONS = 128
_MOST_MISSED = 1e-4
# The library requires at least two bands.
_LONGEST_BAND = _PERMUTATIONS // 2


class NearDuplicates:
    """An index of texts. similarity: the threshold for near-duplicates, 0.1 to 1.

    Uses about 9 kB of memory per text plus 4 bytes per word, less for a higher similarity. Not
    thread-safe. Raises ConfigError if the package datasketch is missing.
    """

    def __init__(self, similarity: float) -> None:
        instead = "keep them with --similarity off"
        datasketch = extra("datasketch", "synth", "finding near-duplicates", instead)
        self._similarity = similarity
        band = longest_band(similarity)
        self._index = datasketch.MinHashLSH(
            num_perm=_PERMUTATIONS, params=(_PERMUTATIONS // band, band)
        )
        # Drawing the permutations takes longer than hashing a text, so each text gets a copy of
        # this MinHash. The runs are already hashed, and `int` leaves the hashes as they are.
        self._empty: Any = datasketch.MinHash(num_perm=_PERMUTATIONS, hashfunc=int)
        self._texts: list[tuple[int, array[int]]] = []

    def add(self, text: str, number: int) -> int | None:
        """Adds the text and returns None, or returns the number of its first near-duplicate.

        number: identifies the text. A near-duplicate is not added.
        """
        runs, sketch = self._read(text)
        found = frozenset(runs)
        places: list[int] = sorted(self._index.query(sketch))
        for place in places:
            other, theirs = self._texts[place]
            common = len(found.intersection(theirs))
            if common / (len(found) + len(theirs) - common) >= self._similarity:
                return other
        self._take(number, runs, sketch)
        return None

    def keep(self, text: str, number: int) -> None:
        """Adds the text, even if it is a near-duplicate."""
        self._take(number, *self._read(text))

    def _read(self, text: str) -> tuple[array[int], Any]:
        """Returns the hashes of the text's runs, and their MinHash."""
        # With 32-bit hashes, about one in 10,000 texts of a thousand runs has a collision.
        runs = array("I", {_hash(run) for run in runs_of(text)})
        sketch = self._empty.copy()
        sketch.update_batch(runs)
        return runs, sketch

    def _take(self, number: int, runs: array[int], sketch: Any) -> None:
        self._index.insert(len(self._texts), sketch)
        self._texts.append((number, runs))


def runs_of(text: str) -> set[str]:
    """Returns the runs of words in a text; a text without words has one run, which is empty."""
    words = _WORDS.findall(text.casefold())
    last = max(1, len(words) - _RUN_WORDS + 1)
    return {" ".join(words[at : at + _RUN_WORDS]) for at in range(last)}


def word_count(text: str) -> int:
    """Returns the number of words in a text, which is split as in `runs_of`."""
    return len(_WORDS.findall(text))


def fewest_words(similarity: float) -> float:
    """Returns the number of words at which a copy with one changed word has this similarity.

    Changing one word in the middle changes 3 of n - 2 runs: of n + 1 distinct runs, n - 5 are in
    both texts. Returns infinity for a similarity of 1.
    """
    if similarity >= 1:
        return math.inf
    # Rounded, since 5.8 / 0.2 is slightly above 29 as a float.
    return math.ceil(round((5 + similarity) / (1 - similarity), 9))


def longest_band(similarity: float) -> int:
    """Returns the number of hashes that must agree for two texts to be compared.

    Longer bands cause fewer needless comparisons: a pair of similarity s is compared with
    probability 1 - (1 - s^r)^(128 / r) for bands of r hashes.
    """
    bands = range(1, _LONGEST_BAND + 1)
    return max(
        (r for r in bands if (1 - similarity**r) ** (_PERMUTATIONS // r) <= _MOST_MISSED),
        default=1,
    )


def _hash(run: str) -> int:
    data = run.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=4).digest(), "big")
