"""Answers as the simulated model: the same question gets the same text, or a story (stories.py)."""

from __future__ import annotations

import struct
from base64 import b64encode
from hashlib import shake_256
from math import sqrt

import msgspec

from redline.apis import ResponseFormat
from redline.process import counted
from redline.sim.answers.bodies import BYTES_PER_TOKEN, BadCall, count_tokens
from redline.sim.answers.replay import Replay
from redline.sim.answers.schema import example
from redline.sim.answers.stories import Stories
from redline.sim.answers.tool_calls import ToolCall

# An echo of the whole message would answer a row of 50 MB with 50 MB.
ECHO_CHARACTERS = 1000


class Said(msgspec.Struct, frozen=True):
    """One answer: a text, or calls of tools. is_cut: whether the token limit cut the text."""

    text: str
    tokens: int
    is_cut: bool
    calls: tuple[ToolCall, ...] = ()

    @property
    def finish_reason(self) -> str:
        if self.calls:
            return "tool_calls"
        return "length" if self.is_cut else "stop"


def cut(text: str, max_tokens: int | None) -> Said:
    """Returns the answer cut to `max_tokens`, never within a character."""
    tokens = count_tokens(text)
    if max_tokens is None or tokens <= max_tokens:
        return Said(text, tokens, is_cut=False)
    raw = text.encode(errors="surrogatepass")[: max_tokens * BYTES_PER_TOKEN]
    text = raw.decode(errors="ignore")
    return Said(text, count_tokens(text), is_cut=True)


class Answers:
    """Answers from a replay; without one, with a story or an echo, in JSON if that is requested."""

    def __init__(self, replay: Replay | None = None, stories: Stories | None = None) -> None:
        self._replay = replay
        self._stories = stories

    def answer(
        self, question: str, form: ResponseFormat | None = None, seed: int | None = None
    ) -> str:
        """Returns the answer to `question`, the last user message.

        form: the response format. seed: the request's seed, on which stories depend. An answer from
        the replay is returned verbatim, whatever the response format. Raises BadCall for a message
        that contains no question of the replay, and for a schema that cannot be satisfied.
        """
        if self._replay is not None:
            found = self._replay.answer(question)
            if found is None:
                raise BadCall(
                    "The last user message contains no question of the replay file, which has "
                    f"{counted(len(self._replay), 'question')}.",
                    code="no_such_question",
                )
            return found
        said, about = f"You said: {question[:ECHO_CHARACTERS]}", question
        if self._stories is not None:
            said = about = self._stories.tell(question, seed)
        if form is None or form.type == "text":
            return said
        if form.type == "json_object":
            return msgspec.json.encode({"answer": said}).decode()
        schema = form.json_schema.schema if form.json_schema else form.schema
        return msgspec.json.encode(example(schema or {}, about)).decode()


def embedding(text: str, dimensions: int) -> list[float]:
    """Returns a vector of length 1 with `dimensions` numbers, which depends on the text alone."""
    raw = shake_256(text.encode(errors="surrogatepass")).digest(4 * dimensions)
    # Adding 0.5 keeps every coordinate, and thus the length, from being zero.
    values = [(part + 0.5) / 2**31 - 1 for part in struct.unpack(f"<{dimensions}I", raw)]
    length = sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def packed(vector: list[float]) -> str:
    """Encodes the vector as base64 of little-endian 32-bit floats, as the openai SDK requests."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
