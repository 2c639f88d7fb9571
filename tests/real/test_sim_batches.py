"""The simulated Batch API over real sockets, with the openai SDK as its client."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from redline.sim import Constant, SimSettings, parse_faults
from redline.sim.server import Sim

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

CHAT: Any = "/v1/chat/completions"


@asynccontextmanager
async def sdk(**settings: Any) -> AsyncIterator[tuple[Sim, openai.AsyncOpenAI]]:
    async with (
        Sim(SimSettings(api_key="sk-test", **settings)) as sim,
        openai.AsyncOpenAI(base_url=sim.base_url, api_key="sk-test", max_retries=0) as client,
    ):
        yield sim, client


def requests(count: int) -> io.BytesIO:
    lines = []
    for number in range(count):
        body = {"model": "m", "messages": [{"role": "user", "content": f"say {number}"}]}
        line = {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body}
        lines.append(json.dumps(line))
    file = io.BytesIO("\n".join(lines).encode())
    file.name = "in.jsonl"
    return file


async def over(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
                return batch
            await asyncio.sleep(0.02)


async def test_the_openai_sdk_runs_a_batch_from_its_upload_to_its_results() -> None:
    async with sdk(batch_latency=Constant(0.1)) as (sim, client):
        file = await client.files.create(file=requests(20), purpose="batch")
        assert (file.purpose, file.filename) == ("batch", "in.jsonl")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"run": "x"}
        )
        assert made.status == "validating"
        done = await over(client, made.id)
        assert done.status == "completed"
        assert done.metadata == {"run": "x"}
        assert done.request_counts.completed == 20
        content = await client.files.content(done.output_file_id)
        results = [json.loads(line) for line in content.text.splitlines()]
        assert {result["custom_id"] for result in results} == {f"r{n}" for n in range(20)}
        assert [batch.id async for batch in client.batches.list(limit=1)] == [made.id]
        assert len([stored async for stored in client.files.list()]) == 2
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)
        stats = sim.stats()
        assert stats["batches"]["answered"] == stats["batches"]["lines"] == 20
        # They are no calls of a model, and no rate limit counts them.
        assert stats["received"] == 0


async def test_the_openai_sdk_cancels_a_batch_and_reads_why_one_failed() -> None:
    async with sdk(batch_latency=Constant(3600.0)) as (_, client):
        file = await client.files.create(file=requests(3), purpose="batch")
        options: Any = {"input_file_id": file.id, "completion_window": "24h"}
        made = await client.batches.create(endpoint=CHAT, **options)
        assert (await client.batches.cancel(made.id)).status == "cancelling"
        assert (await over(client, made.id)).status == "cancelled"
        failed = await client.batches.create(endpoint="/v1/embeddings", **options)
        found = await over(client, failed.id)
        assert found.status == "failed"
        assert found.errors.data[0].code == "invalid_url"
        assert found.errors.data[0].line == 1


@pytest.mark.parametrize(
    ("fault", "error", "is_done"),
    [
        ("429", openai.RateLimitError, False),
        ("500", openai.InternalServerError, False),
        ("503", openai.InternalServerError, False),
        ("reset", openai.APIConnectionError, True),
        ("half", openai.APIConnectionError, True),
    ],
)
async def test_a_fault_at_the_door_comes_before_or_after_what_was_asked(
    fault: str, error: type[Exception], is_done: bool
) -> None:
    async with sdk(faults=parse_faults([f"{fault}=1"])) as (sim, client):
        with pytest.raises(error):
            await client.files.create(file=requests(1), purpose="batch")
        assert sim.stats()["batches"]["files"] == int(is_done)


async def test_what_is_no_form_no_key_or_no_path_is_refused() -> None:
    async with sdk() as (sim, _), aiohttp.ClientSession() as session:
        key = {"Authorization": "Bearer sk-test"}
        for method, path, more, status in [
            ("POST", "/files", {"json": {}}, 400),
            (
                "POST",
                "/files",
                {"data": b"x", "headers": {"content-type": "multipart/form-data"}},
                400,
            ),
            ("PUT", "/batches", {}, 404),
            ("GET", "/batches/batch-x", {}, 404),
            ("GET", "/files/file-x/content", {}, 404),
            ("POST", "/batches", {"json": {"endpoint": "x"}}, 400),
        ]:
            headers = {**key, **more.pop("headers", {})}
            url = f"{sim.base_url}{path}"
            async with session.request(method, url, headers=headers, **more) as reply:
                assert reply.status == status, (path, await reply.text())
        async with session.get(f"{sim.base_url}/batches") as reply:
            assert reply.status == 401
