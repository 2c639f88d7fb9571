"""Finds the fields of a request's body that redline reads, in one pass over its bytes."""

from __future__ import annotations

import re
import struct
from typing import Annotated, Any, Literal

import msgspec

from redline.apis import drafts
from redline.calls.tokens.prompt import DATA, MOST_VALUES
from redline.waist import replacing_halves

# More than the output limit of any model: a larger usage or maximum is taken for an error.
MOST_OUTPUT_TOKENS = 1_000_000
LONGEST_NAME = 256
# The texts that lenient servers take as true.
TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
# The beginning of a list of prompts; a single prompt of token ids begins with a number.
_PROMPTS = re.compile(rb"\[\s*[^\s\d-]")
_QUOTE = ord('"')
# The first bytes that DATA may have in JSON: its first character, or an escape.
_MAY_BE_DATA = DATA[:1].encode() + b"\\"

_Most = Annotated[int, msgspec.Meta(ge=1, le=MOST_OUTPUT_TOKENS)]


class BodyFacts(msgspec.Struct):
    """The fields that redline reads from any body; the other fields concern only the endpoint.

    prompt: the field's JSON as it is in the body.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: Any = None
    priority: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    service_tier: str | None = None
    n: Any = None
    best_of: Any = None
    prompt: msgspec.Raw = msgspec.Raw()
    background: Any = None

    @property
    def is_deferred(self) -> bool:
        """Whether the answer must be fetched later; only /v1/responses has such answers."""
        return str(self.background).lower() in TRUE and not self.stream

    @property
    def most_tokens(self) -> int | None:
        """The maximum of one answer in tokens, 1 to MOST_OUTPUT_TOKENS; None if there is none.

        Some servers take -1 as no maximum. If several maxima are given, the largest counts, since
        servers differ in which of them they apply.
        """
        stated = (self.max_tokens, self.max_completion_tokens, self.max_output_tokens)
        most = max((one for one in stated if one is not None), default=0)
        return min(most, MOST_OUTPUT_TOKENS) if most > 0 else None

    @property
    def drafts(self) -> int:
        """The number of billed answers."""
        return drafts({"n": self.n, "best_of": self.best_of, "prompt": _prompts(self.prompt)})


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One message of a body, decoded in part.

    content: the field's JSON as it is in the body; most readers do not need it decoded.
    """

    role: str
    content: msgspec.Raw


class Chat(BodyFacts, forbid_unknown_fields=True, kw_only=True):
    """A usual chat: its messages are texts, no other field has tokens, and it asks for one answer.

    The fields from `temperature` on affect neither the prompt nor the number of answers.
    """

    messages: Annotated[list[_Message], msgspec.Meta(max_length=MOST_VALUES)]
    model: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)] | None = None
    max_tokens: _Most | None = None
    max_completion_tokens: _Most | None = None
    n: Literal[1] | None = None
    best_of: None = None
    prompt: None = None  # type: ignore[assignment]  # or absent
    background: None = None
    temperature: Any = None
    top_p: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    seed: Any = None
    stop: Any = None
    user: Any = None

    @property
    def drafts(self) -> int:
        return 1

    def most_output(self) -> int | None:
        """Returns the maximum of the answer in tokens; None if the body has none."""
        return self.max_tokens or self.max_completion_tokens

    def texts(self) -> list[str]:
        """Returns the messages' texts; "" for an invalid text, which the endpoint refuses."""
        return [_text(message.content) for message in self.messages]


_first_bytes = struct.Struct("BB").unpack_from
_decode_chat = msgspec.json.Decoder(Chat).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ANY = msgspec.json.Decoder(msgspec.Raw)
_FACTS = msgspec.json.Decoder(BodyFacts)
_FIELDS = msgspec.structs.fields(BodyFacts)
_STATED = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Stated",
        [
            (field.name, field.type if field.type is msgspec.Raw else Any, field.default)
            for field in _FIELDS
        ],
    )
)


def read_chat(raw: bytes) -> Chat | None:
    """Returns a usual chat, read much faster than by a full decode; None for any other body."""
    try:
        chat = _decode_chat(raw)
        for message in chat.messages:
            first, second = _first_bytes(message.content)
            if first != _QUOTE:
                return None
            if second in _MAY_BE_DATA and _text(message.content).startswith(DATA):
                return None
    except (ValueError, RecursionError, struct.error):
        # struct.error: the content is a single digit, which is shorter than any JSON string.
        return None
    return chat


# The facts of a body that is not JSON in UTF-8, or is nested too deeply. A lenient endpoint may
# read other facts from such a body, so it must not be sent.
NOT_JSON = BodyFacts()


def facts_of(raw: bytes) -> BodyFacts:
    """Returns the facts of a body: a Chat for a usual chat, NOT_JSON if it is not JSON."""
    chat = read_chat(raw)
    if chat is not None:
        return chat
    try:
        return replacing_halves(_FACTS.decode, raw)
    except msgspec.ValidationError:
        return _valid_facts(raw)
    except (ValueError, RecursionError):
        return NOT_JSON


def _valid_facts(raw: bytes) -> BodyFacts:
    """Returns the valid fields of a body in which some fields have invalid types."""
    try:
        # Checks the whole body: unless it is an object, the next decoder stops at its start.
        replacing_halves(_ANY.decode, raw)
        stated = replacing_halves(_STATED.decode, raw)
    except msgspec.ValidationError:
        return BodyFacts()
    except (ValueError, RecursionError):
        return NOT_JSON
    found: dict[str, Any] = {}
    for field in _FIELDS:
        value = getattr(stated, field.name)
        try:
            # Lenient servers also read "5" as a number.
            found[field.name] = msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError:
            if field.name == "stream":
                found[field.name] = str(value).lower() in TRUE
    return BodyFacts(**found)


def _prompts(prompt: msgspec.Raw) -> list[msgspec.Raw] | None:
    """Returns the prompts of a list, as JSON; None for a single prompt: a text, or token ids."""
    return _decode_list(prompt) if _PROMPTS.match(prompt) else None


def _text(content: msgspec.Raw) -> str:
    try:
        return _decode_text(content)
    except ValueError:
        return ""
