"""Files and batches over either transport, through faults, against the simulated Batch API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from redline import Endpoint, RetryPolicy
from redline.apis import Batch
from redline.calls.client import BatchApi
from redline.errors import BadReply, Disconnected, Rejected, Retryable
from redline.sim import SimSettings, parse_faults
from redline.sim.server import Sim
from support.scripted import Answer, scripted

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]

Run = Callable[[Coroutine[Any, Any, None]], None]
CHAT = "/v1/chat/completions"
QUICK = RetryPolicy(base_s=0.01, cap_s=0.02)


def requests(count: int, text: str) -> bytes:
    lines = []
    for number in range(count):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{text} {number}"}]}
        line = {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body}
        lines.append(json.dumps(line).encode())
    return b"\n".join(lines) + b"\n"


async def made(api: BatchApi, file_id: str) -> Batch:
    while True:
        try:
            return await api.make(file_id, CHAT, {"part": "1"})
        except Retryable:
            continue


def test_files_go_up_and_results_come_down_whatever_breaks(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        faults = parse_faults(["half=0.25", "500=0.1", "reset=0.1"])
        async with (
            Sim(SimSettings(seed=4)) as sound,
            Sim(SimSettings(seed=4, faults=faults)) as sim,
        ):
            for server in (sound, sim):
                api = BatchApi(Endpoint(base_url=server.base_url), QUICK)
                try:
                    # 3 MB: more than a socket holds, so that a half answer is a real one.
                    file = await api.upload("in.jsonl", requests(3000, "x" * 900))
                    assert (await api.file(file.id)) == file
                    batch = await made(api, file.id)
                    async with asyncio.timeout(8):
                        while not batch.is_over:
                            batch = await api.look(batch.id)
                    assert batch.metadata == {"part": "1"}
                    found = []
                    for name in filter(None, (batch.output_file_id, batch.error_file_id)):
                        path = tmp_path / "results"
                        await api.download(name, path)
                        found += [json.loads(line) for line in path.read_bytes().splitlines()]
                    assert len({line["custom_id"] for line in found}) == len(found) == 3000
                    batches, has_more = await api.page()
                    assert batch.id in [each.id for each in batches]
                    assert not has_more
                finally:
                    await api.aclose()

    run(main())


def test_what_the_provider_refuses_is_told_as_of_any_call() -> None:
    async def main() -> None:
        async with Sim(SimSettings(api_key="sk-right")) as sim:
            api = BatchApi(Endpoint(base_url=sim.base_url, api_key="sk-right"), QUICK)
            try:
                for asked in (
                    api.look("batch-x"),
                    api.cancel("batch-x"),
                    api.download("file-x", Path("/dev/null")),
                    api.delete("file-x"),
                    api.make("file-x", CHAT, {}),
                ):
                    with pytest.raises(Rejected) as caught:
                        await asked
                    assert caught.value.status == 404
                    assert "No such" in caught.value.what
            finally:
                await api.aclose()

    asyncio.run(main())


async def test_a_batch_that_has_ended_is_cancelled_in_one_attempt() -> None:
    text = "Cannot cancel a batch with status 'completed'."
    with scripted(lambda _: Answer(409, {"error": {"message": text}})) as server:
        api = BatchApi(Endpoint(base_url=server.base_url, proxy=""), QUICK)
        try:
            with pytest.raises(Rejected, match=text):
                await api.cancel("b")
        finally:
            await api.aclose()
        assert len(server.asked) == 1


def test_a_server_without_batches_or_none_at_all_is_told() -> None:
    async def main() -> None:
        faults = parse_faults(["notjson=1"])
        async with Sim(SimSettings(faults=faults)) as sim:
            api = BatchApi(Endpoint(base_url=sim.base_url), QUICK)
            with pytest.raises(BadReply):
                await api.page()
            await api.aclose()
        api = BatchApi(Endpoint(base_url="http://127.0.0.1:9/v1"), QUICK)
        with pytest.raises(Disconnected):
            await api.make("file-x", CHAT, {})
        await api.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("created_at", [f"1{'0' * 400}", '"today"', "null", "-1e308"])
async def test_a_batch_can_be_read_whatever_its_time_is(created_at: str) -> None:
    body = f'{{"id": "b", "status": "completed", "created_at": {created_at}}}'.encode()
    with scripted(lambda _: Answer(body=body)) as server:
        api = BatchApi(Endpoint(base_url=server.base_url, proxy=""), QUICK)
        try:
            batch = await api.look("b")
        finally:
            await api.aclose()
    assert batch.is_over
    assert batch.created_at == (-1e308 if created_at == "-1e308" else 0.0)
