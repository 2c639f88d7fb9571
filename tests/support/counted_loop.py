"""An event loop that counts what wakes its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Counts:
    """What a loop was made to do."""

    def __init__(self) -> None:
        self.results = 0
        self.timers = 0


def counting(base: type[asyncio.AbstractEventLoop], counts: Counts) -> asyncio.AbstractEventLoop:
    """A loop that counts its futures' results and its timers that ring."""

    class CountedFuture(asyncio.Future[Any]):
        def set_result(self, result: Any, /) -> None:
            counts.results += 1
            super().set_result(result)

    class CountedLoop(base):  # type: ignore[misc,valid-type]
        def create_future(self) -> asyncio.Future[Any]:
            return CountedFuture(loop=self)

        def call_later(
            self, delay: float, call: Callable[..., Any], *given: Any, **more: Any
        ) -> Any:
            def rings(*given: Any) -> None:
                counts.timers += 1
                call(*given)

            return super().call_later(delay, rings, *given, **more)

    return CountedLoop()
