"""Near-duplicates against all pairs compared one by one."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import combinations

import pytest

from redline.errors import ConfigError
from redline.tasks.synth import NearDuplicates, longest_band, runs_of

WORDS = [f"w{number}" for number in range(60)]


def similarity(one: str, other: str) -> float:
    """The Jaccard index of the runs of three words, for texts of plain words and single spaces."""
    runs = []
    for text in (one, other):
        words = text.split()
        runs.append({tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))})
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def texts_of(seed: int, count: int) -> list[str]:
    """Texts of 3 to 90 words, many of them an earlier one with 0 to 15 words changed or lost."""
    rng = random.Random(seed)
    texts: list[str] = []
    for _ in range(count):
        if texts and rng.random() < 0.6:
            words = rng.choice(texts).split()
            for _ in range(rng.choice((0, 1, 1, 2, 4, 8, 15))):
                place = rng.randrange(len(words))
                words[place : place + 1] = rng.choices(WORDS, k=rng.choice((0, 1, 1, 2)))
                words = words or ["alone"]
        else:
            words = rng.choices(WORDS, k=rng.randint(3, 90))
        texts.append(" ".join(words))
    return texts


def kept(index: NearDuplicates, texts: Sequence[str]) -> list[int]:
    """The places of the texts that were taken in."""
    return [place for place, text in enumerate(texts) if index.add(text, place) is None]


def kept_by_pairs(texts: Sequence[str], least: float) -> list[int]:
    places: list[int] = []
    for place, text in enumerate(texts):
        if all(similarity(text, texts[other]) < least for other in places):
            places.append(place)
    return places


@pytest.mark.slow
@pytest.mark.parametrize("least", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_texts_kept_are_those_that_all_pairs_say(seed: int, least: float) -> None:
    texts = texts_of(seed, 100)
    expected = kept_by_pairs(texts, least)
    assert 0.2 < len(expected) / len(texts) < 1
    assert kept(NearDuplicates(least), texts) == expected


def test_two_texts_are_judged_alike_in_either_order() -> None:
    texts = texts_of(3, 12)
    for pair in combinations(texts, 2):
        judged = [kept(NearDuplicates(0.6), ordered) for ordered in (pair, pair[::-1])]
        assert judged[0] == judged[1]


def test_a_text_that_must_be_there_is_taken_in_and_told_by_its_number() -> None:
    index = NearDuplicates(0.8)
    text = " ".join(WORDS)
    index.keep(text, 5)
    index.keep(text, 6)
    assert index.add(text + " more", 7) == 5


def test_case_and_punctuation_do_not_count() -> None:
    index = NearDuplicates(1.0)
    assert index.add("The Quick, brown fox!", 1) is None
    assert index.add("the quick brown -- FOX", 2) == 1
    assert index.add("the quick brown dog", 3) is None


@pytest.mark.parametrize("text", ["", " \n", "!?", "one", "one two"])
def test_a_short_text_is_one_run(text: str) -> None:
    assert len(runs_of(text)) == 1
    index = NearDuplicates(0.8)
    assert index.add(text, 1) is None
    assert index.add(text, 2) == 1


def test_a_script_without_spaces_has_its_characters_for_words() -> None:
    assert runs_of("我喜欢喝茶") == {"我 喜 欢", "喜 欢 喝", "欢 喝 茶"}
    assert runs_of("tea 茶 tea") == {"tea 茶 tea"}


def test_vowel_signs_and_accents_are_part_of_their_word() -> None:
    assert runs_of("हिन्दी में, एक कहानी।") == {"हिन्दी में एक", "में एक कहानी"}
    assert runs_of("العَرَبِيَّة") == {"العَرَبِيَّة"}
    assert runs_of("cafe\u0301s") == {"cafe\u0301s"}


def test_no_text_breaks_it() -> None:
    index = NearDuplicates(0.8)
    for number, text in enumerate(["\ud800 lone", "\0", "é" * 10_000, "a " * 50_000]):
        assert index.add(text, number) is None


@pytest.mark.parametrize("least", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_a_band_misses_a_pair_once_in_10_000_at_most(least: float) -> None:
    band = longest_band(least)
    assert (1 - least**band) ** (128 // band) <= 1e-4


def test_a_missing_package_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(ConfigError) as caught:
        NearDuplicates(0.8)
    assert "pip install 'redline[synth]'" in caught.value.hint
