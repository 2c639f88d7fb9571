"""How a run is ended: by Ctrl-C, by a cancellation, or by the death of the process or machine.

A death is played by keeping the disk as it is at that moment. What the run does afterwards is to
unwind, which nobody sees: the trace is closed, and the disk is put back.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faults import leaks
from faults.script import Run, Script


class Disk:
    """The folder of an output, as it was when it was kept."""

    def __init__(self, script: Script, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self._kept: dict[Path, bytes] = {}
        # What an earlier process left has been there for long enough.
        self._safe = {path.name: path.stat().st_size for path in folder.glob("*") if path.is_file()}

    def keep(self) -> None:
        paths = [path for path in self._folder.rglob("*") if path.is_file()]
        self._kept = {path: path.read_bytes() for path in paths}

    def restore(self, synced_bytes: Mapping[str, int] | None) -> None:
        """As it was then.

        synced_bytes: by the name of a file of lines, what an fsync has made durable of it: the rest
        is cut at any byte. None where the machine goes on.
        """
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        for path, data in self._kept.items():
            path.parent.mkdir(exist_ok=True)
            if synced_bytes is not None and path.parent == self._folder:
                safe = synced_bytes.get(path.name, self._safe.get(path.name, 0))
                # Any number of bytes that are not synced may be there all the same.
                share = self._script.draws("cut", path.name, len(data)).random()
                data = data[: safe + int(share * (len(data) - safe + 1))]
            path.write_bytes(data)


class Ended:
    """How one run is ended, and who watches it meanwhile: a Display, and a taker of results."""

    def __init__(self, run: Run, loop: Any, disk: Disk) -> None:
        self._run = run
        self._loop = loop
        self._disk = disk
        self.task: asyncio.Task[Any] | None = None
        self.runner: Any = None
        self.view: Any = None
        self.died_s: float | None = None
        self.at_stake: tuple[int, list[Any]] | None = None

    def started(self, runner: Any) -> None:
        self.runner = runner

    async def show(self, view: Any) -> None:
        self.view = view
        await asyncio.get_running_loop().create_future()

    async def take(self, result: Any) -> None:
        part = self._loop.part
        if not part.trace.is_closed:
            part.trace.facts.handed.append(result.row.number)
        part.note(f"row {result.row.number}", 0, "handed")
        if self._run.is_slow_taker:
            await asyncio.sleep(0.2)

    def happen(self) -> None:
        """The event has come in whose middle the run is ended."""
        how, part = self._run.ending.how, self._loop.part
        facts = part.trace.facts
        if how in ("drain", "abort") and self.runner is None:
            # Before there is a runner, Ctrl-C ends the program as it does every other one.
            how = "cancel"
        facts.ended_by, facts.ended_at = how, part.trace.events[-1][3]
        if how in ("kill", "power"):
            self._disk.keep()
            self.at_stake = leaks.at_stake(facts)
            self.died_s = self._loop.time()
            part.trace.is_closed = True
        if how in ("cancel", "kill", "power"):
            self._loop.call_soon(self._cancel)
        elif how in ("drain", "abort"):
            self._loop.call_soon(self._drain)
            if how == "abort":
                self._loop.call_later(self._run.ending.again_s, self._abort)

    def _cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()

    def _drain(self) -> None:
        self._loop.part.trace.facts.drained_s = self._loop.time()
        self.runner.drain()

    def _abort(self) -> None:
        if not self._loop.part.trace.is_closed:
            self._loop.part.trace.facts.aborted_s = self._loop.time()
            self.runner.abort()

    def restore(self) -> None:
        """After a death, the disk is as it was when that came."""
        if self.died_s is not None:
            is_cut = self._run.ending.how == "power"
            self._disk.restore(self._loop.part.trace.facts.synced_bytes if is_cut else None)
