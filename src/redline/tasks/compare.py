"""Two evaluations of the same questions, side by side."""

from __future__ import annotations

from pathlib import Path

import msgspec

from redline.errors import ConfigError
from redline.tasks.scores import graded
from redline.tasks.statistics import Paired, paired

_MOST_SHOWN = 5


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """first, second: names of the results. pairs: over the questions that both have answered.

    won, lost: rows that the second has right and the first has not, and the other way, the first
    few of each. only_first, only_second: questions that one of them alone has answered.
    """

    first: str
    second: str
    pairs: Paired
    won: list[int]
    lost: list[int]
    only_first: int
    only_second: int

    def text(self) -> str:
        """For a person, and then, line by line, for a program."""
        pairs = self.pairs
        rights = (pairs.both + pairs.only_first, pairs.both + pairs.only_second)
        width = max(len(self.first), len(self.second))
        lines = [
            f"{name:{width}}  {right / pairs.questions:6.1%}  {right:,} of {pairs.questions:,}"
            for name, right in zip((self.first, self.second), rights, strict=True)
        ]
        low, high = (100 * end for end in pairs.interval)
        lines += [
            "",
            f"both right {pairs.both:,}, neither {pairs.neither:,}, only the first "
            f"{pairs.only_first:,}, only the second {pairs.only_second:,}",
            f"difference {100 * pairs.difference:+.1f} points (95 %: {low:+.1f} to {high:+.1f}), "
            f"McNemar p = {pairs.p:.2g}",
            self._judgement(),
        ]
        for words, rows in (("won", self.won), ("lost", self.lost)):
            if rows:
                lines.append(f"{words}, for instance: rows {', '.join(map(str, rows))}")
        for name, count in ((self.first, self.only_first), (self.second, self.only_second)):
            if count:
                lines.append(f"{count:,} questions stand in {name} alone, and are left out")
        lines += [
            "",
            f"only_first: {pairs.only_first}",
            f"only_second: {pairs.only_second}",
            f"p: {pairs.p:.6g}",
            f"difference: {pairs.difference:+.6f}",
        ]
        return "\n".join(lines) + "\n"

    def _judgement(self) -> str:
        if self.pairs.p >= 0.05:
            return "no difference is shown: chance alone does this more than once in twenty times"
        better = self.second if self.pairs.difference > 0 else self.first
        return f"{better} is better: chance alone does this less than once in twenty times"


def compare(first: Path, second: Path) -> Comparison:
    """Pairs the answers of two results files by their questions.

    Raises ConfigError where they have none in common, and JournalError for a damaged file.
    """
    ones, others = ({a.hash: a for a in graded(path)} for path in (first, second))
    common = [key for key in ones if key in others]
    if not common:
        raise ConfigError(
            f"{first} and {second} have no question in common",
            hint="both must be evaluations of the same data",
        )
    outcomes = [(ones[key].correct, others[key].correct) for key in common]
    changed = sorted(
        (ones[key].row, right)
        for key, (left, right) in zip(common, outcomes, strict=True)
        if left != right
    )
    return Comparison(
        first=str(first),
        second=str(second),
        pairs=paired(outcomes),
        won=[row for row, right in changed if right][:_MOST_SHOWN],
        lost=[row for row, right in changed if not right][:_MOST_SHOWN],
        only_first=len(ones) - len(common),
        only_second=len(others) - len(common),
    )
