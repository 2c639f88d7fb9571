"""What a request's body says of the tokens of its call."""

from __future__ import annotations

from typing import Any

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


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class _Chat(msgspec.Struct, forbid_unknown_fields=True):
    """A chat as most are: each message a text, and beside them nothing that becomes tokens.

    The fields from temperature on change neither the prompt nor the number of answers.
    """

    messages: list[_Message]
    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
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


class Asked:
    """Raises nothing.

    name: of the model; empty where it is none, or no name that anyone would give one. drafts:
    answers that are billed. most_output: of each, None if unstated. ids: tokens that it gives as
    numbers, once its amounts are found. size_bytes: of JSON whose texts are all that becomes
    tokens; None for any other body.
    """

    __slots__ = (
        *("_amounts", "_body", "drafts", "has_output", "ids", "most_output", "name"),
        *("size_bytes", "tokenizer"),
    )

    def __init__(
        self,
        url: str,
        name: Any,
        body: dict[str, Any] | list[str],
        copies: int,
        most_output: int | None,
        size_bytes: int | None = None,
    ) -> None:
        self.name = name if type(name) is str and len(name) <= _LONGEST_NAME else ""
        self.has_output = api_of(url).has_output
        self.drafts = copies
        self.most_output = most_output
        self.ids = 0
        self.size_bytes = size_bytes
        self._body = body
        self.tokenizer: Tokenizer | None = None  # by which it was estimated
        self._amounts: tuple[float, ...] = ()

    def amounts(self, tokenizer: Tokenizer | None) -> tuple[float, ...]:
        """What the weights that are in use weigh."""
        if not self._amounts or self.tokenizer is not tokenizer:
            prompt = Prompt(self._body)
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
        found = Asked(request.url, body.get("model"), body, copies, most_output)
    kept["asked_tokens"] = found
    return found


def _asked_in_chat(url: str, raw: bytes) -> Asked | None:
    """The same of a chat as most are, at a fraction of the cost; None for any other body."""
    try:
        chat = _decode_chat(raw)
    except (ValueError, RecursionError):
        return None
    texts = list[str]()
    for message in chat.messages:
        text = message.content
        if text[:5] == DATA:
            return None
        texts.append(text)
    if len(texts) > MOST_VALUES:
        return None
    most, other = chat.max_tokens, chat.max_completion_tokens
    if most is None or most < 0:
        most = other if other is not None and other >= 0 else None
    if most is not None:
        most = max(1, min(most, MOST_OUTPUT_TOKENS))
    return Asked(url, chat.model, texts, 1, most, len(raw))


def _most_output(body: dict[str, Any]) -> int | None:
    """Of one choice, as the request states it. Some servers take -1 for no maximum."""
    for name in OUTPUT_LIMITS:
        stated = body.get(name)
        if stated is not None and (most := number(stated)) is not None and most >= 0:
            return max(1, min(most, MOST_OUTPUT_TOKENS))
    return None
