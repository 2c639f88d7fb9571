"""How tags agree with gold labels: accuracy, macro F1, and what is taken for what."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable

import msgspec

from redline.errors import ConfigError

# Beyond the labels that a schema lists: a column with more different values holds no labels, and
# what is kept of them must not grow with the rows.
MOST_OTHERS = 1000


class Confusion(msgspec.Struct, frozen=True):
    """The number of rows with this gold label that were tagged as that."""

    rows: int
    gold: str
    said: str


class Agreement(msgspec.Struct, frozen=True):
    """How tags agree with gold labels.

    counts: of (gold, said). labels: every one that occurs as either, in alphabetical order.
    """

    counts: dict[tuple[str, str], int]
    labels: list[str]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def correct(self) -> int:
        return sum(rows for (gold, said), rows in self.counts.items() if gold == said)

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1, each counting alike; 0 for a label that is never right.

        F1 of a label is 2 tp / (2 tp + fp + fn), which is 2 tp / (gold + said). Over the labels
        that occur, as scikit-learn's f1_score with average="macro".
        """
        golds, saids = Counter[str](), Counter[str]()
        for (gold, said), rows in self.counts.items():
            golds[gold] += rows
            saids[said] += rows
        f1 = [
            2 * self.counts.get((label, label), 0) / (golds[label] + saids[label])
            for label in self.labels
        ]
        return sum(f1) / len(f1) if f1 else 0.0

    def matrix(self) -> list[list[int]]:
        """A row for each gold label, a column for each that was said, both as in `labels`."""
        return [[self.counts.get((gold, said), 0) for said in self.labels] for gold in self.labels]

    def as_csv(self) -> str:
        """The matrix under and beside its labels."""
        made = io.StringIO()
        writer = csv.writer(made, lineterminator="\n")
        writer.writerow(["gold \\ said", *self.labels])
        for label, row in zip(self.labels, self.matrix(), strict=True):
            writer.writerow([label, *row])
        return made.getvalue()

    def confusions(self, most: int) -> list[Confusion]:
        """The confused pairs of labels, the most frequent first."""
        wrong = [
            Confusion(n, gold, said) for (gold, said), n in self.counts.items() if gold != said
        ]
        return sorted(wrong, key=lambda one: (-one.rows, one.gold, one.said))[:most]


def agreement(pairs: Iterable[tuple[str, str]], known: Iterable[str] = ()) -> Agreement:
    """How often each gold label was tagged as what, from pairs of gold and said.

    known: the labels that the schema lists. Raises ConfigError if there are too many others.
    """
    counts, labels = Counter[tuple[str, str]](), set(known)
    most = len(labels) + MOST_OTHERS
    for pair in pairs:
        if pair not in counts:
            labels.update(pair)
            if len(labels) > most:
                raise ConfigError(
                    f"more than {MOST_OTHERS:,} different values are no labels of the schema",
                    hint="--gold names a column of labels, such as --gold category",
                )
        counts[pair] += 1
    return Agreement(dict(counts), sorted({label for pair in counts for label in pair}))
