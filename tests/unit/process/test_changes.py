"""Waiting for a state that others change."""

from __future__ import annotations

import asyncio

from redline.process import Changes
from redline.testing import virtual_run


def test_a_waiter_goes_on_once_its_own_state_has_come_about() -> None:
    async def main() -> None:
        changes, count, ended = Changes(), 0, list[int]()

        async def wait(least: int) -> None:
            await changes.wait_for(lambda: count >= least)
            ended.append(least)

        waiting = [asyncio.create_task(wait(least)) for least in (0, 2, 1, 2)]
        await asyncio.sleep(0)
        assert ended == [0]
        count = 1
        await asyncio.sleep(1)
        assert ended == [0], "nobody was notified"
        changes.notify()
        await asyncio.sleep(0)
        assert ended == [0, 1]
        count = 2
        changes.notify()
        await asyncio.gather(*waiting)
        assert ended == [0, 1, 2, 2]

    virtual_run(main())


def test_a_waiter_that_is_cancelled_wakes_no_other_one() -> None:
    async def main() -> None:
        changes, is_so = Changes(), False
        first, second = (asyncio.create_task(changes.wait_for(lambda: is_so)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert not second.done()
        is_so = True
        changes.notify()
        await second

    virtual_run(main())
