"""Waiting until something is so of which no event tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(
    is_so: Callable[[], object], *, within_s: float = 60.0, every_s: float = 0.002
) -> None:
    """Returns once it is so; the loop goes on meanwhile. Raises AssertionError if it comes late.

    every_s: how often it is asked; seldom if that takes a request.
    """
    try:
        async with asyncio.timeout(within_s):
            while not is_so():  # noqa: ASYNC110 - plain numbers, or those of another process
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"not so within {within_s:g} s") from None


def wait_until(is_so: Callable[[], object], *, within_s: float = 60.0) -> None:
    """The same for what another process or thread brings about."""
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s, f"not so within {within_s:g} s"
        time.sleep(0.05)
