"""Makes answers in OpenAI's formats: chat completions, completions, and the chunks of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from redline.apis import ChoicesWriter, chat
from redline.engine.api.detokenize import Pieces

Object = dict[str, Any]

# JSON has no minus infinity; OpenAI writes this for an impossible token.
_LEAST_LOGPROB = -9999.0


class Drawn(NamedTuple):
    """One generated token and its log probability.

    top: the likeliest tokens at its place, likeliest first, as (token, log probability).
    offset: where its text begins in the answer, in characters: TextStream.length before the token
    was pushed.
    """

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()
    offset: int = 0


class Said(msgspec.Struct, frozen=True):
    """One choice of an answer, or the new part of a choice.

    index: the prompt's place times n, plus the choice's place among the prompt's n. finish_reason:
    `stop` or `length`; None while the choice continues. drawn: its tokens if log probabilities were
    requested, otherwise None.
    """

    index: int
    text: str
    finish_reason: str | None = None
    drawn: Sequence[Drawn] | None = None


class Answer(NamedTuple):
    """Makes the bodies of one request's answer: `whole`, or the events of a stream."""

    writer: ChoicesWriter
    pieces: Pieces

    def whole(self, choices: Sequence[Said], counted: Object) -> Object:
        """Returns the body of an answer that is not streamed. counted: the answer's usage."""
        ordered = sorted(choices, key=attrgetter("index"))
        made = [self._written(self.writer.form.choice, said) for said in ordered]
        return self.writer.whole(made, counted)

    def first(self, choices: int) -> list[Object]:
        """Returns the events before any text: in a chat, the role of each choice."""
        opening = self.writer.form.opening
        if opening is None:
            return []
        return [self.writer.event(opening(index)) for index in range(choices)]

    def next(self, said: Said) -> list[Object]:
        """Returns the event with the new part of a choice; none if there is no new part."""
        if not (said.text or said.drawn or said.finish_reason):
            return []
        return [self.writer.event(self._written(self.writer.form.piece, said))]

    def _written(self, write: Callable[..., Object], said: Said) -> Object:
        logprobs = None
        if said.drawn is not None:
            shown = _chat_logprobs if self.writer.form is chat.FORM else _text_logprobs
            logprobs = shown(said.drawn, self.pieces)
        return write(said.index, said.text, said.finish_reason, logprobs=logprobs)


def _chat_logprobs(drawn: Sequence[Drawn], pieces: Pieces) -> Object:
    def entry(token: int, logprob: float) -> Object:
        data = pieces.of(token).data
        logprob = max(logprob, _LEAST_LOGPROB)
        return {"token": _shown(data, ""), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(one.token, one.logprob), "top_logprobs": [entry(*likely) for likely in one.top]}
        for one in drawn
    ]
    return {"content": content, "refusal": None}


def _text_logprobs(drawn: Sequence[Drawn], pieces: Pieces) -> Object:
    """Returns a completion's `logprobs`: four lists of the same length.

    `top_logprobs` always includes the drawn token.
    """

    def entry(token: int, logprob: float) -> tuple[str, float]:
        return _shown(pieces.of(token).data, "bytes:"), max(logprob, _LEAST_LOGPROB)

    each = [entry(one.token, one.logprob) for one in drawn]
    return {
        "tokens": [token for token, _ in each],
        "token_logprobs": [logprob for _, logprob in each],
        "top_logprobs": [
            dict([*(entry(*likely) for likely in one.top), own])
            for one, own in zip(drawn, each, strict=True)
        ],
        "text_offset": [one.offset for one in drawn],
    }


def _shown(data: bytes, prefix: str) -> str:
    r"""Returns a token's text; if its bytes are not text, `prefix` and escapes such as \xf0\x9f."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)
