"""Progress of a run: a live line on a terminal, plain lines elsewhere, or JSON lines.

What it shows: rows done, failed, retrying, left; calls in flight; rows and tokens a second; 429s;
the time until the end. All of it is read from counters twice a second; a run without a display
pays nothing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

import msgspec

from redline.calls.cost import DOLLAR, dollars_text
from redline.clock import SYSTEM, Clock
from redline.job.show.notices import OUT, STANDSTILL, notices
from redline.job.show.row_count import InputCounts
from redline.job.show.view import View
from redline.job.work import BatchUse
from redline.journal import flaws_text
from redline.process import counted, duration, lasting
from redline.waist import CacheUse

_REFRESH_S = 0.5
PLAIN_EVERY_S = 10.0
# Rates are averaged over about this long.
_SMOOTHING_S = 10.0


class Snapshot(msgspec.Struct, kw_only=True):
    """The state of a run at one moment. `eta_s` and `left` are None while they are unknown.

    done, failed: rows by this run. skipped: rows that were done before, as far as it has read.
    input: the whole input. fraction: of it, None while the number of its rows is unknown.
    flawed: of the rows done, those with an answer that is cut, empty or refused, by finish reason.
    notices: what goes wrong, by kind, each in one sentence.
    spent: in words, empty while nothing is known; is_spent_here: without what earlier runs spent.
    spent_usd, expected_usd: so far, and at the end.
    spent_tokens: against a budget in tokens.
    """

    elapsed_s: float
    done: int
    failed: int
    skipped: int
    in_flight: int
    retrying: int
    left: int | None
    input: InputCounts
    rows_per_s: float
    tokens_per_s: float
    rate_limited: int
    parked_s: float
    eta_s: float | None
    fraction: float | None
    is_draining: bool
    flawed: dict[str, int] = {}
    notices: dict[str, str] = {}
    spent: str = ""
    is_spent_here: bool = False
    spent_usd: float | None = None
    expected_usd: float | None = None
    spent_tokens: int | None = None
    cache: CacheUse | None = None
    batches: BatchUse | None = None


class Meter:
    """Takes snapshots of a run and keeps the smoothed rates between them."""

    def __init__(self, view: View, clock: Clock = SYSTEM) -> None:
        self._view = view
        self._clock = clock
        self._begun_s = clock.now_s()
        self._last: tuple[float, int, int] = (self._begun_s, 0, 0)
        self._rows_per_s = 0.0
        self._tokens_per_s = 0.0
        self._fraction: float | None = None

    def read(self) -> Snapshot:
        """The run as it is now."""
        view, now_s = self._view, self._clock.now_s()
        tally, runner = view.tally, view.runner
        self._measure(now_s, tally.saved, tally.tokens)
        counts = view.counts()
        left = counts.left if counts.is_exact else None
        if left is not None and counts.rows:
            # Rows that are added while it is read must not send the bar back.
            self._fraction = max(self._fraction or 0.0, (counts.rows - left) / counts.rows)
        found = notices(view, now_s)
        spent = view.bill.read()
        expected = spent.expected(tally.saved, left)
        eta_s = left / self._rows_per_s if left is not None and self._rows_per_s > 0 else None
        if found.keys() & STANDSTILL:
            # The rate so far says nothing of how the run will go on.
            eta_s = None
        return Snapshot(
            elapsed_s=now_s - self._begun_s,
            done=tally.succeeded,
            failed=tally.failed,
            skipped=view.rows_skipped,
            in_flight=tally.in_flight,
            retrying=tally.retrying,
            left=left,
            input=counts,
            rows_per_s=self._rows_per_s,
            tokens_per_s=self._tokens_per_s,
            rate_limited=tally.rate_limited,
            parked_s=max(0.0, tally.parked_until_s - now_s),
            eta_s=eta_s,
            fraction=self._fraction,
            is_draining=runner.is_draining,
            flawed=view.flawed(),
            notices=found,
            spent=spent.text,
            is_spent_here=bool(view.rows_skipped) and not spent.is_of_all_runs,
            spent_usd=spent.usd,
            expected_usd=None if expected is None else expected / DOLLAR,
            spent_tokens=spent.tokens,
            cache=tally.cache,
            batches=tally.batches,
        )

    def _measure(self, now_s: float, rows: int, tokens: int) -> None:
        then_s, then_rows, then_tokens = self._last
        passed_s = now_s - then_s
        if passed_s <= 0:
            return
        weight = passed_s / min(max(now_s - self._begun_s, passed_s), _SMOOTHING_S + passed_s)
        self._rows_per_s += weight * ((rows - then_rows) / passed_s - self._rows_per_s)
        self._tokens_per_s += weight * ((tokens - then_tokens) / passed_s - self._tokens_per_s)
        self._last = (now_s, rows, tokens)


def line_of(snapshot: Snapshot) -> str:
    """The counts of a snapshot as one plain line, without its notices."""
    parts = [
        snapshot.input.text(here=snapshot.done),
        f"{snapshot.retrying:,} retrying",
        f"{snapshot.in_flight:,} in flight",
        f"{_rate(snapshot.rows_per_s)} rows/s",
        f"{_rate(snapshot.tokens_per_s)} tokens/s",
        f"{snapshot.rate_limited:,} x 429",
    ]
    if snapshot.flawed:
        parts.insert(1, f"of those done {flaws_text(snapshot.flawed)}")
    if snapshot.spent:
        parts.append(f"spent {snapshot.spent}{' by this run' if snapshot.is_spent_here else ''}")
        if snapshot.expected_usd is not None:
            whole = "with the rows left" if snapshot.is_spent_here else "in all"
            parts.append(f"about {dollars_text(round(snapshot.expected_usd * DOLLAR))} {whole}")
    if snapshot.cache is not None:
        parts.append(f"{snapshot.cache.spared:,} cached ({100 * snapshot.cache.share:.0f} %)")
    if snapshot.batches is not None:
        use = snapshot.batches
        parts.append(f"{use.rows:,} with {counted(use.running, 'batch', 'batches')}")
    if snapshot.parked_s > 0:
        parts.append(f"told to wait {duration(snapshot.parked_s)}")
    if snapshot.eta_s is not None:
        parts.append(f"ETA {duration(snapshot.eta_s)}")
    return ", ".join(parts)


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


class TerminalProgress:
    """A bar and a line of counts that redraw themselves, for a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = lasting(stream if stream is not None else sys.stderr)

    async def show(self, view: View) -> None:
        # 20 ms of imports that only a terminal needs.
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.table import Table
        from rich.text import Text

        meter = Meter(view)
        console = Console(file=self._stream)
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            console=console,
        )
        task = bar.add_task(view.source_name, total=None)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while True:
                snapshot = meter.read()
                if snapshot.fraction is not None:
                    bar.update(task, total=1.0, completed=snapshot.fraction)
                grid = Table.grid(expand=True)
                grid.add_row(bar)
                grid.add_row(Text(line_of(snapshot), overflow="ellipsis", no_wrap=False))
                for notice in snapshot.notices.values():
                    grid.add_row(Text(notice, style="bold"))
                live.update(grid)
                await asyncio.sleep(_REFRESH_S)


class _LineProgress:
    """A line at intervals, and one at once when a problem begins or the run ends."""

    def __init__(self, stream: TextIO, every_s: float = PLAIN_EVERY_S) -> None:
        self._stream = lasting(stream)
        self._every_s = every_s

    async def show(self, view: View) -> None:
        meter = Meter(view)
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._every_s
        # Kinds of notices since the last regular line: one that comes and goes is shown once.
        told: set[str] = set()
        while True:
            await asyncio.sleep(min(_REFRESH_S, self._every_s))
            snapshot = meter.read()
            new = snapshot.notices.keys() - told
            is_due = loop.time() >= due_s
            if not (is_due or new):
                continue
            seen = {kind for kind in told if kind.startswith(OUT)}
            told = set(snapshot.notices) if is_due else told | new
            shown = {kind: text for kind, text in snapshot.notices.items() if kind not in seen}
            snapshot = msgspec.structs.replace(snapshot, notices=shown)
            due_s = loop.time() + self._every_s
            self._stream.write(self._line(snapshot) + "\n")
            self._stream.flush()

    def _line(self, snapshot: Snapshot) -> str:
        raise NotImplementedError


class PlainProgress(_LineProgress):
    """One line every 10 s, for logs and pipes."""

    def _line(self, snapshot: Snapshot) -> str:
        return "\n".join([line_of(snapshot), *snapshot.notices.values()])


class JsonProgress(_LineProgress):
    """One JSON object every 10 s, for programs."""

    def _line(self, snapshot: Snapshot) -> str:
        fields = {"event": "progress", **msgspec.to_builtins(snapshot)}
        return msgspec.json.encode(fields).decode()
