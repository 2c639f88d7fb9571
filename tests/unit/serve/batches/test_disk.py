"""Operations on the disk that continue when those who wait for them have left."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from redline.serve.batches.disk import Disk


def test_an_error_after_its_caller_was_cancelled_is_no_error_of_the_loop() -> None:
    reported = list[dict[str, Any]]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        disk, go = Disk("test"), asyncio.Event()
        is_over = False

        async def steps() -> None:
            nonlocal is_over
            await go.wait()
            is_over = True
            raise OSError("no space left")

        asking = asyncio.create_task(disk.whole(steps()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        go.set()
        await disk.aclose()
        assert is_over

    asyncio.run(main())
    gc.collect()
    assert reported == []
