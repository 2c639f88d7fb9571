"""Replies in the OpenAI API's shapes, drafted before they are admitted.

A draft knows what its reply will cost, so that token limits can charge it on arrival. It is
written out only if the request is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from redline.sim.answers.answers import Answers, Said, count_tokens, cut, embedding, packed
from redline.sim.answers.bodies import (
    BadCall,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    ResponseBody,
    decode,
    texts,
)

DEFAULT_DIMENSIONS = 8
Object = dict[str, Any]

_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)
_EMBEDDING = msgspec.json.Decoder(EmbeddingBody)
_RESPONSE = msgspec.json.Decoder(ResponseBody)


class Draft(Protocol):
    """A reply that is ready to be written."""

    prompt_tokens: int
    completion_tokens: int
    is_stream: bool

    def whole(self, number: int, created_s: int) -> Object:
        """The JSON object of the whole reply to request `number`."""

    def events(self, number: int, created_s: int) -> Iterator[tuple[int, Object]]:
        """The events of a stream, each with the completion tokens there are up to it."""


class _Generated:
    """What chat and plain completions have in common."""

    id_prefix: str
    object_name: str
    chunk_name: str

    def __init__(
        self, body: ChatBody | CompletionBody, prompt_tokens: int, said: list[Said]
    ) -> None:
        self._model = body.model
        self._said = said
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = sum(one.tokens for one in said)
        self.is_stream = bool(body.stream)
        options = body.stream_options
        self._includes_usage = options is not None and options.include_usage

    def _usage(self) -> Object:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def _shell(self, name: str, number: int, created_s: int, choices: list[Object]) -> Object:
        return {
            "id": f"{self.id_prefix}-sim{number}",
            "object": name,
            "created": created_s,
            "model": self._model,
            "choices": choices,
        }

    def whole(self, number: int, created_s: int) -> Object:
        choices = [self._choice(index, said) for index, said in enumerate(self._said)]
        shell = self._shell(self.object_name, number, created_s, choices)
        shell["usage"] = self._usage()
        return shell

    def events(self, number: int, created_s: int) -> Iterator[tuple[int, Object]]:
        told = 0
        for index, said in enumerate(self._said):
            for tokens, choice in self._pieces(index, said):
                event = self._shell(self.chunk_name, number, created_s, [choice])
                if self._includes_usage:
                    event["usage"] = None
                yield told + tokens, event
            told += said.tokens
        if self._includes_usage:
            event = self._shell(self.chunk_name, number, created_s, [])
            event["usage"] = self._usage()
            yield told, event

    def _choice(self, index: int, said: Said) -> Object:
        raise NotImplementedError

    def _pieces(self, index: int, said: Said) -> Iterator[tuple[int, Object]]:
        raise NotImplementedError


class _Chat(_Generated):
    id_prefix = "chatcmpl"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _choice(self, index: int, said: Said) -> Object:
        message = {"role": "assistant", "content": said.text, "refusal": None}
        return _part(index, {"message": message}, _finish(said))

    def _pieces(self, index: int, said: Said) -> Iterator[tuple[int, Object]]:
        yield 0, _part(index, {"delta": {"role": "assistant", "content": ""}})
        for tokens, text in _words(said.text):
            yield tokens, _part(index, {"delta": {"content": text}})
        yield said.tokens, _part(index, {"delta": {}}, _finish(said))


class _Completion(_Generated):
    id_prefix = "cmpl"
    object_name = chunk_name = "text_completion"

    def _choice(self, index: int, said: Said) -> Object:
        return _part(index, {"text": said.text}, _finish(said))

    def _pieces(self, index: int, said: Said) -> Iterator[tuple[int, Object]]:
        for tokens, text in _words(said.text):
            yield tokens, _part(index, {"text": text})
        yield said.tokens, _part(index, {"text": ""}, _finish(said))


class _Whole:
    """A reply that is never streamed."""

    is_stream = False
    prompt_tokens: int
    completion_tokens: int

    def events(self, number: int, created_s: int) -> Iterator[tuple[int, Object]]:
        return iter(())


class _Embeddings(_Whole):
    completion_tokens = 0

    def __init__(self, body: EmbeddingBody) -> None:
        inputs = texts(body.input, "input")
        if any(not text for text, _ in inputs):
            raise BadCall("'input' must not be an empty string.")
        if body.encoding_format not in (None, "float", "base64"):
            raise BadCall(f"The encoding format is unknown: {body.encoding_format}")
        self._body = body
        self._inputs = [text for text, _ in inputs]
        self.prompt_tokens = sum(
            count_tokens(text) if tokens is None else tokens for text, tokens in inputs
        )

    def whole(self, number: int, created_s: int) -> Object:
        dimensions = self._body.dimensions or DEFAULT_DIMENSIONS
        is_packed = self._body.encoding_format == "base64"
        data: list[Object] = []
        for index, text in enumerate(self._inputs):
            vector = embedding(text, dimensions)
            shown = packed(vector) if is_packed else vector
            data.append({"object": "embedding", "index": index, "embedding": shown})
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
        return {"object": "list", "data": data, "model": self._body.model, "usage": usage}


class _Response(_Whole):
    def __init__(self, body: ResponseBody, prompt_tokens: int, said: Said) -> None:
        self._body = body
        self._said = said
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = said.tokens

    def whole(self, number: int, created_s: int) -> Object:
        said = self._said
        status = "incomplete" if said.is_cut else "completed"
        part = {"type": "output_text", "text": said.text, "annotations": []}
        message = {
            "type": "message",
            "id": f"msg-sim{number}",
            "status": status,
            "role": "assistant",
            "content": [part],
        }
        return {
            "id": f"resp-sim{number}",
            "object": "response",
            "created_at": created_s,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if said.is_cut else None,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "model": self._body.model,
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": tokens_used(self.prompt_tokens, self.completion_tokens),
        }


def tokens_used(read: int, said: int) -> Object:
    """The usage of a response, and of a batch."""
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + said,
    }


def _chat(raw: bytes, answers: Answers) -> Draft:
    body = decode(_CHAT, raw)
    last = next((one for one in reversed(body.messages) if one.role == "user"), body.messages[-1])
    prompt_tokens = sum(count_tokens(message.text) for message in body.messages)
    said = cut(
        answers.answer(last.text, body.response_format, body.seed),
        body.max_completion_tokens or body.max_tokens,
    )
    return _Chat(body, prompt_tokens, [said] * (body.n or 1))


def _completion(raw: bytes, answers: Answers) -> Draft:
    body = decode(_COMPLETION, raw)
    prompt_tokens = 0
    said: list[Said] = []
    for text, tokens in texts(body.prompt, "prompt"):
        prompt_tokens += count_tokens(text) if tokens is None else tokens
        said += [cut(answers.answer(text, seed=body.seed), body.max_tokens)] * (body.n or 1)
    return _Completion(body, prompt_tokens, said)


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
    return _Response(
        body, prompt_tokens, cut(answers.answer(question, form), body.max_output_tokens)
    )


# Drafts the reply to a body. Raises BadCall.
ENDPOINTS: dict[str, Callable[[bytes, Answers], Draft]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": lambda raw, _: _Embeddings(decode(_EMBEDDING, raw)),
    "/v1/responses": _response,
}


def _part(index: int, content: Object, finish: str | None = None) -> Object:
    """A choice with this content, or a piece of it."""
    return {"index": index, **content, "logprobs": None, "finish_reason": finish}


def _finish(said: Said) -> str:
    return "length" if said.is_cut else "stop"


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The text word by word, white space kept, each with the tokens there are up to it."""
    begin = size = 0
    while begin < len(text):
        end = text.find(" ", begin + 1)
        end = len(text) if end < 0 else end
        word = text[begin:end]
        size += len(word.encode(errors="surrogatepass"))
        yield -(-size // 4), word
        begin = end
