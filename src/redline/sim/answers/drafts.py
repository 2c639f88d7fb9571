"""Drafts replies in the OpenAI API's shapes before their requests are admitted.

A draft knows the cost of its reply, so token limits can charge the request on arrival. A draft is
encoded only if its request is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from redline.apis import (
    ChoicesWriter,
    Form,
    SampledRequest,
    chat,
    completion_usage,
    completions,
    embeddings,
    event_bytes,
    response_usage,
    responses,
)
from redline.sim.answers.answers import Answers, Said, cut, embedding, packed
from redline.sim.answers.bodies import BYTES_PER_TOKEN, BadCall, count_tokens, decode, texts
from redline.sim.answers.tool_calls import forced_calls
from redline.sim.wire import StreamEvent

DEFAULT_DIMENSIONS = 8
MAX_DIMENSIONS = 4096
# About the size of a socket buffer.
_LONG_BYTES = 64 * 1024
# An upper bound on the size of an event without its text and the model's name.
_LONGEST_FRAME_BYTES = 300
Object = dict[str, Any]

_CHAT = msgspec.json.Decoder(chat.Request)
_COMPLETION = msgspec.json.Decoder(completions.Request)
_EMBEDDING = msgspec.json.Decoder(embeddings.Request)
_RESPONSE = msgspec.json.Decoder(responses.Request)


class Draft(Protocol):
    """A reply that is ready to be encoded.

    completion_tokens: those of all choices together. most_tokens: those that the request allows for
    all choices; completion_tokens if it sets no bound. is_long: whether the events may take more
    than 64 KiB.
    """

    prompt_tokens: int
    completion_tokens: int
    most_tokens: int
    is_stream: bool

    @property
    def is_long(self) -> bool: ...

    def whole(self, number: int, created_s: int, /) -> Object:
        """Returns the JSON object of the whole reply to request `number`."""

    def events(self, number: int, created_s: int, /) -> Iterator[StreamEvent]:
        """Yields the events of the streamed reply to request `number`."""


class _Generated:
    """A reply with choices, to a chat request or a plain completion request."""

    def __init__(
        self,
        form: Form,
        body: SampledRequest,
        prompt_tokens: int,
        said: list[Said],
        most: int | None,
    ) -> None:
        """Drafts the reply. most: the request's bound on a choice's tokens; None for no bound."""
        self._form = form
        self._model = body.model
        self._said = said
        self.prompt_tokens = prompt_tokens
        tokens = 0
        for one in said:
            tokens += one.tokens
        self.completion_tokens = tokens
        self.most_tokens = tokens if most is None else most * len(said)
        self.is_stream = bool(body.stream)
        self._includes_usage = body.includes_usage

    @property
    def is_long(self) -> bool:
        pieces, characters = 1, 0
        for said in self._said:
            # The first event and the last one have no text.
            pieces += said.text.count(" ") + 3
            characters += len(said.text)
            for call in said.calls:
                pieces += call.arguments.count(" ") + 2
                characters += len(call.tool) + len(call.arguments)
        # A character takes at most six bytes, like \u0000.
        frames_bytes = pieces * (_LONGEST_FRAME_BYTES + 6 * len(self._model))
        return frames_bytes + 6 * characters > _LONG_BYTES

    def whole(self, number: int, created_s: int) -> Object:
        write = self._form.choice
        choices: list[Object] = []
        for said in self._said:
            index = len(choices)
            if said.calls:
                calls = [
                    chat.tool_call(_call_id(number, index, position), call.tool, call.arguments)
                    for position, call in enumerate(said.calls)
                ]
                choices.append(write(index, None, said.finish_reason, tool_calls=calls))
            else:
                choices.append(write(index, said.text, said.finish_reason))
        return self._writer(number, created_s).whole(choices, self._usage())

    def events(self, number: int, created_s: int) -> Iterator[StreamEvent]:
        writer, form = self._writer(number, created_s), self._form
        encode, write = writer.encoder(), form.piece
        end = 0
        for index, said in enumerate(self._said):
            before, end = end, end + said.tokens
            if form.opening is not None:
                yield StreamEvent(before, encode(form.opening(index)))
            for tokens, text in _words(said.text):
                yield StreamEvent(before + tokens, encode(write(index, text)), has_text=True)
            for position, call in enumerate(said.calls):
                start = chat.tool_call(_call_id(number, index, position), call.tool, "")
                yield StreamEvent(before, encode(chat.call_piece(index, position, start)))
                for tokens, text in _words(call.arguments):
                    piece = chat.call_piece(index, position, {"function": {"arguments": text}})
                    yield StreamEvent(before + tokens, encode(piece), has_text=True)
                before += count_tokens(call.arguments)
            yield StreamEvent(end, encode(write(index, "", said.finish_reason)))
        for event in writer.last(self._usage()):
            yield StreamEvent(end, event_bytes(event))

    def _writer(self, number: int, created_s: int) -> ChoicesWriter:
        return ChoicesWriter(
            self._form, f"sim{number}", created_s, self._model, self._includes_usage
        )

    def _usage(self) -> Object:
        return completion_usage(self.prompt_tokens, self.completion_tokens)


def _call_id(number: int, index: int, position: int) -> str:
    return f"call_sim{number}_{index}_{position}"


@dataclass
class _Whole:
    """A reply that is never streamed."""

    prompt_tokens: int
    completion_tokens: int
    most_tokens: int
    whole: Callable[[int, int], Object]
    is_stream = is_long = False

    def events(self, number: int, created_s: int, /) -> Iterator[StreamEvent]:
        return iter(())


def _chat(raw: bytes, answers: Answers) -> Draft:
    body = decode(_CHAT, raw)
    prompt_tokens = 0
    text = ""
    question = None
    for message in body.messages:
        text = message.text
        prompt_tokens += count_tokens(text)
        if message.role == "user":
            question = text
    most = body.max_completion_tokens or body.max_tokens
    question = text if question is None else question
    if body.tools and (calls := forced_calls(body, question)):
        # The token limit does not cut calls.
        tokens = sum(count_tokens(call.arguments) for call in calls)
        said, most = Said("", tokens, is_cut=False, calls=tuple(calls)), None
    else:
        said = cut(answers.answer(question, body.response_format, body.seed), most)
    return _Generated(chat.FORM, body, prompt_tokens, [said] * (body.n or 1), most)


def _completion(raw: bytes, answers: Answers) -> Draft:
    body = decode(_COMPLETION, raw)
    prompt_tokens = 0
    said: list[Said] = []
    for text, tokens in texts(body.prompt, "prompt"):
        prompt_tokens += tokens
        said += [cut(answers.answer(text, seed=body.seed), body.max_tokens)] * (body.n or 1)
    return _Generated(completions.FORM, body, prompt_tokens, said, body.max_tokens)


def _response(raw: bytes, answers: Answers) -> Draft:
    body = decode(_RESPONSE, raw)
    if body.stream:
        raise BadCall("The simulated provider streams chat and completions, not /v1/responses.")
    if isinstance(body.input, str):
        given, question = [body.input], body.input
    else:
        given = [item.text for item in body.input]
        asked = [item.text for item in body.input if item.role == "user"]
        question = asked[-1] if asked else given[-1]
    prompt_tokens = sum(map(count_tokens, [*given, body.instructions or ""]))
    form = body.text.format if body.text is not None else None
    said = cut(answers.answer(question, form), body.max_output_tokens)

    def whole(number: int, created_s: int) -> Object:
        return responses.whole(
            f"sim{number}",
            created_s,
            said.text,
            is_cut=said.is_cut,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=body.model,
            usage=response_usage(prompt_tokens, said.tokens),
        )

    return _Whole(prompt_tokens, said.tokens, body.max_output_tokens or said.tokens, whole)


def _embeddings(raw: bytes, _: Answers) -> Draft:
    body = decode(_EMBEDDING, raw)
    inputs = texts(body.input, "input")
    if any(not text for text, _ in inputs):
        raise BadCall("'input' must not be an empty string.")
    if body.encoding_format not in (None, "float", "base64"):
        raise BadCall(f"The encoding format is unknown: {body.encoding_format}")
    dimensions = body.dimensions or DEFAULT_DIMENSIONS
    if dimensions > MAX_DIMENSIONS:
        raise BadCall(f"'dimensions' is {dimensions}; it may be at most {MAX_DIMENSIONS}.")
    prompt_tokens = sum(tokens for _, tokens in inputs)

    def whole(number: int, created_s: int) -> Object:
        shown: list[Any] = [embedding(text, dimensions) for text, _ in inputs]
        if body.encoding_format == "base64":
            shown = [packed(vector) for vector in shown]
        return embeddings.whole(shown, body.model, prompt_tokens)

    return _Whole(prompt_tokens, 0, 0, whole)


# For each path, the function that drafts the reply to a body, or raises BadCall.
ENDPOINTS: dict[str, Callable[[bytes, Answers], Draft]] = {
    chat.API.path: _chat,
    completions.API.path: _completion,
    embeddings.API.path: _embeddings,
    responses.API.path: _response,
}


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yields the number of tokens up to the end of each word, and the word with its white space."""
    size = 0
    words = text.split(" ")
    for index, word in enumerate(words):
        word = f" {word}" if index else word
        if word:
            size += len(word) if word.isascii() else len(word.encode(errors="surrogatepass"))
            yield -(-size // BYTES_PER_TOKEN), word
