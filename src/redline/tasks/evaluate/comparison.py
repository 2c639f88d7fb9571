"""Compares two evaluations of the same questions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import msgspec

from redline.errors import ConfigError
from redline.journal import Output
from redline.journal import manifest as manifests
from redline.process import counted
from redline.tasks.evaluate.scores import Graded, base_name, failed_lines, graded, questions_of
from redline.tasks.evaluate.statistics import Paired, paired
from redline.tasks.evaluate.text import summary

_MOST_SHOWN = 5


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two evaluations of the same questions.

    first, second: paths of the results. pairs: statistics of the questions answered in both.

    won, lost: at most five questions each, by row number in the second results: `won` if the second
    results have the larger share of right answers, `lost` if the first have it.
    first_answers, second_answers: the number of answers to the questions of `pairs`. only_first,
    only_second: the number of questions answered in only one of the two.
    """

    first: str
    second: str
    pairs: Paired
    won: list[int]
    lost: list[int]
    first_answers: int
    second_answers: int
    only_first: int
    only_second: int

    def text(self) -> str:
        """Returns the summary for a reader, then `name: value` lines for a program."""
        pairs = self.pairs
        figures = {
            "only_first": pairs.only_first,
            "only_second": pairs.only_second,
            "p": f"{pairs.p:.6g}",
            "difference": f"{pairs.difference:+.6f}",
        }
        return summary([self.words()], figures)

    def words(self) -> str:
        """Returns the summary for a reader, without a trailing newline."""
        pairs = self.pairs
        width = max(len(self.first), len(self.second))
        lines = [
            f"{name:{width}}  {share:6.1%}  {self._counted(share, answers)}"
            for name, share, answers in (
                (self.first, pairs.first, self.first_answers),
                (self.second, pairs.second, self.second_answers),
            )
        ]
        low, high = (100 * end for end in pairs.interval)
        test = "McNemar" if pairs.is_mcnemar else "sign-flip test"
        lines += [
            "",
            self._counts(),
            f"difference {100 * pairs.difference:+.1f} points (95 %: {low:+.1f} to {high:+.1f}), "
            f"{test} p = {pairs.p:.2g}",
            self._judgement(),
        ]
        for which, rows in (("second", self.won), ("first", self.lost)):
            if rows:
                lines.append(f"the {which} is better in rows such as {', '.join(map(str, rows))}")
        for name, count in ((self.first, self.only_first), (self.second, self.only_second)):
            if count:
                are = counted(count, "question is", "questions are")
                lines.append(f"{are} only in {name}, and not compared")
        return "\n".join(lines)

    def _counted(self, share: float, answers: int) -> str:
        questions = self.pairs.questions
        if answers == questions:
            return f"{round(share * questions):,} of {questions:,}"
        return f"mean of {counted(questions, 'question')}, {counted(answers, 'answer')}"

    def _counts(self) -> str:
        pairs = self.pairs
        if self.first_answers == self.second_answers == pairs.questions:
            return (
                f"both right {pairs.both:,}, neither {pairs.neither:,}, only the first "
                f"{pairs.only_first:,}, only the second {pairs.only_second:,}"
            )
        equal = pairs.questions - pairs.only_first - pairs.only_second
        return (
            f"questions with more right answers: {pairs.only_first:,} in the first, "
            f"{pairs.only_second:,} in the second; {equal:,} equal"
        )

    def _judgement(self) -> str:
        if self.pairs.p >= 0.05:
            return (
                "no significant difference: chance alone makes one at least this large in 5 % of "
                "cases or more"
            )
        better = self.second if self.pairs.difference > 0 else self.first
        return (
            f"{better} is better: chance alone makes a difference at least this large in less than "
            "5 % of cases"
        )


def compare(first: Path, second: Path) -> Comparison:
    """Compares two results files question by question; all answers to a question count together.

    Raises ConfigError if the files have no question in common or a file is not from an evaluation,
    and JournalError for a damaged file.
    """
    ones, others = _Questions(first), _Questions(second)
    common = {
        question: found
        for question in ones.answers
        if (found := ones.same_in(others, question)) is not None
    }
    if not common:
        raise ConfigError(
            f"{first} and {second} have no question in common",
            hint="compare two evaluations of the same data",
        )
    shares = {one: (ones.share(one), others.share(other)) for one, other in common.items()}
    won = sorted(others.row(common[one]) for one, (a, b) in shares.items() if a < b)
    lost = sorted(others.row(common[one]) for one, (a, b) in shares.items() if a > b)
    return Comparison(
        first=str(first),
        second=str(second),
        pairs=paired(Counter(shares.values())),
        won=won[:_MOST_SHOWN],
        lost=lost[:_MOST_SHOWN],
        first_answers=sum(len(ones.answers[one]) for one in common),
        second_answers=sum(len(others.answers[other]) for other in common.values()),
        only_first=len(ones.answers) - len(common),
        only_second=len(others.answers) - len({*common.values()}),
    )


class _Questions:
    """The answers of a results file, by question (see `questions_of`).

    Failed samples are not answers, but their hashes identify a question.
    """

    def __init__(self, path: Path) -> None:
        output = Output.at(path)
        manifest = manifests.load(output)
        # Without a manifest, the number of samples is unknown.
        self._may_have_samples = manifest is None or (manifest.settings.get("samples") or 1) > 1
        self.answers: dict[str | int, list[Graded]] = {}
        self._questions: dict[str, str | int] = {}
        self._named: dict[str, str | int] = {}
        self._hashes: dict[str | int, list[str]] = {}
        answers, failed = graded(path), failed_lines(output.failed_path)
        question_of = questions_of(manifest, (*answers, *failed))
        for answer in answers:
            question = question_of(answer)
            self.answers.setdefault(question, []).append(answer)
            if answer.custom_id:
                self._named[self._base(answer.custom_id)] = question
        for line in (*answers, *failed):
            question = question_of(line)
            self._questions[line.hash] = question
            self._hashes.setdefault(question, []).append(line.hash)

    def same_in(self, others: _Questions, question: str | int) -> str | int | None:
        """Returns this question in `others`; None if it has no answer there."""
        known = others._questions
        found = next((known[each] for each in self._hashes[question] if each in known), None)
        if found is None:
            # One run asked once, the other several times: the custom_ids of samples differ.
            name = self.answers[question][0].custom_id
            found = others._named.get(self._base(name)) if name else None
        return found if found in others.answers else None

    def row(self, question: str | int) -> int:
        """Returns the row number of the question's first answer."""
        return self.answers[question][0].row

    def share(self, question: str | int) -> Fraction:
        """Returns the share of right answers among all answers to this question."""
        answers = self.answers[question]
        return Fraction(sum(answer.correct for answer in answers), len(answers))

    def _base(self, name: str) -> str:
        """Returns the question's own name, without the number of a sample."""
        return base_name(name) if self._may_have_samples else name
