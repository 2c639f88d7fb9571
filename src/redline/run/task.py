"""What a job does with a row beyond asking once: the tasks above `run` are of this shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from redline.calls import Backend, Call, Outcome, Request


class Ask:
    """Asks the job's backend on behalf of one row, once or more, within that row's own deadline."""

    __slots__ = ("_backend", "_call")

    def __init__(self, backend: Backend, call: Call) -> None:
        self._backend = backend
        self._call = call

    async def __call__(self, request: Request) -> Outcome:
        """Exactly one outcome, retries included. Raises nothing but CancelledError."""
        return await self._backend.send(request, self._call)


class Task(Protocol):
    """What becomes of each row."""

    def settings(self) -> Mapping[str, Any]:
        """What decides a result beside the prompt: a resume with other settings is refused."""
        ...

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        """The row's one outcome; its `fields` stand in the result line.

        request: of the row, as its prompt makes it. Must not raise: the row would fail with it.
        """
        ...
