"""What a request's body says of the tokens of its call."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redline.apis import APIS, api_of, drafts, number
from redline.calls.tokens.prompt import DATA, MOST_VALUES, Prompt
from redline.calls.tokens.tokenizer import Tokenizer
from redline.waist import Request

# Above what any model answers at once: a usage or a wish beyond it is a false one.
MOST_OUTPUT_TOKENS = 1_000_000
OUTPUT_LIMITS = tuple(dict.fromkeys(name for api in APIS for name in api.output_limits))
# Without any of these fields, a body asks for one answer of any length.
_OF_OUTPUT = frozenset((*OUTPUT_LIMITS, "n", "best_of", "prompt"))
# Long texts are judged by so many of their characters, which bounds the time.
_MOST_CHARS = 4096
_LONGEST_NAME = 256
# Of a chat that is read in one decode: it asks for one answer.
_ONE_ANSWER: dict[str, Any] = {}


_Most = Annotated[int, msgspec.Meta(ge=1, le=MOST_OUTPUT_TOKENS)]


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class _Chat(msgspec.Struct, forbid_unknown_fields=True):
    """A chat as most are: each message a text, and beside them nothing that becomes tokens.

    The fields from temperature on change neither the prompt nor the number of answers.
    """

    messages: Annotated[list[_Message], msgspec.Meta(max_length=MOST_VALUES)]
    model: Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)] = ""
    max_tokens: _Most | None = None
    max_completion_tokens: _Most | None = None
    temperature: Any = None
    top_p: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    seed: Any = None
    stop: Any = None
    stream: Any = None
    stream_options: Any = None
    user: Any = None


_decode_chat = msgspec.json.Decoder(_Chat).decode


class Asked(msgspec.Struct, eq=False):
    """Raises nothing.

    name: of the model; empty where it is none, or no name that anyone would give one. drafts:
    answers that are billed. most_output: of each, None if unstated. size_bytes: of JSON whose texts
    are all that becomes tokens; None for any other body. tokenizer: by which it was last weighed.
    ids: tokens that it gives as numbers, once it is weighed.
    """

    name: str
    has_output: bool
    drafts: int
    most_output: int | None
    _body: dict[str, Any] | list[_Message]
    size_bytes: int | None = None
    tokenizer: Tokenizer | None = None
    ids: int = 0
    _amounts: tuple[float, ...] = ()

    @property
    def texts(self) -> list[str] | None:
        """All of its texts, of a chat that is read in one decode; None of any other body."""
        body = self._body
        return None if isinstance(body, dict) else [message.content for message in body]

    def amounts(self, tokenizer: Tokenizer | None) -> tuple[float, ...]:
        """What the weights that are in use weigh."""
        if not self._amounts or self.tokenizer is not tokenizer:
            body = self._body
            prompt = Prompt(body if isinstance(body, dict) else [each.content for each in body])
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
        found = _asked_in_chat(request.url, raw)
        if found is not None:
            kept["asked"] = _ONE_ANSWER
    if found is None:
        body = request.body
        if not isinstance(body, dict):
            return None
        copies, most_output = 1, None
        if not _OF_OUTPUT.isdisjoint(body):
            copies, most_output = drafts(body), _most_output(body)
        name = body.get("model")
        if type(name) is not str or len(name) > _LONGEST_NAME:
            name = ""
        found = Asked(name, api_of(request.url).has_output, copies, most_output, body)
    kept["asked_tokens"] = found
    return found


def _asked_in_chat(url: str, raw: bytes) -> Asked | None:
    """The same of a chat as most are, at a fraction of the cost; None for any other body."""
    try:
        chat = _decode_chat(raw)
    except (ValueError, RecursionError):
        return None
    for message in chat.messages:
        if message.content[:5] == DATA:
            return None
    most = chat.max_tokens
    if most is None:
        most = chat.max_completion_tokens
    return Asked(chat.model, api_of(url).has_output, 1, most, chat.messages, len(raw))


def _most_output(body: dict[str, Any]) -> int | None:
    """Of one choice, as the request states it. Some servers take -1 for no maximum."""
    for name in OUTPUT_LIMITS:
        stated = body.get(name)
        if stated is not None and (most := number(stated)) is not None and most >= 0:
            return max(1, min(most, MOST_OUTPUT_TOKENS))
    return None
