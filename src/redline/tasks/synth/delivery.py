"""Counts the texts that a synthesis has delivered, from its results.

The counts cover all runs of the output, including those that were interrupted.
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import median

import msgspec

from redline.journal import Output, read_results
from redline.process import counted
from redline.tasks.evaluate import summary
from redline.tasks.synth.near_duplicates import fewest_words, word_count
from redline.tasks.synth.synthesis import KINDS, Cause, Line, text_of

# The maximum number of texts whose words are counted.
_MOST_COUNTED = 1_000


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a synthesis: wanted = delivered + failed + unfinished.

    dropped: the number of texts that were not kept, by reason; if a run ended before it wrote a
    row's line, that row's texts are not counted. failed: the number of texts that could not be
    made, by reason. note: a warning about the delivered texts, or empty.
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
        """Returns the summary for a reader, then `name: value` lines; `delivered` comes last."""
        lines = [f"{'delivered':10} {self.delivered:,} of {self.wanted:,}"]
        if self.dropped:
            lines.append(f"{'dropped':10} {self.dropped.total():,}: {_listed(self.dropped)}")
        if self.delivered < self.wanted:
            missing = self.failed + Counter({"unfinished": self.unfinished})
            lines.append(
                f"{'missing':10} {missing.total():,}: {_listed(missing)}; the same command "
                "continues the run"
            )
        if self.note:
            lines.append(f"{'note':10} {self.note}")
        figures: dict[str, object] = {kind: self.dropped[kind] for kind in KINDS}
        figures["failed"] = self.failed.total()
        figures["unfinished"] = self.unfinished
        figures["delivered"] = f"{self.delivered}/{self.wanted}"
        return summary(lines, figures)


def delivered(output: Output, wanted: int, similarity: float | None = None) -> Delivery:
    """Counts the results of the first `wanted` rows. Blocks; uses one byte of memory per row.

    similarity: the threshold for near-duplicates, if any. Raises JournalError for a damaged file.
    """
    is_told = bytearray(wanted + 1)
    dropped: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    count = 0
    words: list[int] = []
    # Successes first: a row in both files failed at first and then succeeded.
    for path in (output.path, output.failed_path):
        for line in read_results(path, Line, is_optional=True):
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
    return Delivery(
        wanted=wanted,
        delivered=count,
        dropped=dropped,
        failed=failed,
        note=_note(words, similarity),
    )


def _note(words: list[int], similarity: float | None) -> str:
    """Returns a warning if most texts are too short for near-duplicates to be found."""
    if similarity is None or not words:
        return ""
    least = fewest_words(similarity)
    if math.isinf(least) or median(words) >= least:
        return ""
    return (
        f"half of the texts have at most {counted(round(median(words)), 'word')}; below "
        f"{least:.0f} words, texts that differ by one word are less similar than {similarity:g} "
        "and are all kept: lower --similarity"
    )


def _reason(line: Line, error: Cause) -> str:
    """Returns why a text could not be made: why its last try was dropped, or the kind of error."""
    return line.dropped[-1] if error.kind == "not_kept" and line.dropped else error.kind


def _listed(counts: Counter[str]) -> str:
    """Lists the counts, the most frequent first: `98 near duplicate, 2 too short`."""
    return ", ".join(
        f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.most_common() if count
    )
