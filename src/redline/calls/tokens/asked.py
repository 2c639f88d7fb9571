"""Reads from a request's body how many tokens its call may use."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.apis import APIS, api_of, drafts, number
from redline.calls.tokens.body_facts import (
    LONGEST_NAME,
    MOST_OUTPUT_TOKENS,
    BodyFacts,
    Chat,
    read_chat,
)
from redline.calls.tokens.prompt import Prompt
from redline.calls.tokens.tokenizer import Tokenizer
from redline.waist import Request

OUTPUT_LIMITS = tuple(dict.fromkeys(name for api in APIS for name in api.output_limits))
# Without any of these fields, a body asks for one answer of any length.
_OF_OUTPUT = frozenset((*OUTPUT_LIMITS, "n", "best_of", "prompt"))
# Long texts are estimated from this many of their characters, which bounds the time.
_MOST_CHARS = 4096
# The fields that determine the number of answers: none in a usual chat, which asks for one answer.
_ONE_ANSWER: dict[str, Any] = {}


class Asked(msgspec.Struct, eq=False):
    """The tokens that one request asks for.

    name: the model; empty if it is missing or not plausible. has_output: whether the API has output
    tokens. drafts: the number of billed answers. most_output: the maximum of each answer in tokens,
    None if the body has none. tokenizer: the last tokenizer that counted the prompt. ids: the
    tokens that the body contains as numbers, set by `amounts`.
    """

    name: str
    has_output: bool
    drafts: int
    most_output: int | None
    _body: dict[str, Any] | Chat
    tokenizer: Tokenizer | None = None
    ids: int = 0
    _amounts: tuple[float, ...] = ()

    @property
    def texts(self) -> list[str] | None:
        """The texts of a usual chat; None for any other body."""
        body = self._body
        return None if isinstance(body, dict) else body.texts()

    def amounts(self, tokenizer: Tokenizer | None) -> tuple[float, ...]:
        """Returns the amounts for the weights of estimate.py.

        The weights are _BY_TOKEN with a tokenizer, otherwise _BY_CLASS.
        """
        if not self._amounts or self.tokenizer is not tokenizer:
            body = self._body
            prompt = Prompt(body if isinstance(body, dict) else body.texts())
            self.ids = prompt.ids
            beside = 1.0, prompt.messages, prompt.media
            self.tokenizer = tokenizer
            if tokenizer is None:
                self._amounts = beside + prompt.classes(_MOST_CHARS)
            else:
                self._amounts = *beside, tokenizer.count(prompt)
        return self._amounts


def chat_of(request: Request) -> Chat | None:
    """Returns a usual chat, read from the request's bytes only once; None for any other body."""
    kept = request.__dict__
    if "chat" in kept:
        known: Chat | None = kept["chat"]
        return known
    raw = request.raw
    chat = None if raw is None or "body" in kept else read_chat(raw)
    kept["chat"] = chat
    if chat is not None:
        kept["asked"] = _ONE_ANSWER
    return chat


def asked_of(request: Request) -> Asked | None:
    """Returns what the request asks for, read only once; None if its body is not an object."""
    kept = request.__dict__
    found: Asked | None = kept.get("asked_tokens")
    if found is not None:
        return found
    chat = chat_of(request)
    if chat is not None:
        has_output = api_of(request.url).has_output
        found = Asked(chat.model or "", has_output, 1, chat.most_output(), chat)
    else:
        body = request.body
        if not isinstance(body, dict):
            return None
        copies, most_output = 1, None
        if not _OF_OUTPUT.isdisjoint(body):
            copies, most_output = drafts(body), _most_output(body)
        name = body.get("model")
        if type(name) is not str or len(name) > LONGEST_NAME:
            name = ""
        found = Asked(name, api_of(request.url).has_output, copies, most_output, body)
    kept["asked_tokens"] = found
    return found


def keep_facts(request: Request, facts: BodyFacts) -> None:
    """Keeps facts that `facts_of` has read, so that later readers need not parse the body."""
    if isinstance(facts, Chat):
        kept = request.__dict__
        kept["chat"], kept["asked"] = facts, _ONE_ANSWER


def kept_facts(request: Request) -> Chat | None:
    """Returns the facts kept with the request; None if there are none, as for an unusual chat."""
    chat: Chat | None = request.__dict__.get("chat")
    return chat


def _most_output(body: dict[str, Any]) -> int | None:
    """Returns the maximum of one choice in tokens; None if there is none, or if it is negative."""
    for name in OUTPUT_LIMITS:
        stated = body.get(name)
        if stated is not None and (most := number(stated)) is not None and most >= 0:
            return max(1, min(most, MOST_OUTPUT_TOKENS))
    return None
