"""A job whose endpoints all die gives up after 300 s and is resumed; it waits for parked ones."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from redline.calls import Endpoint
from redline.clock import SystemClock
from redline.errors import NoEndpoint
from redline.job import Parts, Report, execute
from redline.job.settings import make_job
from redline.job.show import Meter, View, screen, text_of
from redline.testing import virtual_run
from support.raw_server import RawServer, Seen, answer, chat

ROWS = 60
# Requests after which both are dead.
LAST = 25
# Longer than the time after which dead endpoints are given up.
PARKED_S = 400


class Fleet:
    """Two servers that answer after a second, and die with the request of this number."""

    def __init__(self) -> None:
        self.servers = [RawServer(self.handle), RawServer(self.handle)]
        self.last = LAST
        self.asked: Counter[str] = Counter()
        self.dead_s: float | None = None
        self._dying: list[asyncio.Task[None]] = []

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = seen.json()
        assert isinstance(body, dict)
        self.asked[body["messages"][0]["content"]] += 1
        if self.asked.total() == self.last:
            self.dead_s = asyncio.get_running_loop().time()
            self._dying = [asyncio.create_task(server.stop()) for server in self.servers]
        await asyncio.sleep(1.0)
        writer.write(answer(chat("yes")))


class ParkedFleet(Fleet):
    """Two servers that answer after a second; from that request on both refuse for PARKED_S."""

    def __init__(self) -> None:
        super().__init__()
        self.until_s = math.inf
        self.refused: list[float] = []

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        body, now_s = seen.json(), asyncio.get_running_loop().time()
        assert isinstance(body, dict)
        self.asked[body["messages"][0]["content"]] += 1
        if self.asked.total() == self.last:
            self.until_s = now_s + PARKED_S
        if self.asked.total() >= self.last and now_s < self.until_s:
            self.refused.append(now_s)
            left_s = math.ceil(self.until_s - now_s)
            writer.write(answer(b"{}", status=429, Retry_After=f"{left_s}"))
            return
        await asyncio.sleep(1.0)
        writer.write(answer(chat("yes")))


class Shown:
    """What a terminal of 100 columns would show of a run, every 5 s, with the time."""

    def __init__(self) -> None:
        self.frames: list[tuple[float, str]] = []

    async def show(self, view: View) -> None:
        meter, loop = Meter(view), asyncio.get_running_loop()
        while True:
            await asyncio.sleep(5.0)
            lines = screen(meter.read(), view.source_name, 99)
            self.frames.append((loop.time(), "\n".join(text_of(line) for line in lines)))


async def run(fleet: Fleet, output: Path, shown: Shown | None = None) -> Report:
    keywords = {
        "endpoint": [
            Endpoint(base_url=server.base_url, name=name, proxy="")
            for name, server in zip("ab", fleet.servers, strict=True)
        ],
        "prompt": "{{ text }}",
        "model": "m",
        "concurrency": 4,
        "output": str(output),
    }
    rows = [{"text": f"row {number}"} for number in range(ROWS)]
    return await execute(make_job(rows, keywords, {}), Parts(display=shown))


def results(output: Path) -> list[int]:
    return [json.loads(line)["row"] for line in output.read_text("utf-8").splitlines()]


def test_a_job_that_gave_its_dead_endpoints_up_is_resumed_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loop, output, fleet = asyncio.get_running_loop(), tmp_path / "out.jsonl", Fleet()
        monkeypatch.setattr(SystemClock, "now_s", staticmethod(loop.time))
        one, two = fleet.servers
        async with one, two:
            report = await run(fleet, output)
            assert isinstance(report.stopped, NoEndpoint)
            assert report.stopped.what.startswith("none of 2 endpoints is left; ")
            assert fleet.dead_s is not None
            # The longest pause between two attempts is 15 s.
            assert 300.0 <= loop.time() - fleet.dead_s < 320.0
            done = results(output)
            assert 0 < len(done) == report.succeeded < ROWS
            assert (report.failed, report.unfinished) == (0, report.offered - report.succeeded)
            assert not output.with_name("out.failed.jsonl").exists()
            before = fleet.asked.copy()

            for server in fleet.servers:
                await server.start()
            fleet.last = 0
            again = await run(fleet, output)
        assert again.is_complete
        assert (again.skipped, again.succeeded, again.failed) == (len(done), ROWS - len(done), 0)
        assert sorted(results(output)) == [*range(1, ROWS + 1)]
        assert results(output)[: len(done)] == done
        # A row that had its answer is not asked again, and no other one twice.
        assert all((fleet.asked - before)[f"row {row - 1}"] == 0 for row in done)
        assert set((fleet.asked - before).values()) == {1}

    virtual_run(main())


def test_a_job_waits_for_endpoints_that_are_all_parked_and_says_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loop, output, fleet, shown = (
            asyncio.get_running_loop(),
            tmp_path / "out.jsonl",
            ParkedFleet(),
            Shown(),
        )
        monkeypatch.setattr(SystemClock, "now_s", staticmethod(loop.time))
        one, two = fleet.servers
        async with one, two:
            report = await run(fleet, output, shown)
        assert (report.stopped, report.is_complete) == (None, True)
        assert (report.succeeded, report.failed) == (ROWS, 0)
        assert sorted(results(output)) == [*range(1, ROWS + 1)]
        # No server is asked while it is parked, but for the calls that were on their way.
        assert max(fleet.refused) - min(fleet.refused) < 2.0
        assert len(fleet.refused) <= 4
        assert loop.time() - fleet.until_s < ROWS

        told = dict[float, str]()
        for at_s, text in shown.frames:
            if min(fleet.refused) + 2.0 <= at_s <= fleet.until_s - 10.0:
                assert "every endpoint in use asked redline to wait" in text
                told[at_s] = text
        assert len(told) > PARKED_S / 5 - 5
        for at_s, text in told.items():
            found = re.search(r"no call is sent for another (?:(\d+) m )?(\d+) s", text)
            assert found is not None, text
            until_s = at_s + 60 * int(found[1] or 0) + int(found[2])
            assert until_s == pytest.approx(fleet.until_s, abs=5.0)

    virtual_run(main())
