"""The engine as a backend: a request in OpenAI's terms becomes sequences, and these its answer."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from redline.calls import Call, Chunk, Outcome, Reply, Request, Sink
from redline.calls.outcome import failed
from redline.clock import SYSTEM
from redline.engine.bodies import Answer, Drawn, Said, usage
from redline.engine.core import Ask, Asker
from redline.engine.guided import Grammars, Guide
from redline.engine.judge import Chance
from redline.engine.params import SamplingParams
from redline.engine.prompting import Asked, read_request
from redline.engine.scheduler import QueueFull
from redline.engine.text import Pieces, TextStream
from redline.engine.thread import EngineFailed, EngineThread
from redline.errors import CallError, NoEndpoint, RedlineError, Rejected, ServerFailed, TimedOut
from redline.limits import Cost

_STATUS_BUSY = 503


class Speaker(NamedTuple):
    """What turns requests into tokens, and tokens into text. ends: tokens that end an answer."""

    tokenizer: object
    pieces: Pieces
    grammars: Grammars
    vocabulary: int
    max_model_len: int
    ends: frozenset[int]


class EngineBackend:
    """Answers /v1/chat/completions and /v1/completions by the engine in `thread`.

    most_sequences: a request with more choices than that never fits into the queue.
    """

    def __init__(
        self, thread: EngineThread, speaker: Speaker, *, name: str, most_sequences: int
    ) -> None:
        self._thread = thread
        self._speaker = speaker
        self._name = name
        self._most_sequences = most_sequences
        # Tokenizing a long prompt takes milliseconds, and the event loop has other calls.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="redline tokenizer")

    def room(self, cost: Cost, now_s: float) -> float:
        """0, or inf where the engine has failed. The queue's bound is told by `send`."""
        return 0.0 if self._thread.failure is None else math.inf

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        """Exactly one outcome. Raises nothing but CancelledError, which gives the slots back."""
        begun_s = call.sent_s = SYSTEM.now_s()
        call.attempts += 1
        wait_s = call.deadline_s - begun_s
        try:
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                reply = await self._answer(request, call, sink)
        except TimeoutError:
            return failed(TimedOut("row"), endpoint=self._name)
        except (CallError, NoEndpoint) as error:
            return failed(error, endpoint=self._name)
        finally:
            call.sent_s = None
        latency_s = SYSTEM.now_s() - begun_s
        return Outcome(status="succeeded", reply=reply, endpoint=self._name, latency_s=latency_s)

    async def aclose(self) -> None:
        """Ends the engine and all it is asked."""
        await self._thread.close()
        self._reader.shutdown(wait=False)

    async def _answer(self, request: Request, call: Call, sink: Sink | None) -> Reply:
        loop = asyncio.get_running_loop()
        asked, guides = await loop.run_in_executor(self._reader, self._read, request)
        streams = asked.stream and sink is not None
        inbox = _Inbox()
        choices = [
            _Choice(index, params, self._speaker, partial(self._post, inbox), streams)
            for index, (_, params) in enumerate(asked.sequences())
        ]
        if len(choices) > self._most_sequences:
            what = f"the request asks for {len(choices):,} answers"
            hint = f"the engine's queue holds {self._most_sequences:,}"
            raise Rejected(what, hint=hint, status=400)
        self._thread.ask(_asks(asked, choices, guides, call.priority))
        answer = Answer(
            name=uuid.uuid4().hex,
            created_s=int(SYSTEM.wall_s()),
            model=asked.model or self._name,
            is_chat=asked.is_chat,
            pieces=self._speaker.pieces,
            includes_usage=asked.include_usage,
        )
        try:
            if streams and sink is not None:
                return await self._stream(asked, choices, inbox, answer, _Teller(sink, call))
            said = await inbox.all_ended(len(choices))
        finally:
            for choice in choices:
                if not choice.is_over:
                    self._thread.cancel(choice)
        counted = _counted(asked, choices)
        body = msgspec.json.encode(answer.whole(said, counted))
        return _reply(said, counted, answer.model, body)

    def _post(self, inbox: _Inbox, said: Said | RedlineError) -> None:
        self._thread.post(partial(inbox.take, said))

    def _read(self, request: Request) -> tuple[Asked, list[Guide | None]]:
        """What is asked, and for each choice what it must follow. Raises Rejected."""
        speaker = self._speaker
        body = request.body
        if isinstance(body, bytes):
            try:
                body = msgspec.json.decode(body)
            except (msgspec.DecodeError, RecursionError) as error:
                raise Rejected(f"the body is not JSON: {error}", status=400) from None
        asked = read_request(
            request.url, body, speaker.tokenizer, speaker.vocabulary, speaker.max_model_len
        )
        count = min(len(asked.prompts) * asked.n, self._most_sequences)
        if asked.schema is None:
            return asked, [None] * count
        return asked, [speaker.grammars.guide(asked.schema) for _ in range(count)]

    async def _stream(
        self,
        asked: Asked,
        choices: Sequence[_Choice],
        inbox: _Inbox,
        answer: Answer,
        teller: _Teller,
    ) -> Reply:
        """Hands each piece on as it comes."""
        texts, reasons = [""] * len(choices), [""] * len(choices)
        for event in answer.first(len(choices)):
            await teller.tell("", event)
        while not all(reasons):
            for said in await inbox.news():
                texts[said.index] += said.text
                reasons[said.index] = said.finish_reason or ""
                for event in answer.next(said):
                    await teller.tell(said.text, event)
        counted = _counted(asked, choices)
        for event in answer.last(counted):
            await teller.tell("", event)
        whole = list(map(Said, range(len(choices)), texts, reasons))
        return _reply(whole, counted, answer.model, b"")


class _Teller(NamedTuple):
    """Hands events on; from the first one the call is committed."""

    sink: Sink
    call: Call

    async def tell(self, text: str, event: dict[str, object]) -> None:
        self.call.committed = True
        await self.sink.put(Chunk(text, event))


class _Inbox:
    """What the engine has said for one request, in the event loop."""

    def __init__(self) -> None:
        self._news: list[Said] = []
        self._failure: CallError | NoEndpoint | None = None
        self._is_new = asyncio.Event()

    def take(self, said: Said | RedlineError) -> None:
        """Something is new, or one of the sequences has failed."""
        if isinstance(said, Said):
            self._news.append(said)
        elif self._failure is None:
            self._failure = _told(said)
        self._is_new.set()

    async def news(self) -> list[Said]:
        """What is new, once there is something. Raises the error of a sequence that has failed."""
        await self._is_new.wait()
        self._is_new.clear()
        if self._failure is not None:
            raise self._failure
        news, self._news = self._news, []
        return news

    async def all_ended(self, count: int) -> list[Said]:
        """The whole of each of so many choices."""
        said: list[Said] = []
        while len(said) < count:
            said += await self.news()
        return sorted(said, key=lambda one: one.index)


class _Choice:
    """One answer of a request; it hears of its tokens in the engine's thread.

    streams: what is new is posted at once; otherwise the whole is, at its end.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        speaker: Speaker,
        post: Callable[[Said | RedlineError], None],
        streams: bool,
    ) -> None:
        self._index = index
        self._text = TextStream(speaker.pieces, params.stop)
        ends = frozenset[int]() if params.ignore_eos else speaker.ends
        self._silent = ends.union(params.stop_token_ids)
        self._has_chances = params.logprobs is not None
        self._post = post
        self._streams = streams
        self._said: list[str] = []
        self._drawn: list[Drawn] = []
        self.tokens = 0
        self.is_over = False

    def heard(self, tokens: list[int], chances: list[Chance]) -> str | None:
        """Takes new tokens; `stop` where a stop string has come."""
        for place, token in enumerate(tokens):
            self.tokens += 1
            if token in self._silent:
                break
            offset = self._text.length
            self._said.append(self._text.push(token))
            if self._has_chances:
                self._drawn.append(Drawn(token, *chances[place], offset))
            if self._text.is_stopped:
                return "stop"
        if self._streams:
            self._hand_on(None)
        return None

    def ended(self, reason: str | RedlineError) -> None:
        """The last that is said."""
        self.is_over = True
        if isinstance(reason, RedlineError):
            self._post(reason)
            return
        self._said.append(self._text.finish())
        self._hand_on(reason)

    def _hand_on(self, reason: str | None) -> None:
        text, drawn = "".join(self._said), self._drawn if self._has_chances else None
        if text or drawn or reason:
            self._post(Said(self._index, text, reason, drawn))
            self._said, self._drawn = [], []


def _asks(
    asked: Asked, choices: Sequence[Asker], guides: Sequence[Guide | None], priority: int
) -> list[Ask]:
    asks = []
    told = zip(asked.sequences(), choices, guides, strict=True)
    for index, ((prompt, params), choice, guide) in enumerate(told):
        assert params.max_tokens is not None
        most = len(prompt) + params.max_tokens
        first = priority or asked.priority
        asks.append(Ask(prompt, params, most, choice, first, index % asked.n, guide))
    return asks


def _counted(asked: Asked, choices: Sequence[_Choice]) -> dict[str, int]:
    prompts = sum(len(prompt) for prompt in asked.prompts)
    return usage(prompts, sum(choice.tokens for choice in choices))


def _reply(said: Sequence[Said], counted: dict[str, int], model: str, body: bytes) -> Reply:
    texts = [one.text for one in said]
    return Reply(
        output=texts[0] if len(texts) == 1 else texts,
        finish_reason=said[0].finish_reason,
        usage=counted,
        model=model,
        input_tokens=counted["prompt_tokens"],
        output_tokens=counted["completion_tokens"],
        body=body,
    )


def _told(error: RedlineError) -> CallError | NoEndpoint:
    """The error as a call's."""
    if isinstance(error, (CallError, EngineFailed)):
        return error
    assert isinstance(error, QueueFull)
    return ServerFailed(error.what, hint=error.hint, status=_STATUS_BUSY)
