"""Invents stories: all different, but the same for the same question and seed.

Near-duplicates (see Stories) are the exception to both. Stories are assembled from lists of words,
so two other stories have few sequences of words in common.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from itertools import count
from random import Random

# Lists of words, each under the letter that represents one of its words in a sentence.
_WORDS = {
    letter: words.split()
    for letter, words in {
        "N": """
            Ada Bela Chandra Dunya Eamon Farid Greta Hana Ines Jonas Kofi Leila Marek Nadia Olaf
            Priya Quinn Rosa Soren Tariq Ulla Viktor Wanda Ximena Yusuf Zora Amara Boris Clara
            Dmitri Elena Fumiko
        """,
        "t": """
            lantern kettle map violin ladder compass letter umbrella clock basket mirror anchor
            whistle coat suitcase candle ribbon telescope spoon drum blanket ticket notebook button
            feather hammer key bicycle pocketwatch saddle teapot harp barrel chessboard kite wheel
            scarf bell lamp trunk
        """,
        "k": """
            broken silver borrowed crooked forgotten heavy painted quiet rusty small stolen strange
            tall tiny velvet wooden yellow ancient brass burnt careful cheap cold dusty empty folded
            golden hollow ivory jagged lost muddy narrow odd pale restless sharp simple tangled worn
        """,
        "p": """
            harbour orchard station cellar bridge market attic lighthouse quarry ferry library
            bakery windmill garden tunnel courtyard meadow theatre chapel canal rooftop stable
            forest kitchen museum pier valley workshop tower glacier island bazaar crossroads
            dockyard monastery schoolyard
        """,
        "d": """
            carried hid mended sold found followed traded polished buried counted dropped examined
            guarded handed inspected kicked lifted measured noticed opened packed questioned raised
            searched touched unwrapped visited watched wrapped admired bought chased dragged emptied
            fetched gathered
        """,
        "w": """
            yesterday later suddenly tomorrow slowly again afterwards eventually meanwhile nightly
            once finally quickly secretly carefully together alone twice sometimes nearby
        """,
    }.items()
}
# Each letter that is a key of _WORDS is replaced by a word from its list.
_SENTENCES = tuple(
    sentence.split(" ")
    for sentence in (
        "N d the k t w",
        "w N and N d a k t",
        "behind the p N d every k t",
        "N w d N with that k t",
        "the k p kept N w",
        "no t from the p was ever k",
        "N d k t after k t w",
        "under a k t N d the p",
    )
)
# A story is long enough to keep a similarity of at least 0.83 after three words have changed. The
# similarity is the Jaccard index of the word trigrams.
_LEAST_SENTENCES, _MOST_SENTENCES = 17, 22
_CHANGED_WORDS = 3
_REMEMBERED = 10_000


class Stories:
    """The stories of a simulated model.

    near_duplicates: the share of answers, 0 to 1, that repeat one of the last 10,000 stories with
    three words changed. seed: with a different seed, all stories are different.
    """

    def __init__(self, near_duplicates: float, seed: int) -> None:
        self._share = near_duplicates
        self._seed = seed
        self._told: deque[str] = deque(maxlen=_REMEMBERED)
        self._unseeded = count()

    def tell(self, question: str, seed: int | None) -> str:
        """Returns the story of a question and seed; without a seed, a new story each time.

        The earlier story that a near-duplicate repeats depends on the stories before it.
        """
        own = f"s{seed}" if seed is not None else f"u{next(self._unseeded)}"
        text = f"{self._seed} {own} {question}"
        key = blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        rng = Random(key)
        if rng.random() < self._share and self._told:
            return _changed(_story(self._told[rng.randrange(len(self._told))]), rng)
        self._told.append(key)
        return _story(key)


def _story(key: str) -> str:
    """Returns a story of 100 to 180 words, determined by the key alone."""
    rng = Random(f"story {key}")
    sentences = []
    for _ in range(rng.randint(_LEAST_SENTENCES, _MOST_SENTENCES)):
        words = [
            rng.choice(_WORDS[word]) if word in _WORDS else word for word in rng.choice(_SENTENCES)
        ]
        sentences.append(" ".join([words[0][:1].upper() + words[0][1:], *words[1:]]) + ".")
    return " ".join(sentences)


def _changed(story: str, rng: Random) -> str:
    """Returns the story with three words replaced by nouns."""
    words = story.split(" ")
    for place in rng.sample(range(len(words)), _CHANGED_WORDS):
        end = "." if words[place].endswith(".") else ""
        before = words[place].lower().rstrip(".")
        words[place] = rng.choice([thing for thing in _WORDS["t"] if thing != before]) + end
    return " ".join(words)
