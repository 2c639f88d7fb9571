"""Requests are read in a thread of their own, which is in nobody's way."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from redline.calls import Call, Outcome, Request
from redline.engine.api import EngineBackend, Pieces, Speaker
from redline.engine.sample import Grammars
from redline.engine.schedule import QueueFull
from redline.engine.step import Ask, EngineFailed
from redline.errors import Rejected, ServerFailed
from support import vocabularies

LIMIT_S = 60.0
TOKENIZER = vocabularies.byte_level()


class NoEngine:
    """Takes what is asked, and answers nothing."""

    failure = None

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.is_asked = asyncio.Event()

    def ask(self, asks: list[Ask]) -> None:
        self.prompts += [ask.prompt for ask in asks]
        self.is_asked.set()

    def cancel(self, asker: Any) -> None: ...

    async def close(self) -> None: ...


def backend_of(engine: NoEngine, tokenizer: Any = TOKENIZER) -> EngineBackend:
    grammars = Grammars(TOKENIZER, 420, ())
    speaker = Speaker(tokenizer, Pieces(TOKENIZER), grammars, 420, 100, frozenset())
    return EngineBackend(cast("Any", engine), speaker, name="m", most_sequences=1024)


def sent(backend: EngineBackend, prompt: Any, **body: Any) -> asyncio.Task[Outcome]:
    request = Request(url="/v1/completions", body={"prompt": prompt, **body})
    return asyncio.ensure_future(backend.send(request, Call()))


def give_up_reading() -> None:
    """Leaves a prompt that is read for ever."""
    begun = threading.Event()

    class Endless:
        def encode(self, text: str, **ways: Any) -> list[int]:
            begun.set()
            threading.Event().wait()
            return []

    async def main() -> None:
        asked = sent(backend_of(NoEngine(), Endless()), "hi")
        assert await asyncio.to_thread(begun.wait, LIMIT_S)
        asked.cancel()

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_a_long_reading_does_not_hold_the_exit() -> None:
    """The process is forked, as to import PyTorch in another one takes seconds."""
    process = multiprocessing.get_context("fork").Process(target=give_up_reading)
    process.start()
    process.join(LIMIT_S)
    process.kill()
    assert process.exitcode == 0


async def test_what_was_given_up_is_not_read_and_a_failure_is_its_callers() -> None:
    begun, go, seen = threading.Event(), threading.Event(), []

    class Reading:
        def encode(self, text: str, **ways: Any) -> list[int]:
            seen.append(text)
            begun.set()
            assert go.wait(LIMIT_S)
            if text == "bad":
                raise KeyError(text)
            return [len(text)]

    engine = NoEngine()
    backend = backend_of(engine, Reading())
    one, gone, bad, last = (sent(backend, text) for text in ("one", "gone", "bad", "last"))
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    gone.cancel()
    await asyncio.wait([gone])
    go.set()
    with pytest.raises(KeyError):
        await bad
    while len(engine.prompts) < 2:
        engine.is_asked.clear()
        await asyncio.wait_for(engine.is_asked.wait(), LIMIT_S)
    assert (seen, engine.prompts) == (["one", "bad", "last"], [[3], [4]])
    one.cancel()
    last.cancel()
    await asyncio.wait([one, last])
    await backend.aclose()


async def test_too_many_answers_are_refused_before_the_event_loop_makes_any() -> None:
    engine = NoEngine()
    backend = backend_of(engine)
    outcome = await sent(backend, [[5]] * 2048, n=128)
    assert isinstance(outcome.error, Rejected)
    assert "asks for 262,144 answers" in outcome.error.what
    assert engine.prompts == []
    await backend.aclose()


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_that_finds_the_queue_full_has_not_begun(url: str) -> None:
    class FullEngine(NoEngine):
        def ask(self, asks: list[Ask]) -> None:
            for ask in asks:
                ask.asker.ended(QueueFull("full"))

        def post(self, call: Callable[[], None]) -> None:
            call()

    backend, call = backend_of(FullEngine()), Call()
    given: dict[str, Any] = {"prompt": "hi"}
    if "chat" in url:
        given = {"messages": [{"role": "user", "content": "hi"}]}
    request = Request(url=url, body={**given, "stream": True})
    outcome = await backend.send(request, call, cast("Any", object()))
    assert isinstance(outcome.error, ServerFailed)
    assert outcome.error.status == 503
    assert not call.committed
    await backend.aclose()


async def test_who_comes_after_the_end_is_told_so() -> None:
    backend = backend_of(NoEngine())
    await backend.aclose()
    outcome = await sent(backend, [5])
    assert isinstance(outcome.error, EngineFailed)
    assert "closed" in outcome.error.what
