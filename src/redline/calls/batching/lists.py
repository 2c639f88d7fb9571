"""Joins requests whose items may share one call, and splits their answer.

a request                                   is sent
to an API of FORMS, with a text or a list   with others that have the same url, headers and fields,
                                            and items of the same kind
for a stream, or with anything else         alone, unchanged

Values keep their bytes: a request's other fields are sent as they were written, and an item's part
of an answer is returned as the endpoint sent it, except for its index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from redline.apis import api_of, chat, number, stated_tokens
from redline.apis import replies as apis
from redline.calls.batching.parts import Part
from redline.calls.batching.usage import added_usage, split_usage
from redline.errors import BadReply, CallError, NoEndpoint
from redline.waist import Call, Outcome, Reply, Request, failed

T = TypeVar("T")
Fields = dict[str, msgspec.Raw]


class ListForm(NamedTuple):
    """An API that takes lists. ending: the end of its URLs' paths.

    items: the field of a request that contains the list. answers: the field of an answer with one
    element for each item, or `n` elements if has_n. is_indexed: whether elements have an `index`.
    """

    ending: str
    items: str
    answers: str
    is_indexed: bool = True
    has_n: bool = False


# OpenAI's embeddings, completions and moderations, and the classifiers of vLLM.
FORMS = (
    ListForm("/embeddings", "input", "data"),
    ListForm("/completions", "prompt", "choices", has_n=True),
    ListForm("/moderations", "input", "results", is_indexed=False),
    ListForm("/classify", "input", "data"),
)
_FIELDS = msgspec.json.Decoder(Fields)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[Fields])
_encode = msgspec.json.encode
_NONE = msgspec.Raw(b"null")
_FIRST = msgspec.Raw(b"0")  # the index that Gemini omits
_DIGITS = b"-0123456789"


@lru_cache(maxsize=1024)
def form_of(url: str) -> ListForm | None:
    """Returns the ListForm of the API at this URL; None if it is not known to take lists."""
    if api_of(url) is chat.API:
        return None
    path = url.partition("?")[0].rstrip("/")
    return next((form for form in FORMS if path.endswith(form.ending)), None)


def part_of(request: Request, call: Call) -> Part | None:
    """Returns the request as a part of a batch; None if it must be sent alone."""
    form = form_of(request.url)
    if form is None or request.method != "POST":
        return None
    raw = request.raw
    try:
        if raw is None:
            raw = _encode(request.body)
        fields = _FIELDS.decode(raw)
        found = _items(fields.pop(form.items, _NONE))
    except (TypeError, ValueError, RecursionError):
        return None
    answers = _answers(fields, form)
    if found is None or answers is None or bytes(fields.get("stream", _NONE)) == b"true":
        return None
    kind, items = found
    rest = tuple(sorted((name, bytes(value)) for name, value in fields.items()))
    headers = tuple(sorted(request.headers.items()))
    barring = call.avoid, call.unfit, call.barred
    key = (request.url, headers, request.output_path, kind, rest, *barring)
    return Part(request, key, len(items), len(raw), tuple(items), answers)


def joined(parts: Sequence[Part]) -> Request:
    """Returns one request with the items of all parts; a single part's request is unchanged."""
    request = parts[0].request
    if len(parts) == 1:
        return request
    form = form_of(request.url)
    assert form is not None
    fields = _FIELDS.decode(_encode(request.body) if request.raw is None else request.raw)
    items = [item for part in parts for item in part.items]
    raw = _encode({**fields, form.items: items})
    return Request(
        raw=raw, url=request.url, headers=request.headers, output_path=request.output_path
    )


def split(parts: Sequence[Part], outcome: Outcome) -> list[Outcome]:
    """Returns the outcome of each part, in order, from that of the successful joint call.

    Raises BadReply if the answers do not match the requested items, in number or by index.
    """
    reply = outcome.reply
    assert reply is not None
    if len(parts) == 1:
        return [outcome]
    replies = _split_body(parts, reply) if reply.body else _split_output(parts, reply)
    return [_of_part(outcome, one) for one in replies]


def _of_part(outcome: Outcome, found: Reply | CallError | NoEndpoint) -> Outcome:
    if isinstance(found, Reply):
        return msgspec.structs.replace(outcome, reply=found)
    status = failed(found).status
    return msgspec.structs.replace(outcome, status=status, reply=None, error=found)


def _length(part: Part) -> int:
    """Returns the total length of the part's items, in tokens or bytes."""
    items = [bytes(item) for item in part.items]
    # Without the quotation marks around a text.
    return sum(item.count(b",") + 1 if item[:1] == b"[" else len(item) - 2 for item in items)


def _items(value: msgspec.Raw) -> tuple[str, list[msgspec.Raw]] | None:
    """Returns the kind of a request's items, and the items; None if they cannot be joined."""
    first = bytes(value)[:1]
    if first == b'"':
        return "text", [value]
    if first != b"[":
        return None
    items = _LIST.decode(value)
    kinds = {_kind(item) for item in items}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind == "token":
        # The list is a single input, given as token ids.
        return "tokens", [value]
    return (kind, items) if kind else None


def _kind(item: msgspec.Raw) -> str:
    first = bytes(item)[:1]
    if first == b'"':
        return "text"
    return "tokens" if first == b"[" else "token" if first in _DIGITS else ""


def _answers(fields: Fields, form: ListForm) -> int | None:
    """Returns the number of answers requested for each item; None if it cannot be read."""
    if not form.has_n or "n" not in fields:
        return 1
    value = msgspec.json.decode(fields["n"])
    found = 1 if value is None else number(value)
    return found if found is not None and found > 0 else None


def _split_body(parts: Sequence[Part], reply: Reply) -> list[Reply | CallError | NoEndpoint]:
    form = form_of(parts[0].request.url)
    assert form is not None
    asked = sum(part.asked for part in parts)
    try:
        whole = _FIELDS.decode(reply.body)
        answers = _in_order(_OBJECTS.decode(whole.get(form.answers, _NONE)), form, asked)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReply(f"the answer cannot be split: {error}") from error
    slices = _slices(parts, answers)
    usages = _usages(parts, slices, _usage_of(whole))
    found: list[Reply | CallError | NoEndpoint] = []
    for part, own, usage in zip(parts, slices, usages, strict=True):
        if form.is_indexed:
            own = [{**one, "index": msgspec.Raw(b"%d" % at)} for at, one in enumerate(own)]
        fields: dict[str, Any] = {**whole, form.answers: own}
        if usage is not None:
            fields["usage"] = usage
        found.append(_read(part.request, _encode(fields), reply))
    return found


def _in_order(answers: list[Fields], form: ListForm, asked: int) -> list[Fields]:
    """Returns the answers sorted by index. Raises BadReply unless each index has one answer."""
    if len(answers) != asked:
        raise _miscounted(asked, len(answers))
    if not form.is_indexed or not any("index" in one for one in answers):
        return answers
    by_index = {number(msgspec.json.decode(one.get("index", _FIRST))): one for one in answers}
    if by_index.keys() != set(range(asked)):
        raise BadReply(
            f"asked for {asked} answers, but their indices are not 0 to {asked - 1}",
            hint="set the batch size to 1 if the endpoint does not index the answers to a list",
        )
    return [by_index[index] for index in range(asked)]


def _miscounted(asked: int, got: int) -> BadReply:
    return BadReply(
        f"asked for {asked} answers, got {got}, so they cannot be matched to the requests",
        hint="set the batch size to 1 if the endpoint does not answer each item of a list",
    )


def _usages(
    parts: Sequence[Part], slices: Sequence[Sequence[Fields]], usage: dict[str, Any] | None
) -> list[dict[str, Any] | None]:
    """Returns the usage of each part: the sum of its items' usages, or a share of the total.

    None for each part if the answer states neither.
    """
    stated = [[_usage_of(one) for one in own] for own in slices]
    if all(one is not None for own in stated for one in own):
        return [added_usage([one for one in own if one is not None]) for own in stated]
    if usage is None:
        return [None for _ in parts]
    reads = [_length(part) for part in parts]
    writes = [sum(len(bytes(one.get("text", b""))) for one in own) for own in slices]
    return list(split_usage(usage, reads, writes))


def _usage_of(answer: Fields) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(answer.get("usage", _NONE))
    except (ValueError, RecursionError):
        # For example, a number too large for a float, such as 1e400.
        return None
    return value if isinstance(value, dict) else None


def _read(request: Request, body: bytes, reply: Reply) -> Reply | CallError | NoEndpoint:
    """Returns the reply in the body made for one part, or the error that this body contains."""
    try:
        own = apis.read(request.url, body, request.output_path, request.asked)
    except (CallError, NoEndpoint) as error:
        return error
    own.status, own.headers = reply.status, reply.headers
    own.request_id = own.request_id or reply.request_id
    return own


def _split_output(parts: Sequence[Part], reply: Reply) -> list[Reply | CallError | NoEndpoint]:
    """Splits the reply of a backend that returns an output but no body."""
    output = reply.output
    asked = sum(part.asked for part in parts)
    if not isinstance(output, list) or len(output) != asked:
        raise _miscounted(asked, len(output) if isinstance(output, list) else 1)
    reasons = reply.finish_reasons
    if len(reasons) != asked:
        reasons = [reasons[0]] * asked
    slices = _slices(parts, output)
    usages: list[Any] = [None for _ in parts]
    if reply.usage is not None:
        reads = [_length(part) for part in parts]
        usages = split_usage(reply.usage, reads, [len(str(own)) for own in slices])
    found: list[Reply | CallError | NoEndpoint] = []
    for own, ended, usage in zip(slices, _slices(parts, reasons), usages, strict=True):
        is_one = len(own) == 1
        read, written = stated_tokens(usage) if usage is not None else (None, None)
        found.append(
            msgspec.structs.replace(
                reply,
                output=own[0] if is_one else own,
                finish_reason=ended[0] if is_one else ended,
                usage=usage,
                input_tokens=read,
                output_tokens=written,
            )
        )
    return found


def _slices(parts: Sequence[Part], answers: Iterable[T]) -> list[list[T]]:
    """Returns each part's own answers. answers: in the order of the parts."""
    left = iter(answers)
    return [list(islice(left, part.asked)) for part in parts]
