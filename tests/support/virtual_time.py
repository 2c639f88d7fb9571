"""Tests in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redline.testing import virtual_run


def in_virtual_time(main: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test of this coroutine function in a loop of its own, in which a wait takes no time."""

    def test() -> None:
        async def run() -> None:
            await main()

        virtual_run(run())

    test.__doc__ = main.__doc__
    return test
