"""Answers in OpenAI's terms: chat completions, completions, and the chunks of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from redline.engine.api.detokenize import Pieces

# JSON has no minus infinity; OpenAI writes this for a token that cannot come.
_LEAST_LOGPROB = -9999.0


class Drawn(NamedTuple):
    """One generated token and its log probability.

    top: the likeliest tokens at its place, likeliest first, as (token, log probability).
    offset: where its text begins in the answer: TextStream.length before it was pushed.
    """

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()
    offset: int = 0


class Said(msgspec.Struct, frozen=True):
    """One choice of an answer, or what is new of it.

    index: the prompt's place times n, plus the choice's place among the prompt's n.
    finish_reason: `stop` or `length`, None while it goes on.
    drawn: its tokens where log probabilities were asked for, else None.
    """

    index: int
    text: str
    finish_reason: str | None = None
    drawn: Sequence[Drawn] | None = None


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts; a prompt counts once however many choices it has."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Answer(NamedTuple):
    """Makes the bodies of one request's answer: `whole`, or the events of a stream.

    name: unlike that of any other answer. created_s: wall time.
    """

    name: str
    created_s: int
    model: str
    is_chat: bool
    pieces: Pieces
    includes_usage: bool = False

    def whole(self, choices: Sequence[Said], counted: dict[str, int]) -> dict[str, Any]:
        """The body of an answer that is not streamed. counted: from `usage`."""
        told = [
            self._choice(said, {"message": _message(said.text)})
            for said in sorted(choices, key=lambda said: said.index)
        ]
        return {**self._body(told, ""), "usage": counted}

    def first(self, choices: int) -> list[dict[str, Any]]:
        """The events before any text: in a chat, who speaks, for each choice."""
        silent = [Said(index, "") for index in range(choices)] if self.is_chat else []
        return [self._event(self._choice(said, {"delta": _message("")})) for said in silent]

    def next(self, said: Said) -> list[dict[str, Any]]:
        """The event of what is new of a choice; none where nothing is."""
        if not (said.text or said.drawn or said.finish_reason):
            return []
        delta = {"content": said.text} if said.text else {}
        return [self._event(self._choice(said, {"delta": delta}))]

    def last(self, counted: dict[str, int]) -> list[dict[str, Any]]:
        """The event after all choices: the usage, where it was asked for."""
        return [{**self._event(), "usage": counted}] if self.includes_usage else []

    def _event(self, *choices: dict[str, Any]) -> dict[str, Any]:
        body = self._body(list(choices), ".chunk")
        return {**body, "usage": None} if self.includes_usage else body

    def _body(self, choices: list[dict[str, Any]], part: str) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.name}",
            "object": f"chat.completion{part}" if self.is_chat else "text_completion",
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, said: Said, in_chat: dict[str, Any]) -> dict[str, Any]:
        form = _chat_logprobs if self.is_chat else _text_logprobs
        return {
            "index": said.index,
            **(in_chat if self.is_chat else {"text": said.text}),
            "logprobs": None if said.drawn is None else form(said.drawn, self.pieces),
            "finish_reason": said.finish_reason,
        }


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "refusal": None}


def _chat_logprobs(drawn: Sequence[Drawn], pieces: Pieces) -> dict[str, Any]:
    def told(token: int, logprob: float) -> dict[str, Any]:
        data = pieces.of(token).data
        logprob = max(logprob, _LEAST_LOGPROB)
        return {"token": _shown(data, ""), "logprob": logprob, "bytes": list(data)}

    content = [
        {**told(one.token, one.logprob), "top_logprobs": [told(*likely) for likely in one.top]}
        for one in drawn
    ]
    return {"content": content, "refusal": None}


def _text_logprobs(drawn: Sequence[Drawn], pieces: Pieces) -> dict[str, Any]:
    """Four lists of one length; the token drawn is always among the top ones."""

    def told(token: int, logprob: float) -> tuple[str, float]:
        return _shown(pieces.of(token).data, "bytes:"), max(logprob, _LEAST_LOGPROB)

    each = [told(one.token, one.logprob) for one in drawn]
    return {
        "tokens": [token for token, _ in each],
        "token_logprobs": [logprob for _, logprob in each],
        "top_logprobs": [
            dict([*(told(*likely) for likely in one.top), own])
            for one, own in zip(drawn, each, strict=True)
        ],
        "text_offset": [one.offset for one in drawn],
    }


def _shown(data: bytes, prefix: str) -> str:
    r"""The token's text; where its bytes are no text alone, `prefix` and then as in \xf0\x9f."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)
