"""The live view in a real kernel, run by nbclient: its numbers are those of the server's log."""

from __future__ import annotations

import asyncio
import html
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import redline
from support.live_screen import OUTAGE, PRICES, Truth, begun_of, done_of, truth_of, wrong_lately
from support.sim_process import SimProcess
from support.until import until

pytestmark = [
    pytest.mark.real,
    # What the libraries of the kernel's client warn of is not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROWS, SLOTS = 120, 30
# A busy machine may be late to show that everything stands still.
SETTLED_S = 5.0
# At a standstill, rates over ten seconds begin between two drawings.
STEADY = r"^(?!.*/s')"
Frame = tuple[float, list[str]]


def code(sim: SimProcess, folder: Path, **options: object) -> str:
    """A cell that runs a job and shows what it came to."""
    given = {
        **{"endpoint": sim.base_url, "model": "m", "prompt": "{{ text }}", "rpm": 6000},
        **{"concurrency": SLOTS, "output": str(folder / "out.jsonl"), "prices": {"m": PRICES}},
        **options,
    }
    return f"""
import sys
sys.path.insert(0, {str(Path(redline.__file__).parents[1])!r})
import redline
rows = [{{"text": f"row {{n}} " + "word " * (n % 40)}} for n in range({ROWS})]
report = redline.run(rows, **{given!r})
(report.succeeded, report.failed, report.interrupted)
"""


def lines_of(output: Any) -> list[str]:
    """What the cell shows, which is the same with and without colours."""
    assert output.output_type == "display_data"
    plain, painted = output.data["text/plain"], output.data["text/html"]
    assert html.unescape(re.sub(r"<[^>]+>", "", painted)) == plain
    return plain.splitlines()


def check(frames: list[Frame], log: Truth) -> None:
    """The last frame, which stays, has no number that is not the log's."""
    at_s, lines = frames[-1]
    assert done_of(lines) == log.done
    begun_s, first_s = begun_of(frames), min(one["arrival_s"] for one in log.seen)
    assert first_s - 1.0 <= begun_s <= first_s + 0.1
    problems = wrong_lately(lines, log._replace(begun_s=begun_s), at_s)
    assert not problems, lines
    counts = [done_of(lines) for _, lines in frames if done_of(lines) >= 0]
    assert counts == sorted(counts)


def log_of(sim: SimProcess, **facts: Any) -> Truth:
    return truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=0.0, at_s=0.0, **facts)


async def shown_while(
    cells: list[str], act: Callable[[NotebookClient, list[Frame]], Any]
) -> tuple[list[Any], list[list[Frame]]]:
    """The outputs of each cell, and what it showed meanwhile, and when.

    act: awaited meanwhile, with the frames of the first cell.
    """
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    client = NotebookClient(notebook, timeout=60)
    frames: list[list[Frame]] = [[] for _ in cells]

    def look() -> None:
        for cell, seen in zip(notebook.cells, frames, strict=True):
            if cell.outputs and cell.outputs[0].data["text/plain"]:
                lines = lines_of(cell.outputs[0])
                if not seen or lines != seen[-1][1]:
                    seen.append((time.monotonic(), lines))

    executing = asyncio.create_task(client.async_execute())
    acting = asyncio.create_task(act(client, frames[0]))
    while not executing.done():
        look()
        await asyncio.sleep(0.05)
    await executing
    await acting
    look()
    return [cell.outputs for cell in notebook.cells], frames


async def nothing(client: NotebookClient, frames: list[Frame]) -> None:
    return


def test_a_cell_shows_the_job_and_keeps_its_end(tmp_path: Path) -> None:
    with SimProcess("--latency", "1-2", "--faults", "500=0.05", "--faults", "429=0.03") as sim:
        outputs, frames = asyncio.run(shown_while([code(sim, tmp_path, max_retries=0)], nothing))
        log = log_of(sim, is_tried_once=True)
    shown, result = outputs[0]
    assert log.failed > 0
    assert lines_of(shown) == frames[0][-1][1]
    check(frames[0], log)
    assert result.data["text/plain"] == f"({log.done}, {log.failed}, False)"
    assert len(frames[0]) >= 3


@pytest.mark.slow
def test_a_cell_that_is_interrupted_shows_how_far_it_came_and_goes_on(tmp_path: Path) -> None:
    flags = ("--latency", "1-2", "--faults", "500=0.05")
    with SimProcess(*flags) as sim, SimProcess(*flags) as other:

        async def interrupt(client: NotebookClient, frames: list[Frame]) -> None:
            await until(lambda: sim.stats()["answered"] >= ROWS / 6, every_s=0.05)
            # No row waits to be tried again when it is interrupted.
            sim.disturb()
            await until(lambda: sim.stats()["answered"] >= ROWS / 2, every_s=0.05)
            await client.km.interrupt_kernel()

        cells = [code(sim, tmp_path), code(other, tmp_path)]
        outputs, frames = asyncio.run(shown_while(cells, interrupt))
        # What was on the wire was still answered.
        log = log_of(sim)
        resumed = log_of(other, before=log.done)
    (shown, result), (again, whole) = outputs
    assert ROWS / 2 <= log.done < ROWS
    check(frames[0], log)
    assert result.data["text/plain"].endswith(f"({log.done}, 0, True)")
    assert any("finishing" in " ".join(lines) for _, lines in frames[0])
    assert lines_of(shown)[-1] == "interrupted"
    assert "ETA" not in shown.data["text/plain"]
    check(frames[1], resumed)
    assert resumed.done == ROWS
    # Rows that were done before are in the first frame.
    first = re.search(r"(\d+)(?: of \d+)? done", " ".join(frames[1][0][1]))
    assert first is not None
    assert int(first[1]) >= log.done
    assert f"{ROWS} of {ROWS} done" in again.data["text/plain"]
    # The first frame may be drawn before the output is compared with the rows.
    assert all(done_of(lines) >= log.done for _, lines in frames[1][1:])
    assert whole.data["text/plain"].endswith(f"({ROWS - log.done}, 0, False)")


async def all_fit(
    frames: list[Frame], words: str, log: Truth, for_s: float, settled_s: float = SETTLED_S
) -> None:
    """From the first frame on that has these words and fits the log, all do for a while."""
    began_s, fits_s = time.monotonic(), math.inf
    while time.monotonic() < fits_s + for_s:
        before = len(frames)
        await until(lambda before=before: len(frames) > before, every_s=0.05)
        at_s, lines = frames[-1]
        problems = wrong_lately(lines, log, at_s, only=STEADY)
        if re.search(words, " ".join(lines)) is None:
            problems.append("it says nothing of it")
        if not problems:
            fits_s = min(fits_s, at_s)
        assert not problems or (fits_s == math.inf and at_s < began_s + settled_s), (
            problems,
            lines,
        )


@pytest.mark.slow
def test_a_cell_shows_that_the_job_is_parked_and_that_its_server_is_gone(tmp_path: Path) -> None:
    with SimProcess("--latency", "1-2", "--faults", "500=0.05") as sim:
        logs: list[Truth] = []

        async def disturb(client: NotebookClient, frames: list[Frame]) -> None:
            await until(lambda: sim.stats()["answered"] >= ROWS / 3, every_s=0.05)
            # What fails from now on would wait for its turn to be tried again, as the log cannot.
            sim.disturb()
            parked_at_s, parked_until_s = time.monotonic(), time.monotonic() + 6.0
            sim.park("", 6.0)
            await until(lambda: not sim.stats()["in_flight"], every_s=0.05)
            log = log_of(sim)._replace(
                parked_at_s=parked_at_s, parked_until_s=parked_until_s, begun_s=begun_of(frames)
            )
            assert log.retrying
            await all_fit(frames, "on hold.* to wait", log, 1.5)
            # Nothing is answered any more: the log holds for the time without a server, which is
            # noticed with the next call.
            sim.kill()
            gone = log._replace(gone_s=parked_until_s)
            logs.append(gone)
            await all_fit(frames, OUTAGE, gone, 1.5, settled_s=12.0)
            sim.start()
            sim.disturb(latency="0.01")

        outputs, frames = asyncio.run(shown_while([code(sim, tmp_path)], disturb))
        assert sim.stats()["by_status"]["200"] == ROWS - logs[-1].done > 0
    shown, result = outputs[0]
    assert f"{ROWS} of {ROWS} done" in shown.data["text/plain"]
    assert result.data["text/plain"] == f"({ROWS}, 0, False)"
    counts = [done_of(lines) for _, lines in frames[0] if done_of(lines) >= 0]
    assert counts == sorted(counts)


def test_a_cell_shows_what_the_provider_does_with_a_batch(tmp_path: Path) -> None:
    # Some lines stall: the others are over soon, and then nothing moves.
    with SimProcess("--batch-latency", "0.3-1", "--faults", "stall=0.05") as sim:

        async def interrupt(client: NotebookClient, frames: list[Frame]) -> None:
            await until(
                lambda: bool(frames) and "1 in_progress" in " ".join(frames[-1][1]), every_s=0.05
            )
            begun_s = begun_of(frames)
            # What goes wrong with the lines is drawn; what is asked from now on goes well.
            sim.disturb()
            await until(lambda: time.monotonic() > begun_s + 2.5, every_s=0.05)
            log = log_of(sim)._replace(begun_s=begun_s)
            assert 0 < log.batches["finished"] < log.batches["total"] == ROWS
            await all_fit(frames, "of them finished", log, 1.0, settled_s=20.0)
            await client.km.interrupt_kernel()

        cell = code(sim, tmp_path, via="batch")
        outputs, frames = asyncio.run(shown_while([cell], interrupt))
    assert outputs[0][-1].data["text/plain"].endswith("(0, 0, True)")
    assert {done_of(lines) for _, lines in frames[0]} <= {-1, 0}
