"""What a synthesis has come to, read from its results: an interrupted one ends with the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from redline.journal import Output, read_results
from redline.tasks.synth.near_duplicates import fewest_words, word_count
from redline.tasks.synth.synthesis import KINDS, text_of

# Texts whose words are counted.
_MOST_COUNTED = 1_000


class _Error(msgspec.Struct):
    kind: str


class _Line(msgspec.Struct):
    """Of a text, or of one that could not be made."""

    row: int
    output: Any = None
    dropped: list[str] = []
    error: _Error | None = None


_LINE = msgspec.json.Decoder(_Line)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """wanted = delivered + failed + unfinished. dropped: texts that were not kept, by reason.

    failed: texts that could not be made, by reason. What was dropped for a text that no line names
    of, because its run was cut short, is not counted. note: what to know about these texts.
    """

    wanted: int
    delivered: int
    dropped: Counter[str]
    failed: Counter[str]
    note: str = ""

    @property
    def unfinished(self) -> int:
        return self.wanted - self.delivered - self.failed.total()

    def text(self) -> str:
        """For a person, and then, line by line, for a program; the last says what was delivered."""
        lines = [f"{'delivered':10} {self.delivered:,} of {self.wanted:,}"]
        if self.dropped:
            lines.append(f"{'dropped':10} {self.dropped.total():,}: {_listed(self.dropped)}")
        if self.delivered < self.wanted:
            missing = self.failed + Counter({"unfinished": self.unfinished})
            lines.append(
                f"{'missing':10} {missing.total():,}: {_listed(missing)}; the same command "
                "continues"
            )
        if self.note:
            lines.append(f"{'note':10} {self.note}")
        lines.append("")
        lines += [f"{kind}: {self.dropped[kind]}" for kind in KINDS]
        lines.append(f"failed: {self.failed.total()}")
        lines.append(f"unfinished: {self.unfinished}")
        lines.append(f"delivered: {self.delivered}/{self.wanted}")
        return "\n".join(lines) + "\n"


def delivered(output: Output, wanted: int, similarity: float | None = None) -> Delivery:
    """The delivery so far: the results of the first `wanted` rows. Blocks; a byte of memory a row.

    similarity: from which texts count as near-duplicates. Raises JournalError for a damaged file.
    """
    is_told = bytearray(wanted + 1)
    dropped: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    count = 0
    words: list[int] = []
    # Successes first: a row in both files was made after it had failed.
    for path in (output.path, output.failed_path):
        for line in _lines(path):
            if line.row > wanted or is_told[line.row]:
                continue
            is_told[line.row] = 1
            dropped.update(line.dropped)
            if line.error is None:
                count += 1
                if len(words) < _MOST_COUNTED:
                    words.append(word_count(text_of(line.output)))
            else:
                failed[_reason(line, line.error)] += 1
    note = _note(words, similarity)
    return Delivery(wanted=wanted, delivered=count, dropped=dropped, failed=failed, note=note)


def _note(words: list[int], similarity: float | None) -> str:
    """A warning if most texts are too short for near-duplicates to be found."""
    if similarity is None or not words or median(words) >= (least := fewest_words(similarity)):
        return ""
    if math.isinf(least):
        return ""
    return (
        f"half of the texts have at most {median(words):.0f} words; below {least:.0f} words, texts "
        f"that differ by one word are less similar than {similarity:g} and are all kept: lower "
        "--similarity"
    )


def _lines(path: Path) -> Iterator[_Line]:
    if path.exists():
        yield from map(_LINE.decode, read_results(path))


def _reason(line: _Line, error: _Error) -> str:
    """Why a text could not be made: by the last one that was not kept, or by the error."""
    return line.dropped[-1] if error.kind == "not_kept" and line.dropped else error.kind


def _listed(counts: Counter[str]) -> str:
    """`98 near duplicate, 2 too short`, the most frequent first."""
    return ", ".join(
        f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.most_common() if count
    )
