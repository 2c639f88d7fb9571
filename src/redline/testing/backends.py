"""Provides a backend with scripted answers, without a network, in the event loop's time."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence

import msgspec

from redline.calls import Attempt, Call, Chunk, Health, Load, Outcome, Reply, Request, Sink, failed
from redline.errors import CallError, ConfigError, NoEndpoint

Step = Outcome | Reply | CallError | NoEndpoint


class Send(msgspec.Struct, frozen=True):
    """One send as the backend saw it.

    number: counts all sends, from 1. attempt: counts the sends of the same call, from 1. at_s: the
    event loop's time in seconds when the send began.
    """

    request: Request
    number: int
    attempt: int
    at_s: float


class ScriptedBackend:
    """A backend that ends each send as the script says, and records it in `sends`.

    in_flight, most_in_flight, cancelled: the number of sends now in progress, its maximum so far,
    and the number of sends that were cancelled. is_closed: whether `aclose` was called.
    script: the steps for send 1, 2, ... (the last step is repeated), or a function that returns the
    step for a Send. A step that is a Reply succeeds, an error fails, and an Outcome is returned as
    a copy. latency_s: how long a send takes in the loop's time, 0 or more seconds; or a function
    that returns it for a Send. room_s: for how many seconds `load` reports the backend as parked;
    can be set at any time. label: the name of the endpoint in outcomes made from a Reply or error.
    If a send has a sink, the text of a success goes to the sink as one chunk before the outcome. A
    send does not end at the deadline of its call. Raises ConfigError for an empty script.
    """

    def __init__(
        self,
        script: Sequence[Step] | Callable[[Send], Step],
        *,
        latency_s: float | Callable[[Send], float] = 0.0,
        room_s: float = 0.0,
        label: str = "scripted",
    ) -> None:
        if not callable(script) and not script:
            raise ConfigError("the script is empty", hint="pass at least one Reply or error")
        self.sends: list[Send] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.cancelled = 0
        self.is_closed = False
        self.room_s = room_s
        self.label = label
        self._script = script
        self._latency_s = latency_s

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load(
            state=Health.GONE if self.is_closed else Health.READY,
            in_flight=self.in_flight,
            room_s=math.inf if self.is_closed else self.room_s,
            parked_until_s=now_s + self.room_s if self.room_s else -math.inf,
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        now_s = asyncio.get_running_loop().time()
        send = Send(request, len(self.sends) + 1, max(1, call.attempts), now_s)
        self.sends.append(send)
        call.sent_s = now_s
        if call.on_write is not None:
            call.on_write()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        latency_s = self._latency_s(send) if callable(self._latency_s) else self._latency_s
        try:
            await asyncio.sleep(latency_s)
            outcome = self._outcome(send)
            if sink is not None and outcome.is_success and isinstance(outcome.output, str):
                call.committed = True
                await sink.begin(200, {})
                await sink.put(Chunk(outcome.output, {"text": outcome.output}))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
            call.sent_s = None
        return outcome

    async def aclose(self) -> None:
        self.is_closed = True

    def _outcome(self, send: Send) -> Outcome:
        # The caller may modify an outcome and its error, so each is a fresh copy.
        step = copy.copy(self._step(send))
        if isinstance(step, Outcome):
            step.error = copy.copy(step.error)
            return step
        now_s = asyncio.get_running_loop().time()
        outcome = (
            Outcome(status="succeeded", reply=step) if isinstance(step, Reply) else failed(step)
        )
        outcome.endpoint, outcome.latency_s = self.label, now_s - send.at_s
        outcome.tried = (Attempt(self.label, outcome.error, send.at_s, None, now_s),)
        return outcome

    def _step(self, send: Send) -> Step:
        if callable(self._script):
            return self._script(send)
        return self._script[min(send.number, len(self._script)) - 1]
