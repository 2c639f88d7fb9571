"""Reads the pages of an endpoint's server every second, once its pool is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from redline.clock import Clock
from redline.route.balance import Figures
from redline.route.metrics_page import ServerFigures

EVERY_S = 1.0
# Each time a metrics page cannot be read, the pause before the next attempt doubles, up to this.
LONGEST_PAUSE_S = 60.0


class Watchable(Protocol):
    """A server's pages, and which of them to read."""

    has_metrics: bool
    has_health: bool

    async def figures(self) -> ServerFigures | None:
        """Returns the figures that the server reports; None if unavailable. Raises nothing."""

    async def is_well(self) -> bool:
        """Returns whether the server reports that it is healthy. Raises nothing."""

    async def aclose(self) -> None:
        """Closes the connections."""


class Watch:
    """Reads each page in a task of its own, so that a slow page does not delay the other.

    figures: receives the server's figures. on_health: called with each result of the health page.
    Must be made in the event loop in which it will run.
    """

    def __init__(
        self, pages: Watchable, figures: Figures, on_health: Callable[[bool], None], clock: Clock
    ) -> None:
        self._pages = pages
        self._figures = figures
        self._on_health = on_health
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        if pages.has_health:
            self._tasks.append(asyncio.create_task(self._probe()))
        if pages.has_metrics:
            self._tasks.append(asyncio.create_task(self._scrape()))

    async def aclose(self) -> None:
        """Ends the tasks, and closes the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._pages.aclose()

    async def _probe(self) -> None:
        while True:
            self._on_health(await self._pages.is_well())
            await asyncio.sleep(EVERY_S)

    async def _scrape(self) -> None:
        figures, pause_s = self._figures, EVERY_S
        while True:
            asked_s, in_flight = self._clock.now_s(), figures.in_flight
            found = await self._pages.figures()
            if found is None:
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            else:
                pause_s = EVERY_S
                # Subtract this pool's own calls, which already count: the larger of their numbers
                # at the request and at the arrival of the page, so that no call counts twice.
                own = max(in_flight, figures.in_flight)
                figures.seen_s = asked_s
                figures.queued, figures.gpu = found.waiting, found.cache_used
                figures.foreign = max(0, found.running + found.waiting - own)
            await asyncio.sleep(pause_s)
