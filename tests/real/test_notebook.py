"""The live view in a real kernel, run by nbclient: its numbers are those of the server's log."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import redline
from support.live_screen import PRICES, Truth, done_of, truth_of, wrong
from support.sim_process import SimProcess
from support.until import until

pytestmark = [
    pytest.mark.real,
    # What the libraries of the kernel's client warn of is not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROWS, SLOTS = 120, 20
# The log does not know when the view began.
UNKNOWN = r"/s'|/min'|input: '[\d.]+ s'"
# A call may be cut off before one is refused; then the outage began with that.
GONE = r"refused connections|unreachable"
# Nor, while nothing is answered, how many rows wait, or how late a busy client saw the answers.
UNLOGGED = rf"{UNKNOWN}|retrying'|p\d\d |: '0 in flight'|{GONE}"


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


def check(lines: list[str], log: Truth) -> None:
    assert done_of(lines) == log.done
    problems = [one for one in wrong(lines, log) if not re.search(UNKNOWN, one)]
    assert not problems, lines


async def shown_while(
    cells: list[str], act: Callable[[NotebookClient], Any]
) -> tuple[list[Any], list[list[str]]]:
    """The outputs of each cell, and what the first one showed meanwhile; `act` is awaited then."""
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    client = NotebookClient(notebook, timeout=60)
    frames: list[list[str]] = []
    executing = asyncio.create_task(client.async_execute())
    acting = asyncio.create_task(act(client))
    while not executing.done():
        outputs = notebook.cells[0].outputs
        if outputs and outputs[0].data["text/plain"] and lines_of(outputs[0]) not in frames[-1:]:
            frames.append(lines_of(outputs[0]))
        await asyncio.sleep(0.05)
    await executing
    await acting
    return [cell.outputs for cell in notebook.cells], frames


async def nothing(client: NotebookClient) -> None:
    return


def test_a_cell_shows_the_job_and_keeps_its_end(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.6-1.2", "--faults", "500=0.05", "--faults", "429=0.03") as sim:
        outputs, frames = asyncio.run(shown_while([code(sim, tmp_path, max_retries=0)], nothing))
        log = truth_of(
            sim, rows=ROWS, slots=SLOTS, begun_s=0.0, at_s=time.monotonic(), is_tried_once=True
        )
    shown, result = outputs[0]
    assert log.failed > 0
    check(lines_of(shown), log)
    assert result.data["text/plain"] == f"({log.done}, {log.failed}, False)"
    counts = [done_of(lines) for lines in frames if done_of(lines) >= 0]
    assert len(counts) >= 3
    assert counts == sorted(counts)


@pytest.mark.slow
def test_a_cell_that_is_interrupted_shows_how_far_it_came_and_goes_on(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.6-1.2", "--faults", "500=0.05") as sim:
        logs: list[Truth] = []

        async def interrupt(client: NotebookClient) -> None:
            await until(lambda: sim.stats()["answered"] >= ROWS / 3, every_s=0.05)
            await client.km.interrupt_kernel()
            # What is on the wire is still answered.
            await until(lambda: not sim.stats()["in_flight"], every_s=0.05)
            logs.append(truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=0.0, at_s=time.monotonic()))

        first = code(sim, tmp_path)
        # The second cell begins at once; its rows must not be in the log of the first.
        cells = [f"{first}\n", f"import time\ntime.sleep(1.5)\n{first}"]
        outputs, frames = asyncio.run(shown_while(cells, interrupt))
    (shown, result), (again, whole) = outputs
    log = logs[0]
    assert ROWS / 3 <= log.done < ROWS
    check(lines_of(shown), log)
    assert result.data["text/plain"].endswith(f"({log.done}, 0, True)")
    assert any("finishing" in " ".join(lines) for lines in frames)
    assert lines_of(shown)[-1] == "interrupted"
    assert "ETA" not in shown.data["text/plain"]
    assert f"{ROWS} of {ROWS} done" in again.data["text/plain"]
    assert whole.data["text/plain"].endswith(f"({ROWS - log.done}, 0, False)")


def shown_now(client: NotebookClient) -> list[str]:
    """What the first cell shows; nothing before it shows anything."""
    outputs = client.nb.cells[0].outputs
    return lines_of(outputs[0]) if outputs else []


async def shown_as(
    client: NotebookClient, words: str, log: Callable[[], Truth], within_s: float
) -> None:
    """Returns once the first cell shows these words, and with them the numbers of the log."""
    problems, until_s = ["nothing was seen"], time.monotonic() + within_s
    while problems:
        lines = shown_now(client)
        assert time.monotonic() < until_s, (problems, lines)
        await asyncio.sleep(0.05)
        if re.search(words, " ".join(lines)):
            found = wrong(lines, log())
            problems = [one for one in found if not re.search(UNLOGGED, one)]


@pytest.mark.slow
def test_a_cell_shows_that_the_job_is_parked_and_that_its_server_is_gone(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.6-1.2", "--faults", "500=0.05") as sim:
        logs: list[Truth] = []

        def now() -> Truth:
            logs.append(truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=0.0, at_s=time.monotonic()))
            return logs[-1]

        async def disturb(client: NotebookClient) -> None:
            await until(lambda: sim.stats()["answered"] >= ROWS / 3, every_s=0.05)
            sim.park("", 4.0)
            await shown_as(client, "on hold", now, 3.5)
            # Nothing is answered any more: the log holds for the time without a server.
            sim.kill()
            await shown_as(client, GONE, lambda: logs[-1], 15.0)
            sim.start()
            sim.disturb(latency="0.01")

        outputs, frames = asyncio.run(shown_while([code(sim, tmp_path)], disturb))
        assert sim.stats()["by_status"]["200"] == ROWS - logs[-1].done > 0
    shown, result = outputs[0]
    assert f"{ROWS} of {ROWS} done" in shown.data["text/plain"]
    assert result.data["text/plain"] == f"({ROWS}, 0, False)"
    counts = [done_of(lines) for lines in frames if done_of(lines) >= 0]
    assert counts == sorted(counts)


def test_a_cell_shows_what_the_provider_does_with_a_batch(tmp_path: Path) -> None:
    # Some lines stall: the others are over soon, and then nothing moves.
    with SimProcess("--batch-latency", "0.3-1", "--faults", "stall=0.05") as sim:

        def now() -> Truth:
            return truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=0.0, at_s=time.monotonic())

        async def interrupt(client: NotebookClient) -> None:
            await until(lambda: "1 in_progress" in " ".join(shown_now(client)), every_s=0.05)
            # What goes wrong with the lines is drawn; what is asked from now on goes well.
            sim.disturb()
            await shown_as(client, "of them finished", now, 20.0)
            log = now()
            assert 0 < log.batches["finished"] < log.batches["total"] == ROWS
            await client.km.interrupt_kernel()

        cell = code(sim, tmp_path, via="batch")
        outputs, frames = asyncio.run(shown_while([cell], interrupt))
    assert outputs[0][-1].data["text/plain"].endswith("(0, 0, True)")
    counts = [done_of(lines) for lines in frames if done_of(lines) >= 0]
    assert counts == sorted(counts)
