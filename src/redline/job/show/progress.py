"""Writes the progress of a run to logs and pipes, as plain lines or as JSON lines."""

from __future__ import annotations

import asyncio
from typing import TextIO

import msgspec

from redline.job.show.notices import ONCE
from redline.job.show.snapshot import Meter, Snapshot
from redline.job.show.view import View
from redline.journal import flaws_text
from redline.process import counted, duration, lasting, three_digits
from redline.timeline import LimitUse

_REFRESH_S = 0.5
PLAIN_EVERY_S = 10.0


def line_of(snapshot: Snapshot) -> str:
    """Returns the counts of a snapshot as one plain line, without its notices."""
    parts = [
        snapshot.input.text(here=snapshot.done),
        f"{snapshot.retrying:,} retrying",
        f"{snapshot.in_flight:,} in flight",
        f"{three_digits(snapshot.rows_per_s)} rows/s",
        f"{three_digits(snapshot.tokens_per_s)} tokens/s",
        f"{snapshot.rate_limited:,} x 429",
    ]
    if snapshot.flawed:
        parts.insert(1, f"of the rows done, {flaws_text(snapshot.flawed)}")
    if snapshot.spent:
        parts.append(f"spent {snapshot.spent}{' by this run' if snapshot.is_spent_here else ''}")
        if snapshot.expected:
            parts.append(snapshot.expected)
    if snapshot.cache is not None:
        parts.append(f"{snapshot.cache.spared:,} cached ({100 * snapshot.cache.share:.0f} %)")
    if snapshot.batches is not None:
        use = snapshot.batches
        parts.append(f"{use.rows:,} in {counted(use.running, 'batch', 'batches')}")
    if snapshot.parked_s > 0:
        parts.append(f"endpoint asked redline to wait another {duration(snapshot.parked_s)}")
    if snapshot.eta_s is not None:
        on_hold = " (on hold)" if snapshot.is_on_hold else ""
        parts.append(f"ETA {duration(snapshot.eta_s)}{on_hold}")
    if snapshot.bound is not None:
        parts.append(f"bound by {snapshot.bound.what}")
    return ", ".join(parts)


class PlainProgress:
    """Writes a line every `every_s` seconds, and at once if a problem begins or the run stops."""

    def __init__(self, stream: TextIO, every_s: float = PLAIN_EVERY_S) -> None:
        self._stream = lasting(stream)
        self._every_s = every_s

    async def show(self, view: View) -> None:
        meter = Meter(view)
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._every_s
        # The kinds of notices shown with the last regular line and since then. A notice of any
        # other kind is shown at once.
        told: set[str] = set()
        while True:
            await asyncio.sleep(min(_REFRESH_S, self._every_s))
            snapshot = meter.read()
            new = snapshot.notices.keys() - told
            is_due = loop.time() >= due_s
            if not (is_due or new):
                continue
            seen = {kind for kind in told if kind.startswith(ONCE)}
            told = set(snapshot.notices) if is_due else told | new
            shown = {kind: text for kind, text in snapshot.notices.items() if kind not in seen}
            snapshot = msgspec.structs.replace(snapshot, notices=shown)
            due_s = loop.time() + self._every_s
            self._stream.write(self._line(snapshot) + "\n")
            self._stream.flush()

    def _line(self, snapshot: Snapshot) -> str:
        return "\n".join([line_of(snapshot), *snapshot.notices.values()])


class JsonProgress(PlainProgress):
    """Writes each line as a JSON object, for programs."""

    def _line(self, snapshot: Snapshot) -> str:
        fields = {"event": "progress", **msgspec.to_builtins(snapshot)}
        names = LimitUse.__struct_fields__
        fields["limits"] = [dict(zip(names, use, strict=True)) for use in fields["limits"]]
        return msgspec.json.encode(fields).decode()
