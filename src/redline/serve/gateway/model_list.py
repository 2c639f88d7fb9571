"""Lists the models of a gateway: those in its settings, and those that its servers list."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec

from redline.calls import Call, Endpoint, Request
from redline.clock import SYSTEM
from redline.process import end_tasks
from redline.serve.gateway.lineup import Ask, Lineup
from redline.serve.http import model_entry

_PATH = "/v1/models"
# Servers load and unload models; until the endpoints change, each server is queried at most once in
# this time.
_FRESH_S = 30.0
_ASK_S = 5.0


class ModelList:
    """The entries of `GET /v1/models`."""

    def __init__(self, lineup: Lineup) -> None:
        self._lineup = lineup
        self._since = int(SYSTEM.wall_s())
        self._found: dict[str, dict[str, Any]] = {}
        self._asked_s = -math.inf
        self._asked: list[Endpoint] = []
        self._asking: asyncio.Task[None] | None = None

    async def all(self) -> list[dict[str, Any]]:
        """Returns one entry for each configured or listed model name."""
        endpoints = [*self._lineup.endpoints]
        if SYSTEM.now_s() - self._asked_s > _FRESH_S or endpoints != self._asked:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            # Shielded: a client that disconnects must not cancel the query for other clients.
            await asyncio.shield(self._asking)
        stated = {name: model_entry(name, self._since) for name in self._lineup.aliases}
        return [*{**self._found, **stated}.values()]

    async def one(self, name: str) -> dict[str, Any] | None:
        """Returns the entry with this name; None if no endpoint is known to have the model."""
        if name in self._lineup.names:
            return model_entry(name, self._since)
        return next((entry for entry in await self.all() if entry["id"] == name), None)

    async def aclose(self) -> None:
        """Cancels queries in progress."""
        await end_tasks(self._asking)

    async def _ask(self) -> None:
        """Queries every server for which the settings name no model."""
        asked = [*self._lineup.endpoints]
        lists = await asyncio.gather(*map(_listed, self._lineup.unnamed()))
        self._found = {entry["id"]: entry for entries in lists for entry in entries}
        self._asked_s, self._asked = SYSTEM.now_s(), asked


async def _listed(ask: Ask) -> list[dict[str, Any]]:
    """Returns the models that a server lists; none if its answer is late or malformed."""
    call = Call(deadline_s=SYSTEM.now_s() + _ASK_S)
    outcome = await ask(Request(method="GET", url=_PATH), call)
    call.let_go()
    if outcome.reply is None:
        return []
    try:
        entries = msgspec.json.decode(outcome.reply.body)["data"]
        return [entry for entry in entries if isinstance(entry["id"], str)]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []
