"""Measures how tags agree with gold labels: accuracy, macro F1 and the confusion matrix."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable

import msgspec

from redline.errors import ConfigError
from redline.tasks.tag.csv_lines import row_writer

# The maximum number of distinct labels outside the schema. A column with more distinct values does
# not contain labels, and the memory for the values must not grow with the rows.
MOST_OTHERS = 1000


class Agreement(msgspec.Struct, frozen=True):
    """The agreement of tags with gold labels.

    counts: the number of rows by (gold, said), the gold label and the tag. labels: all that occur
    as either, in alphabetical order.
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
        """The unweighted mean of the labels' F1, which is 0 for a label that is never right.

        The F1 of a label is 2 tp / (2 tp + fp + fn), which equals 2 tp / (gold + said). The mean is
        over the labels that occur, as in scikit-learn's f1_score with average="macro".
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
        """Returns the confusion matrix: rows are gold labels, columns tags, ordered as `labels`."""
        return [[self.counts.get((gold, said), 0) for said in self.labels] for gold in self.labels]

    def as_csv(self) -> str:
        """Returns the confusion matrix as CSV, with the labels as header and first column."""
        made = io.StringIO()
        write_row = row_writer(made)
        write_row(["gold \\ said", *self.labels])
        for label, row in zip(self.labels, self.matrix(), strict=True):
            write_row([label, *row])
        return made.getvalue()

    def confusions(self, most: int) -> list[tuple[tuple[str, str], int]]:
        """Returns at most `most` pairs of confused labels, the most frequent first.

        Each item is ((gold, said), number of rows).
        """
        wrong = [(pair, rows) for pair, rows in self.counts.items() if pair[0] != pair[1]]
        return sorted(wrong, key=lambda one: (-one[1], one[0]))[:most]


def agreement(pairs: Iterable[tuple[str, str]], known: Iterable[str] = ()) -> Agreement:
    """Counts the pairs (gold label, tag).

    known: the labels in the schema. Raises ConfigError if more than 1,000 other labels occur.
    """
    counts, labels = Counter[tuple[str, str]](), set(known)
    most = len(labels) + MOST_OTHERS
    for pair in pairs:
        if pair not in counts:
            labels.update(pair)
            if len(labels) > most:
                raise ConfigError(
                    f"more than {MOST_OTHERS:,} different values are not labels of the schema",
                    hint="name a column of labels, for example --gold category",
                )
        counts[pair] += 1
    return Agreement(dict(counts), sorted({label for pair in counts for label in pair}))
