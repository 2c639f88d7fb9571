"""Outputs with a timeline as runs of many kinds leave them, without a run."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redline.journal import Manifest, Output, manifest
from redline.timeline import (
    TIMELINE_VERSION,
    LimitUse,
    RunEnd,
    RunFacts,
    Sketch,
    TimelineFile,
    Totals,
    Window,
)
from support.output_files import failure

BEGUN = 1_790_000_000.0
HOSTILE = "</script><img src=x onerror=alert(1)><b>\u202e\x1b[31mred"
FINISHED = "finished"


def window(second: int, rows: int = 40, *, before: int = 0, all_rows: int = 1_000_000) -> Window:
    """One second of a run that does `rows` a second, mostly at its limit."""
    wave = 1 + 0.2 * math.sin(second / 20)
    done, is_limited = int(rows * wave), second % 100 < 80
    return Window(
        begin_s=float(second),
        end_s=second + 1.0,
        samples=10,
        sent=done,
        answered=done,
        done=done,
        input_tokens=120 * done,
        output_tokens=45 * done,
        in_flight=12 * wave,
        slots=64.0,
        waiting=50.0,
        held={"limit": 10} if is_limited else {"input": 10},
        limits=(
            LimitUse("200k tokens/min", 10 if is_limited else 0, int(165_000 * wave), 200_000, 60),
            LimitUse("1,500 requests/min", 0, int(900 * wave), 1500, 60),
        ),
        latency=Sketch.of([0.2 * wave, 0.25, 0.3 * wave, 0.3, 0.9]),
        totals=Totals(
            rows=all_rows,
            done=min(all_rows, before + rows * (second + 1)),
            attempts=done,
            input_tokens=120 * rows * second,
            output_tokens=45 * rows * second,
            spent_usd=0.0021 * (second + 1),
        ),
    )


def failing(second: int, **fields: Any) -> Window:
    """The same with errors, some of whose texts are hostile."""
    from msgspec.structs import replace

    one = window(second, **fields)
    if second % 7 == 3:
        return replace(one, errors={"rate_limited": 4, "server_failed": 1}, retries=5, error="mix")
    if second % 5 == 1:
        return replace(one, errors={"server_failed": 2}, retries=2, failed=1, error=HOSTILE)
    return one


def output_of(
    path: Path,
    runs: Sequence[tuple[Sequence[Window], str | None]],
    *,
    failures: int = 0,
    pause_s: float = 86_400.0,
    **settings: Any,
) -> Output:
    """An output whose runs had these windows and ended so; None for a run that was killed."""
    output = Output.at(path)
    output.state_path.mkdir(parents=True)
    output.path.touch()
    (output.state_path / "lock").touch()
    begun = BEGUN
    for windows, how in runs:
        file = TimelineFile(output.state_path / "timeline.jsonl")
        file.begin(
            RunFacts(
                v=TIMELINE_VERSION,
                at=begun,
                input="rows.jsonl",
                model="gpt-4o-mini",
                slots=64,
                endpoints=("api.example.com",),
                limits=("200k tokens/min", "1,500 requests/min"),
            )
        )
        end_s = windows[-1].end_s if windows else 0.1
        file.add(windows, begun + end_s)
        if how is not None:
            file.end(RunEnd(at_s=end_s, how=how))  # type: ignore[arg-type]
        file.close()
        os.utime(file.path, (begun + end_s, begun + end_s))
        begun += end_s + pause_s
    manifest.save(output, Manifest(input="/data/rows.jsonl", settings=settings))
    if failures:
        lines = b"".join(_failure(number) for number in range(1, failures + 1))
        output.failed_path.write_bytes(lines + b"{torn")
    return output


def _failure(number: int) -> bytes:
    kind = "rejected" if number % 3 else "server_failed"
    error = {"kind": kind, "message": f"HTTP 400: {HOSTILE} of {number}"}
    return failure(number, error=error, attempts=9)


def jobs(folder: Path) -> dict[str, Output]:
    """One output of each kind; the healthy one has 1,000,000 rows."""
    folder.mkdir(exist_ok=True)
    prompt = "Classify the ticket: {{ text }}\n" * 12
    return {
        "healthy": output_of(
            folder / "healthy.jsonl",
            [([window(n, rows=400) for n in range(2500)], FINISHED)],
            prompt=prompt,
            model="gpt-4o-mini",
        ),
        "failing": output_of(
            folder / "failing.jsonl",
            [
                ([failing(n, all_rows=20_000) for n in range(180)], None),
                ([failing(n, all_rows=20_000, before=7200) for n in range(300)], FINISHED),
            ],
            failures=40,
            prompt=HOSTILE,
        ),
        "empty": output_of(folder / "empty.jsonl", [([], "interrupted")]),
    }
