"""Reads and writes answers with choices, which chat and completions have in common.

A choice is `{"index", "message" or "text", "logprobs", "finish_reason"}`. In a streamed chat, each
event has the new part of the message in `delta`. Servers mix the two APIs, so one reader reads
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from redline.apis.api import Envelope
from redline.apis.error_inside import judge_choice, judge_part
from redline.apis.event_stream import event_bytes
from redline.apis.loose_json import number
from redline.apis.request_parts import Count, ResponseFormat, StreamOptions
from redline.apis.usage import Counts
from redline.errors import BadReply
from redline.waist import Reply

Object = dict[str, Any]

# More answers than any endpoint returns for one request: a larger number is a mistake, and is cut.
_MOST_CHOICES = 100_000
# Finish reasons of an answer that the model ended: Together sends `eos`, TGI the last two.
_STOPS = frozenset({None, "", "stop", "eos", "eos_token", "stop_sequence"})
# The maximum number of indices listed in an error message.
_MOST_NAMED = 5


class ChoicesRequest(msgspec.Struct, kw_only=True):
    """The fields that requests of both APIs share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether the client asks for a stream that ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class SampledRequest(ChoicesRequest, kw_only=True):
    """A ChoicesRequest with the fields that bound and seed the answers."""

    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    seed: int | None = None


class _Message(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: Any = None
    finish_reason: str | int | None = None
    index: Any = None
    error: Any = None


class _Reply(Envelope, kw_only=True):
    choices: list[_Choice]


# The same fields in their most common form: one choice, with text and without an error.
class _UsualMessage(msgspec.Struct, gc=False):
    content: Annotated[str, msgspec.Meta(min_length=1)]
    refusal: Literal[""] | None = None
    tool_calls: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None
    function_call: None = None


class _UsualChoice(msgspec.Struct, gc=False):
    message: _UsualMessage
    text: Any = None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None = None
    index: Literal[0] | None = None
    error: None = None


class _UsualReply(Envelope, kw_only=True, gc=False):
    choices: tuple[_UsualChoice]
    usage: dict[str, Any] | None = None
    id: str | None = None
    error: None = None


class _Ending(msgspec.Struct):
    finish_reason: Any = None


class _Endings(msgspec.Struct):
    choices: list[_Ending] | None = None
    error: Any = None


_REPLY = msgspec.json.Decoder(_Reply)
_ENDINGS = msgspec.json.Decoder(_Endings)
_decode_usual = msgspec.json.Decoder(_UsualReply).decode
_convert = msgspec.convert


def choices(body: Object) -> int:
    """Returns the number of requested answers: `n` for each prompt, at most 100,000."""
    return _copies(number(body.get("n")), body)


def drafts(body: Object) -> int:
    """Returns the number of billed answers, at most 100,000.

    That is `best_of` for each prompt, of which the server returns `n`; `n` if `best_of` is smaller
    or not given.
    """
    n, best_of = number(body.get("n")), number(body.get("best_of"))
    return _copies(n if best_of is None else max(n or 1, best_of), body)


def _copies(each: int | None, body: Object) -> int:
    copies = each if each is not None and each > 0 else 1
    prompts = body.get("prompt")
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int | float):
        copies *= len(prompts)
    return min(copies, _MOST_CHOICES)


def read_usual(body: bytes, asked: Any, headers: Mapping[str, str]) -> Reply | None:
    """Reads a chat answer with one choice; see `Api.read_usual`."""
    if asked and (type(asked) is not dict or "n" in asked or "prompt" in asked):
        return None
    input_tokens = output_tokens = None
    try:
        found = _decode_usual(body)
        if found.usage is not None:
            counts = _convert(found.usage, Counts)
            input_tokens, output_tokens = counts.prompt_tokens, counts.completion_tokens
            # Gemini and xAI count thinking tokens only in the total.
            output_tokens = max(output_tokens, counts.total_tokens - input_tokens)
    except (ValueError, RecursionError):
        return None
    (choice,) = found.choices
    return Reply(
        output=choice.message.content,
        finish_reason=choice.finish_reason,
        usage=found.usage,
        model=found.model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        body=body,
        headers=headers,
        request_id=found.id,
    )


def read(body: bytes, asked: Object | None) -> Reply:
    """Reads a body whose output is a string, or a list of several strings; see `Api.read`."""
    reply = _REPLY.decode(body)
    found = reply.choices
    if not found:
        raise msgspec.ValidationError("`choices` is empty")
    if reply.error:
        raise judge_part("the answer broke off", reply.error)
    for index, choice in enumerate(found):
        if error := judge_choice(index, choice.error, choice.finish_reason):
            raise error
    found = in_order(found, None if asked is None else choices(asked), "choice")
    texts = [_choice_text(choice) for choice in found]
    reasons: list[str | None] = [
        _finish(choice, text) for choice, text in zip(found, texts, strict=True)
    ]
    tools = [_tool_calls(choice) for choice in found]
    is_one = len(found) == 1
    return Reply(
        output=texts[0] if is_one else texts,
        tool_calls=tools[0] if is_one else tools if any(tools) else None,
        finish_reason=reasons[0] if is_one else reasons,
        usage=reply.usage,
        model=reply.model,
        request_id=reply.request_id,
    )


def has_ended(body: bytes) -> bool:
    """Whether each choice in a JSON body has a finish reason and the body contains no error.

    Also True for JSON in another format.
    """
    try:
        endings = _ENDINGS.decode(body)
    except msgspec.ValidationError:
        # The JSON is in another format: it has neither choices nor an error.
        return True
    choices = endings.choices or ()
    return not endings.error and all(choice.finish_reason is not None for choice in choices)


class _Part(Protocol):
    index: Any


P = TypeVar("P", bound=_Part)


def in_order(found: list[P], asked: int | None, name: str) -> list[P]:
    """Returns the parts of an answer in the order of their indices.

    asked: the number of requested parts; None if it is unknown, and then nothing is checked. name:
    the word for a part in an error, such as `choice`. Raises BadReply unless they are exactly the
    requested parts.
    """
    if asked == len(found) == 1 and not found[0].index:
        return found
    # Gemini omits an index of 0, and some servers omit all.
    indices = [0 if part.index is None else number(part.index) for part in found]
    if all(part.index is None for part in found):
        indices = list(range(len(found)))
    if asked is None:
        numbered = zip(indices, found, strict=True)
        return [part for _, part in sorted(numbered, key=lambda each: each[0] or 0)]
    by_index = dict(zip(indices, found, strict=True))
    if len(found) == asked and by_index.keys() == set(range(asked)):
        return [by_index[index] for index in range(asked)]
    missing = [str(index) for index in range(asked) if index not in by_index]
    named = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
    what = f"index {named} is missing" if len(missing) == 1 else f"indices {named} are missing"
    if not missing:
        what = "an index occurs twice, or was not requested"
    raise BadReply(
        f"asked for {asked} {name}{'' if asked == 1 else 's'}, got {len(found)}: {what}",
        hint=f"if the row requests several, request one {name} per row",
    )


def _choice_text(choice: _Choice) -> Any:
    if choice.message is None:
        if choice.text is None and not is_filtered(choice.finish_reason):
            raise msgspec.ValidationError("a choice has neither `message` nor `text`")
        return choice.text
    content = text_of(choice.message.content)
    return choice.message.refusal or content if content in (None, "") else content


def text_of(content: Any) -> Any:
    """Returns the joined texts of a list of parts; any other content unchanged."""
    if not isinstance(content, list):
        return content
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _tool_calls(choice: _Choice) -> Any:
    message = choice.message
    return None if message is None else message.tool_calls or message.function_call


def _finish(choice: _Choice, output: Any) -> str | None:
    if choice.message is not None and choice.message.refusal:
        return "refusal"
    reason = choice.finish_reason
    if is_filtered(reason):
        return "content_filter"
    if reason == "model_length":
        # Mistral's word for the end of the context window.
        return "length"
    if output in (None, "") and not _tool_calls(choice) and reason in _STOPS:
        return "empty"
    # Some servers send a number: the reason's code in their own API.
    return str(reason) if isinstance(reason, int) else reason


def is_filtered(finish_reason: Any) -> bool:
    """Whether a content filter ended the choice.

    Gemini appends its own reason, as in `content_filter: PROHIBITED_CONTENT`, and may then send no
    message: https://github.com/openai/openai-agents-python/pull/746
    """
    return isinstance(finish_reason, str) and finish_reason.startswith("content_filter")


def write_choice(
    name: str,
    part: Callable[[str | None, Any], Any],
    index: int,
    text: str | None,
    finish_reason: str | None = None,
    *,
    logprobs: Object | None = None,
    tool_calls: Any = None,
) -> Object:
    """Returns a choice of an answer; for an event, a choice with only its new part.

    name: the key of the text and the tool calls. part: makes the key's value from these two.
    """
    return {
        "index": index,
        name: part(text, tool_calls),
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }


class Form(NamedTuple):
    """How the answers that redline writes differ between the two APIs.

    id_prefix: the prefix of an answer's id. whole, event: the `object` of an answer and of an
    event. choice, piece: `write_choice` for an answer and for an event, without its first two
    arguments. opening: makes the piece that precedes the text of the choice with a given index;
    None if the API has no such piece.
    """

    id_prefix: str
    whole: str
    event: str
    choice: Callable[..., Object]
    piece: Callable[..., Object]
    opening: Callable[[int], Object] | None = None


class ChoicesWriter(NamedTuple):
    """Writes one answer, whole or as the events of a stream.

    name: the answer's id without its prefix, unique among all answers. created_s: wall time in
    whole seconds. includes_usage: whether events have a `usage`, which is null in all but the last
    event.
    """

    form: Form
    name: str
    created_s: int
    model: str
    includes_usage: bool = False

    def whole(self, choices: list[Object], usage: Object | None) -> Object:
        """Returns the answer with these choices."""
        return {
            "id": f"{self.form.id_prefix}-{self.name}",
            "object": self.form.whole,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
            "usage": usage,
        }

    def event(self, *pieces: Object) -> Object:
        """Returns an event with these pieces, each the new part of one choice."""
        event = self.whole(list(pieces), None)
        event["object"] = self.form.event
        if not self.includes_usage:
            del event["usage"]
        return event

    def last(self, usage: Object) -> list[Object]:
        """Returns the last event, which has the usage; an empty list if none was requested."""
        return [{**self.event(), "usage": usage}] if self.includes_usage else []

    def encoder(self) -> Callable[[Object], bytes]:
        """Returns a function that encodes an event with one piece; the rest is encoded once."""
        # The last `]` is that of the empty list of choices.
        begin, _, end = event_bytes(self.event()).rpartition(b"]")

        def encode(piece: Object) -> bytes:
            return b"%b%b]%b" % (begin, msgspec.json.encode(piece), end)

        return encode


def is_usage_event(event: Object) -> bool:
    """Whether the event is the one that `ChoicesWriter.last` writes."""
    return event.get("choices") == [] and bool(event.get("usage"))
