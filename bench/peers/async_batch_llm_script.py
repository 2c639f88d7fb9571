"""The same job with async-batch-llm: its worker pool with checkpoint, progress and request limit.

`async_batch_llm_script.py INPUT OUTPUT BASE_URL IN_FLIGHT PER_S`. PER_S is a limit that never
binds, so that the limiter is paid for. Its checkpoint is not synced, which its production example
asks for: it syncs each line by itself, and this is about the calls.
"""

from __future__ import annotations

import asyncio
import json
import sys

from async_batch_llm import (
    ArtifactIdentity,
    JsonlArtifactStore,
    ProcessorConfig,
    ResumePolicy,
    llm,
    process_prompts,
)


async def main() -> None:
    source, target, base_url, in_flight, per_s = sys.argv[1:]
    with open(source) as file:
        rows = [json.loads(line) for line in file]
    identity = ArtifactIdentity(provider="openai", model="sim", prompt_version="1")
    await process_prompts(
        llm("openai-compatible:sim", base_url=base_url, api_key="bench-key"),
        [(row["custom_id"], row["prompt"]) for row in rows],
        config=ProcessorConfig(
            concurrency=int(in_flight), max_requests_per_minute=60.0 * int(per_s)
        ),
        progress=True,
        artifact_store=JsonlArtifactStore(target, identity=identity),
        resume=ResumePolicy.REUSE_SUCCESSES,
    )


if __name__ == "__main__":
    asyncio.run(main())
