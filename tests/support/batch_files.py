"""Files and batches behind a relay, and the openai SDK as the client of each tenant."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from redline.calls import Backend, Call, Load, Outcome, Request, Sink
from redline.clock import SYSTEM, Clock
from redline.httpserver import Exchange
from redline.serve.batches import Batches, BatchSettings
from redline.serve.http import Bounds, Refusal, Relay, Routes

CHAT: Any = "/v1/chat/completions"
GOING = ("validating", "in_progress", "finalizing", "cancelling")
QUICK = BatchSettings(grace_s=5.0, cancel_s=5.0, in_flight=64)


def line(name: str, **fields: Any) -> dict[str, Any]:
    """One request of a file."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"say {name}"}]}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body, **fields}


def lines(count: int) -> bytes:
    """A file of so many requests."""
    return b"".join(json.dumps(line(f"r{number}")).encode() + b"\n" for number in range(count))


def named(data: bytes, name: str = "in.jsonl") -> io.BytesIO:
    """What the SDK uploads."""
    file = io.BytesIO(data)
    file.name = name
    return file


def tenant_of(exchange: Exchange) -> str:
    """The key itself; without one, nobody."""
    kind, _, key = exchange.headers.get("authorization", "").partition(" ")
    if kind != "Bearer" or not key:
        raise Refusal("No key.", status=401)
    return key


class Counted:
    """A backend whose calls are counted, and which may be asked to wait.

    most: in flight at once, so far. tenants, priorities: of all calls.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls = 0
        self.in_flight = 0
        self.most = 0
        self.tenants: list[str] = []
        self.priorities: set[int] = set()
        self.go = asyncio.Event()
        self.go.set()

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._backend.load(now_s, request)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.calls += 1
        self.tenants.append(call.tenant)
        self.priorities.add(call.priority)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await self.go.wait()
            return await self._backend.send(request, call, sink)
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        await self._backend.aclose()


@asynccontextmanager
async def publishing(
    state: Path,
    backend: Backend,
    settings: BatchSettings = QUICK,
    *,
    clock: Clock = SYSTEM,
    bounds: Bounds | None = None,
) -> AsyncIterator[tuple[Relay, Batches]]:
    """A relay with files and batches, whose tenants are their keys."""
    batches = Batches(state, backend, settings, clock=clock)
    routes = Routes(batches.routes, tenant_of)
    bounds = bounds or Bounds(grace_s=0.2)
    async with batches, Relay(backend, routes=routes, bounds=bounds) as relay:
        yield relay, batches


def client_of(relay: Relay, key: str = "a") -> openai.AsyncOpenAI:
    """The SDK with the key of a tenant."""
    return openai.AsyncOpenAI(base_url=relay.base_url, api_key=key, max_retries=0, timeout=30)


async def begun(client: openai.AsyncOpenAI, data: bytes, **fields: Any) -> Any:
    """A batch of the lines in `data`."""
    file = await client.files.create(file=named(data), purpose="batch")
    asked = {"endpoint": CHAT, "completion_window": "24h", **fields}
    return await client.batches.create(input_file_id=file.id, **asked)


async def over(client: openai.AsyncOpenAI, batch_id: str, *, within_s: float = 30.0) -> Any:
    """The batch, once it is over."""
    async with asyncio.timeout(within_s):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status not in GOING:
                return batch
            await asyncio.sleep(0.05)


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file; none without one."""
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(text) for text in content.text.splitlines()]
