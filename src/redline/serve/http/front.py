"""Serves a backend over HTTP with the OpenAI API: parses requests and encodes answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from redline.calls import Backend, Call, Health, Outcome, Request, Sink
from redline.calls.tokens import facts_of
from redline.clock import SYSTEM
from redline.httpserver import Exchange
from redline.serve.http.door import Door
from redline.serve.http.event_stream import EventStream
from redline.serve.http.messages import answer_messages
from redline.serve.http.refusals import Refusal, busy, no_model, refusal_of
from redline.serve.http.replies import body_of
from redline.serve.http.requests import MESSAGES_CALLS, Bounds, read_call


class Front(Door):
    """A server for `backend`, in an `async with` block or from `start` to `aclose`.

    models: the names that GET /v1/models lists, and that a call may use. takes_any: a call may use
    any name, as it may if there are no models. metrics: returns the text of GET /metrics, for
    Prometheus; None for no such page. Calls to Anthropic's Messages API are translated to chats.
    The server runs in the event loop that starts it, can start only once, and does not close the
    backend.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        models: Sequence[str] = (),
        takes_any: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        metrics: Callable[[], str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        pages = {} if metrics is None else {"/metrics": lambda: metrics().encode()}
        self._backend = backend
        self._known = () if takes_any else models
        super().__init__(models=models, address=(host, port), pages=pages, bounds=bounds)

    async def _answer(self, exchange: Exchange) -> None:
        raw = await self._body(exchange)
        if exchange.path in MESSAGES_CALLS:
            await self._answer_messages(exchange, raw)
            return
        asked = read_call(exchange.path, raw, self._known)
        del raw
        call = Call(priority=asked.priority)
        stream = EventStream(exchange, asked) if asked.is_stream else None
        try:
            outcome = await self._send(call, asked.request, stream)
            if outcome.error is not None:
                raise refusal_of(outcome.error)
            reply = outcome.reply
            assert reply is not None
            if stream is not None:
                await stream.finish(reply)
            else:
                exchange.respond(reply.status, body_of(asked, reply))
                # The call is in flight until its client has taken the response.
                await exchange.drained()
        except Refusal as refusal:
            if stream is None or not stream.has_begun:
                raise
            await stream.fail(refusal)
        finally:
            call.let_go()

    async def _answer_messages(self, exchange: Exchange, raw: bytes) -> None:
        facts = facts_of(raw)
        if facts.model and self._known and facts.model not in self._known:
            raise no_model(facts.model, self._known)
        call = Call(priority=facts.priority or 0)
        try:
            await answer_messages(exchange, raw, partial(self._send, call))
        finally:
            call.let_go()

    def _trouble(self) -> Refusal | None:
        if self._backend.load(SYSTEM.now_s()).state is Health.GONE:
            return busy("The backend is down.", "backend_down")
        return None

    async def _send(self, call: Call, request: Request, sink: Sink | None) -> Outcome:
        return await self._until_closed(self._backend.send(request, call, sink))
