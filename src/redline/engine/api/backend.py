"""Makes the engine a backend: OpenAI requests become sequences, and sequences become answers."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from redline.apis import ChoicesWriter, chat, completion_usage, completions
from redline.calls import Attempt, Call, Chunk, Health, Load, Outcome, Reply, Request, Sink
from redline.clock import SYSTEM
from redline.engine.api.bodies import Answer, Drawn, Said
from redline.engine.api.detokenize import Pieces, TextStream
from redline.engine.api.prompting import Asked, read_request
from redline.engine.draft import Chance
from redline.engine.sample import Grammars, Guide, SamplingParams
from redline.engine.schedule import QueueFull
from redline.engine.step import CLOSED, Ask, EngineFailed, EngineThread
from redline.errors import CallError, NoEndpoint, RedlineError, Rejected, ServerFailed, TimedOut
from redline.process import DaemonThreads
from redline.waist import failed

_STATUS_BUSY = 503


class Speaker(NamedTuple):
    """The parts that turn requests into tokens, and tokens into text.

    tokenizer: a tokenizer of transformers. vocabulary: the number of token ids. max_model_len: the
    most tokens of a prompt and its answer together. ends: tokens that end an answer.
    """

    tokenizer: object
    pieces: Pieces
    grammars: Grammars
    vocabulary: int
    max_model_len: int
    ends: frozenset[int]


class EngineBackend:
    """Answers /v1/chat/completions and /v1/completions with the engine in `thread`.

    name: the model's name for clients. most_sequences: the size of the queue; a request for more
    answers is rejected.
    """

    def __init__(
        self, thread: EngineThread, speaker: Speaker, *, name: str, most_sequences: int
    ) -> None:
        self._thread = thread
        self._speaker = speaker
        self._name = name
        self._most_sequences = most_sequences
        # Tokenizing a long prompt may take seconds; meanwhile the event loop serves other calls.
        self._reader = DaemonThreads(1, "redline tokenizer")
        self._is_closed = False
        self._in_flight = 0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        """Returns the load, whose state is gone if the engine has failed, otherwise ready.

        A full queue does not change the state: `send` refuses requests that do not fit.
        """
        if self._thread.failure is not None:
            return Load(state=Health.GONE, room_s=math.inf, binds="the engine has failed")
        return Load(in_flight=self._in_flight)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        """Returns exactly one outcome. Raises only CancelledError, after ending the sequences."""
        begun_s = call.sent_s = SYSTEM.now_s()
        call.attempts += 1
        self._in_flight += 1
        error: CallError | NoEndpoint | None = None
        try:
            reply = await call.in_time(self._answer(request, call, sink), SYSTEM)
        except TimeoutError:
            error = TimedOut("row")
        except QueueFull as full:
            error = ServerFailed(full.what, hint=full.hint, status=_STATUS_BUSY)
        except (CallError, NoEndpoint) as found:
            error = found
        finally:
            self._in_flight -= 1
            call.sent_s = None
        now_s = SYSTEM.now_s()
        if error is None:
            latency_s = now_s - begun_s
            outcome = Outcome(
                status="succeeded", reply=reply, endpoint=self._name, latency_s=latency_s
            )
        else:
            outcome = failed(error, endpoint=self._name)
        outcome.tried = (Attempt(self._name, error, begun_s, None, now_s),)
        return outcome

    async def aclose(self) -> None:
        """Ends the engine and all requests to it."""
        await self._thread.close()
        self._is_closed = True
        self._reader.shutdown(wait=False)

    async def _answer(self, request: Request, call: Call, sink: Sink | None) -> Reply:
        if self._is_closed:
            raise EngineFailed(CLOSED)
        asked, guides = await asyncio.wrap_future(self._reader.submit(self._read, request))
        news: asyncio.Queue[Said | RedlineError] = asyncio.Queue()

        def post(said: Said | RedlineError) -> None:
            self._thread.post(partial(news.put_nowait, said))

        stream = _Stream(sink, call) if asked.form.stream and sink is not None else None
        params, first = asked.params, call.priority or asked.form.priority
        choices: list[_Choice] = []
        asks: list[Ask] = []
        for index, guide in enumerate(guides):
            prompt = asked.prompts[index // params.n]
            choice = _Choice(
                index,
                params,
                self._speaker,
                post,
                streams=stream is not None,
                continues=not asked.form.is_chat,
            )
            most = asked.most_tokens(prompt)
            asks.append(Ask(prompt, params, most, choice, first, index % params.n, guide))
            choices.append(choice)
        self._thread.ask(asks)
        writer = ChoicesWriter(
            chat.FORM if asked.form.is_chat else completions.FORM,
            uuid.uuid4().hex,
            int(SYSTEM.wall_s()),
            asked.form.model or self._name,
            asked.form.includes_usage,
        )
        answer = Answer(writer, self._speaker.pieces)
        try:
            said = await _answered(news, len(choices), answer, stream)
        finally:
            for choice in choices:
                if not choice.is_over:
                    self._thread.cancel(choice)
        read = sum(map(len, asked.prompts))
        written = sum(choice.tokens for choice in choices)
        counted = completion_usage(read, written)
        if stream is not None:
            await stream.put(writer.last(counted))
        texts = [one.text for one in said]
        return Reply(
            output=texts[0] if len(texts) == 1 else texts,
            finish_reason=said[0].finish_reason,
            usage=counted,
            model=writer.model,
            input_tokens=read,
            output_tokens=written,
            body=b"" if stream is not None else msgspec.json.encode(answer.whole(said, counted)),
        )

    def _read(self, request: Request) -> tuple[Asked, list[Guide | None]]:
        """Returns the parsed request and the guide of each choice, if any.

        Raises Rejected if the request is not valid, or asks for too many answers.
        """
        speaker = self._speaker
        asked = read_request(
            request.url,
            request.body,
            speaker.tokenizer,
            speaker.vocabulary,
            speaker.max_model_len,
            speaker.pieces.most_bytes,
        )
        count = len(asked.prompts) * asked.params.n
        if count > self._most_sequences:
            what = f"the request asks for {count:,} answers"
            raise Rejected(
                what, hint=f"ask for at most {self._most_sequences:,}, the size of the queue"
            )
        schema, guide = asked.schema, speaker.grammars.guide
        return asked, [None if schema is None else guide(schema) for _ in range(count)]


class _Stream(NamedTuple):
    """Passes events to the sink; the first one commits the call."""

    sink: Sink
    call: Call

    async def put(self, events: list[dict[str, Any]], text: str = "") -> None:
        for event in events:
            if not self.call.committed:
                self.call.committed = True
                await self.sink.begin(200, {})
            await self.sink.put(Chunk(text, event))


async def _answered(
    news: asyncio.Queue[Said | RedlineError], count: int, answer: Answer, stream: _Stream | None
) -> list[Said]:
    """Returns `count` choices with all of their text, and streams the text as it arrives.

    Raises the error with which a sequence ends.
    """
    said = [Said(index, "") for index in range(count)]
    while not all(one.finish_reason for one in said):
        new = await news.get()
        if isinstance(new, RedlineError):
            raise new
        text = said[new.index].text + new.text
        said[new.index] = msgspec.structs.replace(new, text=text)
        if stream is not None:
            # No event is sent before the engine's first text, so that an error that comes instead
            # keeps its own status.
            if not stream.call.committed:
                await stream.put(answer.first(count))
            await stream.put(answer.next(new), new.text)
    return said


class _Choice:
    """Receives the tokens of one answer in the engine's thread, and posts its text.

    streams: whether new text is posted at once, instead of the whole text at the end. continues:
    whether the answer continues the prompt's text.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        speaker: Speaker,
        post: Callable[[Said | RedlineError], None],
        *,
        streams: bool,
        continues: bool,
    ) -> None:
        self._index = index
        self._text = TextStream(speaker.pieces, params.stop, continues=continues)
        ends = frozenset[int]() if params.ignore_eos else speaker.ends
        self._silent = ends.union(params.stop_token_ids)
        self._post = post
        self._streams = streams
        self._said: list[str] = []
        self._drawn: list[Drawn] | None = None if params.logprobs is None else []
        self.tokens = 0
        self.is_over = False

    def heard(self, tokens: list[int], chances: list[Chance]) -> str | None:
        """Takes new tokens; returns `stop` if they complete a stop string, otherwise None."""
        for place, token in enumerate(tokens):
            self.tokens += 1
            if token in self._silent:
                break
            offset = self._text.length
            self._said.append(self._text.push(token))
            if self._drawn is not None:
                self._drawn.append(Drawn(token, *chances[place], offset))
            if self._text.is_stopped:
                return "stop"
        if self._streams:
            self._hand_on(None)
        return None

    def ended(self, reason: str | RedlineError) -> None:
        """Posts the last part of the answer, or the error."""
        self.is_over = True
        if isinstance(reason, RedlineError):
            self._post(reason)
            return
        self._said.append(self._text.finish())
        # The last bytes may complete a stop string, too.
        self._hand_on("stop" if self._text.is_stopped else reason)

    def _hand_on(self, reason: str | None) -> None:
        self._post(Said(self._index, "".join(self._said), reason, self._drawn))
        self._said, self._drawn = [], None if self._drawn is None else []
