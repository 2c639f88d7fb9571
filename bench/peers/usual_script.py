"""The usual script: AsyncOpenAI, a semaphore, gather, and the results written at the end.

`usual_script.py INPUT OUTPUT BASE_URL IN_FLIGHT httpx|aiohttp`. The SDK's settings are its own,
with max_retries at its default, but for the timeout: it is 600 s for an answer, and here for a
connection, too, for which 5 s do not suffice at 1,000 in flight. `aiohttp` is the transport its
README recommends for concurrency.
Runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient


async def run(rows: list[dict[str, Any]], client: AsyncOpenAI, in_flight: int) -> list[Any]:
    semaphore = asyncio.Semaphore(in_flight)

    async def call(row: dict[str, Any]) -> dict[str, Any]:
        async with semaphore:
            answer = await client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": row["prompt"]}]
            )
        return {"custom_id": row["custom_id"], "output": answer.choices[0].message.content}

    return list(await asyncio.gather(*(call(row) for row in rows)))


async def main() -> None:
    source, target, base_url, in_flight, transport = sys.argv[1:]
    with open(source) as file:
        rows = [json.loads(line) for line in file]
    http_client = DefaultAioHttpClient() if transport == "aiohttp" else None
    async with AsyncOpenAI(base_url=base_url, http_client=http_client, timeout=600.0) as client:
        results = await run(rows, client, int(in_flight))
    with open(target, "w") as file:
        for result in results:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
