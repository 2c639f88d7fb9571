"""Calculates the score of an evaluation from its results file.

The score covers all answers in the file, including those from before an interruption.
To find the samples of each question without a custom_id, the input is read again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from redline.errors import ConfigError, RedlineError
from redline.journal import Manifest, Output, keyed_rows, read_results
from redline.journal import manifest as manifests
from redline.process import counted
from redline.sources import opened_source
from redline.tasks.evaluate.evaluation import VERDICTS
from redline.tasks.evaluate.statistics import majority, pass_at, share_interval
from redline.tasks.evaluate.text import summary

_SAMPLE = re.compile(r"#\d+\Z")


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    row: int
    hash: str
    custom_id: str | None = None


class Failed(_Line, frozen=True):
    """A failed answer, as in a line of the failures file."""


class Graded(_Line, frozen=True):
    """A graded answer, as in a line of the results file."""

    correct: bool
    strict: bool
    verdict: str
    extracted: Any = None


class Scores:
    """Counts an evaluation's answers, and its questions if each has several samples.

    A failed call counts as an answer that is not correct, and is also counted separately.
    Intervals are over questions, because answers to one question are not independent. Raises
    ConfigError if the output has no manifest or is not from an evaluation.
    """

    def __init__(self, output: Output) -> None:
        manifest = manifests.load(output)
        if manifest is None:
            raise ConfigError(f"{output.path} is not a results file of redline")
        self.samples = manifest.settings.get("samples") or 1
        # In the order of their hashes, so that tied votes do not depend on the order of the lines.
        self.answers = sorted(graded(output.path), key=attrgetter("hash"))
        succeeded = {answer.hash for answer in self.answers}
        failed = [line for line in failed_lines(output.failed_path) if line.hash not in succeeded]
        self.failed = len(failed)
        question_of = questions_of(manifest, (*failed, *self.answers))
        self._asked = Counter(map(question_of, (*failed, *self.answers)))
        self._questions = {question: list[Graded]() for question in self._asked}
        for answer in self.answers:
            self._questions[question_of(answer)].append(answer)
        self.verdicts = Counter(answer.verdict for answer in self.answers)
        self.correct = sum(answer.correct for answer in self.answers)
        self.strict = sum(answer.strict for answer in self.answers)
        self.total = len(self.answers) + self.failed
        # Until a run reaches the end of its questions, their number is unknown.
        self.is_over = manifest.rows is not None
        self._unread = 0 if manifest.rows is None else max(0, self.total - manifest.rows)
        self._mixed = sum(count > self.samples for count in self._asked.values())

    def text(self) -> str:
        """Returns the summary for a reader, then `name: value` lines; accuracy is the last line.

        If no question was answered, there is no score, and `failed` is the only `name: value` line.
        """
        if not self.answers:
            # Unanswered questions are neither right nor wrong, so a share would mislead.
            line = f"no question was answered, so there is no score: {self.failed:,} failed"
            return summary([line], {"failed": self.failed})
        lines = []
        if not self.is_over:
            lines += ["the run has not finished: this is the score of the answers so far", ""]
        lines += self._warnings()
        others = {**{name: self.verdicts[name] for name in VERDICTS[1:]}, "failed": self.failed}
        lines += [
            self._share("accuracy", self.correct, attrgetter("correct")),
            self._share("strict", self.strict, attrgetter("strict")),
            f"{'others':10} {', '.join(f'{count:,} {name}' for name, count in others.items())}",
        ]
        if self.samples > 1:
            lines += self._of_questions()
        shares = {
            "strict": f"{self.strict}/{self.total}",
            "accuracy": f"{self.correct}/{self.total}",
        }
        return summary(lines, {**others, **shares})

    def _warnings(self) -> Iterator[str]:
        if self._unread:
            answers = counted(
                self._unread,
                "answer in this score is from a row",
                "answers in this score are from rows",
            )
            yield f"{answers} that the last run did not read: changed,"
            yield "removed or beyond the limit; evaluating into a new file leaves them out"
            yield ""
        if self._mixed:
            have = counted(self._mixed, "row number has", "row numbers have")
            yield f"{have} more than {self.samples} answers, as rows were inserted before others:"
            yield "questions with the same number count as one, unless the rows have a custom_id"
            yield ""

    def _share(self, name: str, count: int, is_right: Callable[[Graded], bool]) -> str:
        interval = share_interval(
            [
                (sum(map(is_right, found)), self._asked[question])
                for question, found in self._questions.items()
            ]
        )
        of = f"{self.total:,}"
        if self.samples > 1:
            questions = counted(len(self._questions), "question")
            of = f"{counted(self.total, 'answer')} to {questions}"
        return f"{name:10} {count / self.total:6.1%}  {count:,} of {of}  {interval.text()}"

    def _of_questions(self) -> list[str]:
        """Returns the lines of pass@k for k = 1, 2, 4, ..., `samples`, and of the majority vote."""
        whole = [group for group in self._questions.values() if len(group) == self.samples]
        if not whole:
            return []
        lines = []
        if len(whole) < len(self._questions):
            lines.append(
                f"{'of those':10} {counted(len(whole), 'question')} whose samples are all answered:"
            )
        ks = sorted({1, self.samples, *(2**i for i in range(1, self.samples.bit_length()))})
        for k in ks:
            rates = [pass_at(k, self.samples, sum(a.correct for a in group)) for group in whole]
            lines.append(f"{f'pass@{k}':10} {sum(rates) / len(whole):6.1%}")
        voted = sum(_majority_is_right(group) for group in whole)
        lines.append(f"{'majority':10} {voted / len(whole):6.1%}  {voted:,} of {len(whole):,}")
        return lines


def _majority_is_right(group: list[Graded]) -> bool:
    """Returns whether the most frequent answer to a question is right.

    Right answers all count as the same answer; wrong ones are the same if they are written alike.
    """
    won = majority(
        (answer.correct, b"" if answer.correct else msgspec.json.encode(answer.extracted))
        for answer in group
        if answer.extracted is not None
    )
    return won is not None and won[0]


def questions_of(manifest: Manifest | None, lines: Iterable[_Line]) -> Callable[[_Line], str | int]:
    """Returns a function from a line to the key that all answers to its question share.

    A line keeps the row number that it had when it was written, so for samples without a name, the
    key is the row's number in the input of the last run, which is read again. For a line whose row
    is not there, it is the line's own number, which another question may have if rows were added or
    reordered between two runs. Blocks.
    """
    # Without a manifest, the number of samples is unknown.
    if manifest is not None and "samples" not in manifest.settings:
        return attrgetter("hash")
    nameless = {line.hash for line in lines if not line.custom_id}
    rows = _rows_read(manifest, nameless) if manifest is not None and nameless else {}

    def question_of(line: _Line) -> str | int:
        # A line's own number is made negative, so that it is not taken for a row of the input.
        return base_name(line.custom_id) if line.custom_id else rows.get(line.hash, -line.row)

    return question_of


def _rows_read(manifest: Manifest, hashes: set[str]) -> dict[str, int]:
    """Returns the row numbers of these hashes in the input; none if it cannot be read again.

    Reads the input up to the last of these rows.
    """
    if not manifest.input:
        return {}
    try:
        with opened_source(manifest.input, manifest.settings["samples"]) as source:
            keys = ((f"{key:016x}", row.number) for row, key, _ in keyed_rows(source))
            return dict(islice((pair for pair in keys if pair[0] in hashes), len(hashes)))
    except (RedlineError, OSError, ValueError, RecursionError):
        return {}


def base_name(custom_id: str) -> str:
    """Returns the name of a question, without the number of a sample."""
    return _SAMPLE.sub("", custom_id)


def graded(path: Path) -> list[Graded]:
    """Reads the answers of a results file. Raises ConfigError if no evaluation wrote it."""
    try:
        return list(read_results(path, Graded))
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path} holds no graded answers: {error}",
            hint="pass a results file of `redline eval`",
        ) from error


def failed_lines(path: Path) -> set[Failed]:
    """Reads the failed answers; empty if the file does not exist."""
    return set(read_results(path, Failed, is_optional=True))
