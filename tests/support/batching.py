"""A backend of lists, plans of calls to a batcher in front of it, and the law that they keep."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from redline.calls import (
    Backend,
    Call,
    DynamicBatcher,
    Load,
    Outcome,
    Reply,
    Request,
    Sink,
    failed,
)
from redline.errors import CallError, RateLimited, Rejected, ServerFailed, TimedOut
from redline.testing import VirtualClock, virtual_run

URL = "/v1/embeddings"
FIXED_S, EACH_S = 0.05, 0.001


def vector_of(text: str) -> list[float]:
    """What the server answers to a text: no other text has the same."""
    return [float(ord(letter)) for letter in text]


class Seen(msgspec.Struct):
    """A call as the server saw it."""

    texts: list[str]
    begun_s: float
    fault: str = ""
    is_cancelled: bool = False


class ListServer:
    """Embeds texts, at a fixed cost a call and one for each item.

    A list with a text that begins with `bad` is refused as a whole. faults: by the number of the
    call, from 1, a 429 or 503 in place of the answer.
    """

    label = "server"

    def __init__(self, faults: dict[int, str] | None = None) -> None:
        self.seen: list[Seen] = []
        self.calls: list[Call] = []
        self.requests: list[Request] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.is_closed = False
        self._faults = faults or {}

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load(in_flight=self.in_flight)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        value = request.body["input"]
        texts = [value] if isinstance(value, str) else value
        loop = asyncio.get_running_loop()
        try:
            if call.on_write is not None:
                call.on_write()
        except CallError as error:
            return failed(error, endpoint=self.label)
        seen = Seen(texts, loop.time(), self._faults.get(len(self.seen) + 1, ""))
        self.seen.append(seen)
        self.calls.append(call)
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(FIXED_S + EACH_S * len(texts))
        except asyncio.CancelledError:
            seen.is_cancelled = True
            raise
        finally:
            self.in_flight -= 1
        return self._outcome(seen)

    async def aclose(self) -> None:
        self.is_closed = True

    def _outcome(self, seen: Seen) -> Outcome:
        if seen.fault == "429":
            return failed(
                RateLimited("slow down", status=429, retry_after_s=2.0), endpoint=self.label
            )
        if seen.fault:
            return failed(ServerFailed(f"quoting {seen.texts[0]}", status=503), endpoint=self.label)
        bad = [text for text in seen.texts if text.startswith("bad")]
        if bad:
            return failed(Rejected(f"cannot read {bad[0]}", status=400), endpoint=self.label)
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(text)}
            for index, text in enumerate(seen.texts)
        ]
        tokens = sum(map(len, seen.texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        # Servers need not keep the order, and say so by the index.
        body = {"object": "list", "data": data[::-1], "model": "m", "usage": usage}
        vectors = [one["embedding"] for one in data]
        reply = Reply(
            output=vectors[0] if len(vectors) == 1 else vectors,
            usage=usage,
            input_tokens=tokens,
            body=msgspec.json.encode(body),
        )
        return Outcome(status="succeeded", reply=reply, endpoint=self.label)


class Asking(msgspec.Struct, frozen=True):
    """One call of a plan. after_s: since the one before. texts: how many, bad: which of them are.

    patience_s: until it is cancelled. deadline_s: from its start. model: those of the same share
    calls.
    """

    after_s: float = 0.0
    texts: int = 1
    bad: bool = False
    patience_s: float | None = None
    deadline_s: float | None = None
    model: str = "m"
    priority: int = 0


class Ended(msgspec.Struct):
    """What became of a call. outcome: None if it was cancelled, at `at_s`.

    is_sent: its Call says that it is still in flight.
    """

    asking: Asking
    texts: list[str]
    outcome: Outcome | None
    at_s: float
    is_sent: bool = False


def batcher_of(backend: Backend | Callable[..., Any], **settings: Any) -> DynamicBatcher:
    return DynamicBatcher(backend, **settings, clock=VirtualClock(asyncio.get_running_loop()))


def request_of(texts: Sequence[str] | str, model: str = "m") -> Request:
    return Request(url=URL, body={"model": model, "input": texts})


Make = Callable[[Backend], DynamicBatcher]


def lived(plan: Sequence[Asking], faults: dict[int, str], make: Make) -> None:
    """Runs a plan in virtual time. Raises AssertionError if the law is broken.

    Every caller has its own answer, exactly once; what is cancelled before it left is not sent; at
    the end nothing waits, and nothing is in flight.
    """
    virtual_run(_live(plan, faults, make))


async def _live(plan: Sequence[Asking], faults: dict[int, str], make: Make) -> None:
    server = ListServer(faults)
    batcher = make(server)
    loop = asyncio.get_running_loop()
    numbers = itertools.count(1)
    ended: list[Ended] = []

    async def ask(asking: Asking) -> None:
        texts = [f"{'bad' if asking.bad else 'text'}-{next(numbers)}" for _ in range(asking.texts)]
        call = Call(priority=asking.priority)
        if asking.deadline_s is not None:
            call.deadline_s = loop.time() + asking.deadline_s
        request = request_of(texts[0] if len(texts) == 1 else texts, asking.model)
        try:
            async with asyncio.timeout(asking.patience_s):
                outcome = await batcher.send(request, call)
        except TimeoutError:
            ended.append(Ended(asking, texts, None, loop.time()))
        else:
            ended.append(Ended(asking, texts, outcome, loop.time()))
        ended[-1].is_sent = call.sent_s is not None

    async with asyncio.TaskGroup() as group:
        for asking in plan:
            await asyncio.sleep(asking.after_s)
            group.create_task(ask(asking))
    await asyncio.sleep(0)
    check(ended, server, batcher)
    assert len(ended) == len(plan)
    await batcher.aclose()
    assert server.is_closed


def check(ended: list[Ended], server: ListServer, batcher: DynamicBatcher) -> None:
    for one in ended:
        assert not one.is_sent
        calls = [seen for seen in server.seen if set(one.texts) & set(seen.texts)]
        for seen in calls:
            shared = [text for text in seen.texts if text in one.texts]
            assert shared == one.texts, "a request's items stay together, in their order"
        if one.outcome is None:
            late = [seen for seen in calls if seen.begun_s > one.at_s]
            assert not late, f"{one.texts} was sent after it was cancelled"
            continue
        _check_outcome(one, one.outcome, calls)
    figures = batcher.figures()
    assert (figures.waiting, figures.in_flight, server.in_flight) == (0, 0, 0)
    load = batcher.load(asyncio.get_running_loop().time())
    assert (load.in_flight, load.waiting, load.room_s) == (0, 0, 0.0)


def _check_outcome(one: Ended, outcome: Outcome, calls: list[Seen]) -> None:
    error = outcome.error
    if isinstance(error, TimedOut):
        assert one.asking.deadline_s is not None
    elif isinstance(error, RateLimited | ServerFailed):
        fault = "429" if isinstance(error, RateLimited) else "503"
        assert calls[-1].fault == fault
    elif one.asking.bad:
        assert isinstance(error, Rejected), f"{one.texts} was answered with {outcome}"
        assert calls[-1].texts == one.texts
    else:
        assert error is None, f"{one.texts} failed: {error}"
        own = [vector_of(text) for text in one.texts]
        assert outcome.output == (own[0] if len(own) == 1 else own)
        answered = [seen for seen in calls if not seen.fault and not seen.is_cancelled]
        assert answered
        assert outcome.reply is not None
        body = msgspec.json.decode(outcome.reply.body)
        assert sorted(item["index"] for item in body["data"]) == [*range(len(own))]
        assert outcome.reply.input_tokens == sum(map(len, one.texts))
