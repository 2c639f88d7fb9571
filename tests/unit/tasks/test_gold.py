"""How tags agree with gold: the figures of scikit-learn."""

from __future__ import annotations

import csv
import io
import random

import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from redline.errors import ConfigError
from redline.tasks.tag import Agreement, agreement

LABELS = [f"label {number}" for number in range(12)]


def pairs_of(seed: int) -> list[tuple[str, str]]:
    """Pairs of gold and said: some labels are never gold, some never said, some never right."""
    draw = random.Random(seed)
    golds, saids = draw.sample(LABELS, draw.randint(1, 9)), draw.sample(LABELS, draw.randint(1, 9))
    pairs = []
    for _ in range(draw.randint(1, 300)):
        gold = draw.choice(golds)
        is_right = gold in saids and draw.random() < 0.6
        pairs.append((gold, gold if is_right else draw.choice(saids)))
    return pairs


def test_the_figures_are_those_of_scikit_learn() -> None:
    for seed in range(60):
        pairs = pairs_of(seed)
        found = agreement(iter(pairs))
        gold, said = zip(*pairs, strict=True)
        labels = sorted({*gold, *said})
        assert found.labels == labels
        assert found.matrix() == confusion_matrix(gold, said, labels=labels).tolist()
        expected = f1_score(gold, said, average="macro", zero_division=0.0)
        assert found.macro_f1 == pytest.approx(expected, abs=1e-12)
        assert found.total == len(pairs)
        assert found.correct / found.total == pytest.approx(accuracy_score(gold, said))


def test_nothing_compared_is_nothing_right() -> None:
    assert agreement([]) == Agreement({}, [])
    assert (agreement([]).total, agreement([]).correct, agreement([]).macro_f1) == (0, 0, 0.0)


def test_the_matrix_reads_back_from_its_csv() -> None:
    found = agreement([("a, b", "a, b"), ("a, b", 'c "d"'), ('c "d"', "line\rbreak")])
    read = list(csv.reader(io.StringIO(found.as_csv())))
    assert read[0] == ["gold \\ said", *found.labels]
    assert [row[0] for row in read[1:]] == found.labels
    assert [list(map(int, row[1:])) for row in read[1:]] == found.matrix()


def test_the_most_frequent_confusions_come_first() -> None:
    found = agreement([("a", "b")] * 3 + [("b", "a")] * 5 + [("a", "a")] * 9 + [("a", "c")] * 3)
    assert found.confusions(2) == [(("b", "a"), 5), (("a", "b"), 3)]


def test_a_column_of_anything_is_refused_before_it_fills_the_memory() -> None:
    known = [str(number) for number in range(2000)]
    assert agreement(((name, name) for name in known), known).correct == 2000
    with pytest.raises(ConfigError, match=r"more than 1,000 different values are not labels"):
        agreement((f"text {number}", "a") for number in range(10**9))
