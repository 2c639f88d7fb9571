"""The same job with flexllm: its batch call with checkpoint, progress and request limit.

`flexllm_script.py INPUT OUTPUT BASE_URL IN_FLIGHT PER_S`. PER_S is a limit that never binds, so
that the limiter is paid for. Its checkpoint is flushed once a second, and not synced.
"""

from __future__ import annotations

import asyncio
import json
import sys

from flexllm import LLMClient


async def main() -> None:
    source, target, base_url, in_flight, per_s = sys.argv[1:]
    with open(source) as file:
        rows = [json.loads(line) for line in file]
    async with LLMClient(
        provider="openai",
        model="sim",
        base_url=base_url,
        api_key="bench-key",
        concurrency_limit=int(in_flight),
        max_qps=int(per_s),
    ) as client:
        await client.chat_batch(
            [[{"role": "user", "content": row["prompt"]}] for row in rows],
            output_jsonl=target,
            metadata_list=[{"custom_id": row["custom_id"]} for row in rows],
            show_progress=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
