"""Batches whose server is killed, or told to end, in their middle, and started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import openai
import pytest

from redline.calls import Endpoint, HttpBackend
from redline.sim.server import Sim
from support import forked
from support.batch_files import begun, client_of, lines, over, publishing, results
from support.batch_server import batch_server
from support.sim_process import SimProcess
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240), pytest.mark.usefixtures("no_proxy")]

IN_FLIGHT = 32
# Of a server without keys.
TENANT = "default"
NAMES = sorted(f"r{number}" for number in range(50))


async def ended_and_begun_again(tmp_path: Path, number: signal.Signals, count: int) -> int:
    """Runs a batch of `count` lines whose server gets the signal; the endpoint's requests."""
    with SimProcess("--latency", "0.005") as sim:
        with batch_server(tmp_path, sim.base_url, IN_FLIGHT) as (process, url):
            async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
                made = await begun(client, lines(count))
                await until(lambda: sim.stats()["received"] > count // 3, within_s=60)
            os.kill(process.pid, number)
            await asyncio.to_thread(forked.ended, process, 60)
        await until(lambda: sim.stats()["in_flight"] == 0)
        before = sim.stats()["received"]
        assert before < count
        with batch_server(tmp_path, sim.base_url, IN_FLIGHT) as (_, url):
            async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
                done = await over(client, made.id, within_s=120)
                assert done.status == "completed"
                assert done.request_counts.completed == count
                found = await results(client, done.output_file_id)
        names = Counter(one["custom_id"] for one in found)
        assert names == Counter(f"r{n}" for n in range(count))
        received: int = sim.stats()["received"]
        return received


async def test_after_a_kill_every_line_has_one_result(tmp_path: Path) -> None:
    received = await ended_and_begun_again(tmp_path, signal.SIGKILL, 2000)
    assert 2000 <= received <= 2000 + IN_FLIGHT


async def test_after_an_end_in_order_no_line_is_asked_twice(tmp_path: Path) -> None:
    assert await ended_and_begun_again(tmp_path, signal.SIGTERM, 2000) == 2000


@pytest.mark.slow
async def test_whatever_a_death_leaves_becomes_a_whole_batch(tmp_path: Path) -> None:
    state, images = tmp_path / "state", tmp_path / "images"
    async with Sim() as sim:
        with batch_server(state, sim.base_url, IN_FLIGHT) as (process, url):
            async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
                making = asyncio.create_task(begun(client, lines(50)))
                taken: list[Path] = []
                is_over = False
                while not is_over:
                    is_over = making.done() and _is_over(state)
                    # Stopped, so that all files are of one moment, as those of a killed process.
                    os.kill(process.pid, signal.SIGSTOP)
                    taken.append(images / f"{len(taken):04}")
                    await asyncio.to_thread(shutil.copytree, state, taken[-1])
                    os.kill(process.pid, signal.SIGCONT)
                    await asyncio.sleep(0.005)
                made = await making
        backend = HttpBackend(Endpoint(base_url=sim.base_url))
        ended = set[str]()
        for image in taken[:: max(1, len(taken) // 20)]:
            async with publishing(image, backend) as (relay, _), client_of(relay, TENANT) as client:
                known = [one.id async for one in client.batches.list()]
                assert known in ([made.id], [])
                if known:
                    done = await over(client, made.id)
                    ended.add(done.status)
                    found = await results(client, done.output_file_id)
                    assert sorted(one["custom_id"] for one in found) == NAMES
                files = [one async for one in client.files.list()]
                assert len(files) <= 1 + len(known)
                for file in files:
                    assert len((await client.files.content(file.id)).content) == file.bytes
                assert not list((image / "files").glob("*.part"))
                assert len(list((image / "files").iterdir())) == 2 * len(files)
        assert ended == {"completed"}
        await backend.aclose()


def _is_over(state: Path) -> bool:
    records = [path.read_text() for path in (state / "batches").glob("batch_*.json")]
    return any('"status":"completed"' in text for text in records)
