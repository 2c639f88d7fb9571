"""What a request's body says of the tokens of its call."""

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
# Long texts are judged by this many of their characters, which bounds the time.
_MOST_CHARS = 4096
# Of a chat as most are: it asks for one answer.
_ONE_ANSWER: dict[str, Any] = {}


class Asked(msgspec.Struct, eq=False):
    """Raises nothing.

    name: of the model; empty if it is none, or no name that anyone would give one. drafts:
    answers that are billed. most_output: of each, None if unstated. size_bytes: of JSON whose texts
    are all that becomes tokens; None for any other body. tokenizer: by which it was last weighed.
    ids: tokens that it gives as numbers, once it is weighed.
    """

    name: str
    has_output: bool
    drafts: int
    most_output: int | None
    _body: dict[str, Any] | Chat
    size_bytes: int | None = None
    tokenizer: Tokenizer | None = None
    ids: int = 0
    _amounts: tuple[float, ...] = ()

    @property
    def texts(self) -> list[str] | None:
        """All of its texts, of a chat as most are; None of any other body."""
        body = self._body
        return None if isinstance(body, dict) else body.texts()

    def amounts(self, tokenizer: Tokenizer | None) -> tuple[float, ...]:
        """What the weights that are in use weigh."""
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


def asked_of(request: Request) -> Asked | None:
    """What the request asks for, read once; None for a body that is not an object."""
    kept = request.__dict__
    found: Asked | None = kept.get("asked_tokens")
    if found is not None:
        return found
    raw = request.raw
    if raw is not None and "body" not in kept:
        chat = kept_facts(request) or read_chat(raw)
        if chat is not None:
            keep_facts(request, chat)
            found = _asked_in(chat, request.url, len(raw))
    if found is None:
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
    """Spares its readers a second look at the body: `facts_of` has read these facts of it."""
    if isinstance(facts, Chat):
        kept = request.__dict__
        kept["chat"], kept["asked"] = facts, _ONE_ANSWER


def kept_facts(request: Request) -> Chat | None:
    """What `keep_facts` has kept; None if the body is to be read."""
    chat: Chat | None = request.__dict__.get("chat")
    return chat


def _asked_in(chat: Chat, url: str, size_bytes: int) -> Asked:
    most = chat.max_tokens
    if most is None:
        most = chat.max_completion_tokens
    return Asked(chat.model or "", api_of(url).has_output, 1, most, chat, size_bytes)


def _most_output(body: dict[str, Any]) -> int | None:
    """The most output tokens of one choice in the request. Some servers take -1 for no maximum."""
    for name in OUTPUT_LIMITS:
        stated = body.get(name)
        if stated is not None and (most := number(stated)) is not None and most >= 0:
            return max(1, min(most, MOST_OUTPUT_TOKENS))
    return None
