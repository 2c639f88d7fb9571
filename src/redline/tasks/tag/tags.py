"""Summarizes a tagging job from its files.

The numbers cover all runs of the output, including those that were interrupted. A failed row has no
tag, so it is neither right nor wrong and is counted separately. A row in both files failed at first
and then succeeded (see journal/journal.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from redline.journal import Output, read_results
from redline.journal import manifest as manifests
from redline.process import counted
from redline.tasks.evaluate import as_text, summary, wilson
from redline.tasks.tag.columns import Gold
from redline.tasks.tag.gold import Agreement, agreement
from redline.tasks.tag.schema import Schema

_MOST_SHOWN = 5


class Line(msgspec.Struct):
    """A line of the results or of the failures."""

    hash: str
    output: Any = None
    reasks: int = 0
    input: Any = None


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a tagging job.

    tagged: the number of rows with a tag. failed: the number of rows that failed. reasks: the total
    number of re-asks for both.

    is_over: whether a run has reached the end of the input. unread: a lower bound on the
    tagged and failed rows that the last run did not read. without_gold: the number of tagged rows
    that are not compared because their gold column is empty. strays: the number of compared rows
    whose gold label is not in the schema. agreement: of the tags with the gold labels; None if it
    was not requested.
    """

    tagged: int
    failed: int
    reasks: int
    is_over: bool
    unread: int = 0
    without_gold: int = 0
    strays: int = 0
    agreement: Agreement | None = None

    def text(self, *notes: str) -> str:
        """Returns the summary for a reader, then `name: value` lines.

        notes: lines at the end of the summary. With an agreement, accuracy is the last line.
        """
        lines = [] if self.is_over else ["the run has not finished: these are the tags so far", ""]
        if self.unread:
            results = counted(
                self.unread, "of these results is from a row", "of these results are from rows"
            )
            lines += [
                f"{results} that the last run did not read: changed,",
                "removed or beyond the limit; tagging into a new file leaves them out",
                "",
            ]
        lines.append(f"tagged {self.tagged:,}, failed {self.failed:,}, re-asks {self.reasks:,}")
        found = self.agreement
        figures: dict[str, object] = {
            "tagged": self.tagged,
            "failed": self.failed,
            "reasks": self.reasks,
        }
        if found is not None:
            lines += self._compared(found)
            figures |= {
                "without_gold": self.without_gold,
                "macro_f1": f"{found.macro_f1:.6f}",
                "accuracy": f"{found.correct}/{found.total}",
            }
        return summary([*lines, *notes], figures)

    def _compared(self, found: Agreement) -> list[str]:
        lines = []
        if found.total:
            interval = wilson(found.correct, found.total)
            lines += [
                f"accuracy {found.correct / found.total:6.1%}  {found.correct:,} of "
                f"{found.total:,}  {interval.text()}",
                f"macro F1 {found.macro_f1:6.3f}  over {counted(len(found.labels), 'label')}",
            ]
        for (gold, said), rows in found.confusions(_MOST_SHOWN):
            lines.append(f"{rows:>6,} x {gold} tagged as {said}")
        if self.failed or self.without_gold:
            lines.append(
                f"not compared: {self.failed:,} failed, {self.without_gold:,} without gold"
            )
        if self.strays:
            lines.append(f"gold labels that are not in the schema: {counted(self.strays, 'row')}")
        return lines


def review(output: Output, schema: Schema, gold: Gold | None) -> Review:
    """Summarizes an output's files. Memory is bounded, except for 200 bytes per failure.

    Raises JournalError for a damaged file, and ConfigError if the gold column holds no labels.
    """
    failures = read_results(output.failed_path, Line, is_optional=True)
    failed = {line.hash: line.reasks for line in failures}
    counts = Counter[str]()
    known = frozenset(schema.labels.get(gold.field, ())) if gold is not None else frozenset[str]()

    def pairs() -> Iterator[tuple[str, str]]:
        for line in read_results(output.path, Line, is_optional=True):
            counts["tagged"] += 1
            counts["reasks"] += line.reasks
            failed.pop(line.hash, None)
            if gold is None:
                continue
            row = line.input if isinstance(line.input, dict) else {}
            tag = line.output if isinstance(line.output, dict) else {}
            if row.get(gold.column) in (None, ""):
                counts["without_gold"] += 1
                continue
            # Values other than text, such as 3 or true, are compared as JSON; a field that the tag
            # lacks counts as null.
            said = tag.get(gold.field)
            label = as_text(row[gold.column])
            if not known and not isinstance(said, str):
                label, said = _value_of(label), _value_of(as_text(said))
            counts["strays"] += bool(known) and label not in known
            yield label, as_text(said)

    found = agreement(pairs(), known)
    manifest = manifests.load(output)
    # Until a run reaches the end of its rows, their number is unknown.
    rows = None if manifest is None else manifest.rows
    done = counts["tagged"] + len(failed)
    return Review(
        tagged=counts["tagged"],
        failed=len(failed),
        reasks=counts["reasks"] + sum(failed.values()),
        is_over=rows is not None,
        unread=0 if rows is None else max(0, done - rows),
        without_gold=counts["without_gold"],
        strays=counts["strays"],
        agreement=found if gold is not None else None,
    )


def _value_of(text: str) -> str:
    """Normalizes a value: `True` in a CSV file becomes `true`, `4.0` `4`, and `[ 1 ]` `[1]`."""
    try:
        value = msgspec.json.decode(text if text.startswith(("[", "{")) else text.lower())
        if isinstance(value, str):
            return text
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return msgspec.json.encode(value, order="sorted").decode()
    except (ValueError, RecursionError):
        return text
