"""Synthesizes texts with a model, and asks again for each text that fails a check.

Text                         Kind
cut at the token limit       cut
stopped by a filter, refused filtered
outside the wanted length    too_short, too_long
without valid JSON           invalid
similar to a kept text       near_duplicate
any other                    kept

A text enters the index before its row is saved. A crash in between loses both: the next run builds
the index from the results on disk, which hold every text that was kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from redline.calls import Outcome, Reply, Request
from redline.errors import Rejected
from redline.job.settings import Ask
from redline.journal import read_results
from redline.process import DaemonThreads, counted
from redline.tasks.answers import find_json, names_reasoning, spoken
from redline.tasks.evaluate import UsageSum
from redline.tasks.synth.near_duplicates import NearDuplicates
from redline.tasks.synth.variations import Variations
from redline.tasks.tag import Schema, Structured

KINDS = ("near_duplicate", "too_short", "too_long", "invalid", "cut", "filtered")
_ENDINGS = {
    "length": ("cut", "it was cut at the token limit"),
    "content_filter": ("filtered", "a content filter cut it"),
    "refusal": ("filtered", "the model refused"),
}
_HINTS = {
    "near_duplicate": "raise --temperature or --tries, or vary the prompt with --vary",
    "cut": "raise --max-tokens, or ask for a shorter text",
}
# The step exceeds the number of texts, so for some 200 tries, no retry of a text uses the seed of
# another text.
MOST_TEXTS = 10_000_000
_SEED_STEP = 10_000_019
# All servers accept seeds that fit in signed 32-bit integers; some accept only these.
_SEEDS = 2**31


class NotKept(Rejected):
    """No try gave a text to keep; becomes the error of the row."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that a text must meet.

    least_chars, most_chars: the minimum and maximum length in characters, without white space at
    the ends; most_chars is None for no maximum. schema: the text contains JSON that is valid under
    this schema; None for any text.
    """

    least_chars: int = 1
    most_chars: int | None = None
    schema: Schema | None = None


class _Judgement(NamedTuple):
    """The text to write and, if it is dropped, the kind from the table above and the reason."""

    value: Any
    kind: str = ""
    reason: str = ""


class Cause(msgspec.Struct):
    """The error of a failure."""

    kind: str


class Line(msgspec.Struct):
    """A line of the results or failures file."""

    row: int
    output: Any = None
    dropped: list[str] = []
    error: Cause | None = None


class Synthesis:
    """A job's Task that makes texts and recalls those of earlier runs.

    tries: the most answers that are judged for one text in one run. similarity: the threshold for
    near-duplicates, which are not kept; None keeps all. Raises ConfigError if a package is missing.
    """

    def __init__(
        self, variations: Variations, filters: Filters, *, tries: int, similarity: float | None
    ) -> None:
        self._variations = variations
        self._filters = filters
        self._tries = tries
        self.most_reasks = tries - 1
        self.similarity = similarity
        self._structured = None if filters.schema is None else Structured(filters.schema)
        self._index = None if similarity is None else NearDuplicates(similarity)
        # Kinds of the texts that earlier runs dropped, for each row without a kept text.
        self._dropped: dict[int, list[str]] = {}
        # Texts are judged one at a time, in about a millisecond each.
        self._thread = DaemonThreads(1, "redline-synth")

    def settings(self) -> Mapping[str, Any]:
        schema = self._filters.schema
        return {
            **self._variations.settings(),
            "least_chars": self._filters.least_chars,
            "most_chars": self._filters.most_chars,
            "schema": None if schema is None else schema.json_schema,
            "similarity": self.similarity,
        }

    def recall(self, results: Path, failures: Path) -> None:
        """Reads what earlier runs kept and dropped, so that failed rows continue with later seeds.

        results, failures: the files of the output; failures may be missing. Blocks. Raises
        JournalError for a damaged file.
        """
        if self._index is not None:
            for line in read_results(results, Line):
                self._index.keep(text_of(line.output), line.row)
        for failed in read_results(failures, Line, is_optional=True):
            self._dropped[failed.row] = failed.dropped

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        n: int = row["n"]
        if self._structured is not None:
            request = self._structured.instructed(request)
        before = self._dropped.get(n, [])
        dropped = list(before)
        used = UsageSum()
        # The search for JSON ignores reasoning around it; inside a JSON value, such text is data.
        is_all_text = self._structured is not None or names_reasoning(str(request.body))
        while True:
            seed = _seed(row, len(dropped))
            sampled = self._sampled(request, row, seed)
            structured = self._structured
            outcome = await (structured.asked(sampled, ask) if structured else ask(sampled))
            used.add(outcome)
            if outcome.reply is None:
                return _with_fields(outcome, used, dropped)
            output = outcome.reply.output
            if isinstance(output, str) and not is_all_text and (text := spoken(output)) != output:
                outcome.reply.output = text.strip()
            judgement = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._judged, outcome.reply, n
            )
            if not judgement.kind:
                outcome.reply.output = judgement.value
                return _with_fields(outcome, used, dropped, seed)
            dropped.append(judgement.kind)
            if len(dropped) >= len(before) + self._tries:
                outcome.status = "rejected"
                tries = counted(self._tries, "try", "tries")
                outcome.error = NotKept(
                    f"no text was accepted in {tries}; reason for the last: {judgement.reason}",
                    hint=_HINTS.get(judgement.kind, "change the prompt, or raise --tries"),
                )
                return _with_fields(outcome, used, dropped)

    def _sampled(self, request: Request, row: dict[str, Any], seed: int | None) -> Request:
        """Returns the request with the row's own sampling parameters."""
        own = {name: row[name] for name in self._variations.sampling}
        if seed is not None:
            own["seed"] = seed
        return msgspec.structs.replace(request, body={**request.body, **own})

    def _judged(self, reply: Reply, n: int) -> _Judgement:
        """Judges a text and adds it to the index if it is kept. Blocks; not thread-safe."""
        judgement = self._filtered(reply)
        if not judgement.kind and self._index is not None:
            other = self._index.add(text_of(judgement.value), n)
            if other is not None:
                reason = f"it is nearly a copy of the text of row {other}"
                return judgement._replace(kind="near_duplicate", reason=reason)
        return judgement

    def _filtered(self, reply: Reply) -> _Judgement:
        text = reply.output if isinstance(reply.output, str) else ""
        if ending := _ENDINGS.get(reply.finish_reasons[0] or ""):
            return _Judgement(text, *ending)
        least, most = self._filters.least_chars, self._filters.most_chars
        size = len(text.strip())
        if size < least:
            reason = f"{counted(size, 'character')}, but at least {least:,} are required"
            return _Judgement(text, "too_short", reason)
        if most is not None and size > most:
            reason = f"{counted(size, 'character')}, but at most {most:,} are allowed"
            return _Judgement(text, "too_long", reason)
        schema = self._filters.schema
        if schema is None:
            return _Judgement(text)
        found = find_json(text, schema.kind)
        if found is None:
            return _Judgement(text, "invalid", "it holds no JSON")
        value, problems = schema.checked(found)
        return _Judgement(value, "invalid" if problems else "", "; ".join(problems))


def _seed(row: Mapping[str, Any], number: int) -> int | None:
    """Returns the seed of try `number` of a row, counted from 0; None for rows without a seed."""
    first = row.get("seed")
    return None if first is None else (first + number * _SEED_STEP) % _SEEDS


def _with_fields(
    outcome: Outcome, used: UsageSum, dropped: list[str], seed: int | None = None
) -> Outcome:
    used.put_into(outcome)
    fields = {"seed": seed, "dropped": dropped}
    outcome.fields = {name: value for name, value in fields.items() if value not in (None, [])}
    return outcome


def text_of(value: Any) -> str:
    """Returns the text to compare: the value itself, or all values of its JSON."""
    if isinstance(value, Mapping):
        return text_of(list(value.values()))
    return "\n".join(map(text_of, value)) if isinstance(value, list) else str(value)
