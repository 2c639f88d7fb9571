"""Finds and describes the flaws of successes: answers that are cut short or empty, and refusals.

A flaw is one of the reasons that `fail_on` takes. The answer's finish reason shows it; if an
answer has several choices, the first flawed choice counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

from redline.journal.lines import Brief
from redline.journal.sound_lines import opened_lines, read_stretches

# The finish reasons that a user may treat as failures, each with its error message.
FAIL_ON = {
    "length": "the answer was cut at the token limit",
    "empty": "the answer is empty",
    "content_filter": "the answer was cut by a content filter",
    "refusal": "the model refused to answer",
}
# The words for these reasons after a number: `4,003 cut by max_tokens`.
_WORDS = {
    "length": "cut by max_tokens",
    "empty": "empty",
    "content_filter": "cut by a content filter",
    "refusal": "refused by the model",
}
# With fewer answers than this, a warning about all of them would mean little.
_TELLING_ANSWERS = 10

_SOUND_REASONS = frozenset({"stop", None})
_reason_of = attrgetter("finish_reason")
_SOUND = b'"finish_reason":"stop"'
_FLAWED = re.compile(
    rb'"finish_reason":\s*(?:\[[^\]]*)?"(?:%s)"' % b"|".join(map(str.encode, FAIL_ON))
)
_BATCH = b'{"id":"redline_'


class _Reasons(msgspec.Struct):
    finish_reason: str | list[str | None] | None = None


class _Body(msgspec.Struct):
    choices: list[_Reasons]


class _Response(msgspec.Struct):
    body: _Body


class _BatchLine(msgspec.Struct):
    response: _Response


_LINE, _BATCH_LINE = msgspec.json.Decoder(_Reasons), msgspec.json.Decoder(_BatchLine)


def flaws_of(rows: Sequence[Brief]) -> Counter[str]:
    """Counts the flaws of the successes among these rows."""
    try:
        if _SOUND_REASONS.issuperset(map(_reason_of, rows)):
            return Counter()
    except TypeError:
        # A row has several choices, whose reasons are a list.
        pass
    reasons = (row.finish_reason for row in rows if row.status == "succeeded")
    return Counter(filter(None, map(_flaw_of, reasons)))


def flaws_in(lines: Sequence[bytes]) -> Counter[str]:
    """Counts the flaws in lines of a results file.

    In batch format, empty answers and refusals are not found, because the lines contain the
    provider's finish reasons.
    """
    block = b"".join(lines)
    # Almost always, one search over all the lines is enough.
    if block.count(_SOUND) == len(lines) or _FLAWED.search(block) is None:
        return Counter()
    return Counter(filter(None, map(_flaw_in, lines)))


class Answers:
    """Counts the successes in a results file, and their flaws."""

    def __init__(self) -> None:
        self.total = 0
        self.flaws: Counter[str] = Counter()

    def add(self, lines: Sequence[bytes]) -> None:
        """Counts lines of the file."""
        self.total += len(lines)
        self.flaws.update(flaws_in(lines))

    def adopt(self) -> None:
        """Counts a success of this run; the run counts its flaws elsewhere."""
        self.total += 1

    def take_out(self, path: Path) -> None:
        """Subtracts the lines that were moved to the file at `path`. Blocks."""
        with opened_lines(path) as fd:
            for stretch in read_stretches(fd):
                self.total -= len(stretch.lines)
                self.flaws.subtract(flaws_in(stretch.lines))


def flaws_text(flaws: Mapping[str, int]) -> str:
    """Returns text such as `4,003 cut by max_tokens, 12 empty`; "" if there are no flaws."""
    return ", ".join(f"{number:,} {_WORDS[flaw]}" for flaw, number in flaws.items() if number)


def all_flawed(answers: int, flaws: Mapping[str, int]) -> str | None:
    """Returns a warning if the run has ten answers or more and all are flawed; otherwise None."""
    if answers < _TELLING_ANSWERS or sum(flaws.values()) < answers:
        return None
    words = " or ".join(_WORDS[flaw] for flaw in flaws)
    remedy = "raise --max-tokens" if "length" in flaws else "check the prompt and the model"
    return f"warning: all {answers:,} answers so far are {words}: {remedy}"


def _flaw_in(line: bytes) -> str | None:
    if _FLAWED.search(line) is None:
        return None
    try:
        if not line.startswith(_BATCH):
            return _flaw_of(_LINE.decode(line).finish_reason)
        choices = _BATCH_LINE.decode(line).response.body.choices
        return next(filter(None, (_flaw_of(choice.finish_reason) for choice in choices)), None)
    except (msgspec.DecodeError, RecursionError):
        return None


def _flaw_of(reason: str | list[str | None] | None) -> str | None:
    """Returns the first flaw among the finish reasons of an answer's choices; None if none."""
    reasons = reason if isinstance(reason, list) else [reason]
    return next((each for each in reasons if each in FAIL_ON), None)
