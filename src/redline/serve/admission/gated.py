"""Puts a backend behind a gate: a call waits for its turn, or fails with the refusal's error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from redline.clock import SYSTEM, Clock
from redline.errors import Withdrawn
from redline.route import MOVED
from redline.serve.admission.errors import Overloaded, QueueFull
from redline.serve.admission.gate import Gate
from redline.waist import Around, Call, Outcome, Request, Sink, failed


@dataclass(eq=False)
class Gated(Around):
    """Sends each call through the gate, in the class of its priority and for its tenant.

    gate: in front of the pool to which the wrapped backend sends; after `Gate.move`, all calls to
    this backend fail with Withdrawn. tokens_of: estimates the tokens of a request; the usage in its
    reply replaces the estimate. weight_of: returns the weight of a tenant. Both functions are
    called only for calls that have to wait.
    """

    gate: Gate
    _: KW_ONLY
    tokens_of: Callable[[Request], float] = lambda _: 1.0
    weight_of: Callable[[str], float] = lambda _: 1.0
    clock: Clock = SYSTEM
    _moves: int = field(init=False)

    def __post_init__(self) -> None:
        self._moves = self.gate.moves

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        gate, since_s = self.gate, None
        if gate.moves != self._moves:
            return failed(Withdrawn(MOVED))
        klass = gate.class_of(call.priority)
        place = gate.try_enter(klass, call.avoid)
        if place is None:
            since_s = self.clock.now_s()
            try:
                place = await gate.enter(
                    klass,
                    tenant=call.tenant,
                    weight=self.weight_of(call.tenant),
                    tokens=self.tokens_of(request),
                    deadline_s=call.deadline_s,
                    avoid=call.avoid,
                )
            except (QueueFull, Overloaded, Withdrawn) as error:
                return failed(error)
        with place:
            if gate.moves != self._moves:
                # `Gate.move` was called after the call's turn had come.
                return failed(Withdrawn(MOVED))
            outcome = await self._inner.send(request, call, sink)
            reply = outcome.reply
            if reply is not None and not (reply.input_tokens is reply.output_tokens is None):
                place.settle((reply.input_tokens or 0) + (reply.output_tokens or 0))
        if since_s is not None:
            outcome.was_queued(since_s)
        return outcome
